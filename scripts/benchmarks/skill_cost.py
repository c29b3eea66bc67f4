"""Measure what the skills of a trained run change of its backbone, and what they cost.

    python scripts/benchmarks/skill_cost.py runs/crossfit [--rounds 7] [--json FILE]

Costs are those of rows like the run's longest, of all its tasks in turn. The floor of a training
step is the frozen backbone with gradients of the activations down to the embeddings, that of
generation the bare backbone; both generate greedily, and equally many tokens. What is changed is
what folding the first task into the backbone changes.
"""

import argparse
import copy
import sys
from typing import TYPE_CHECKING, Any, cast

from _common import Step, as_speed, parse_arguments, positive, report, run

if TYPE_CHECKING:  # the parent process of a benchmark never loads these
    import torch
    from torch import Tensor

    from mttl.assembly.model import Built

VARIANTS = ("without skills", "with skills")
SMALLEST = 1e-4  # singular values that count, as a share of the largest


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="What skills change, and what they cost.")
    parser.add_argument("run", metavar="RUN", help="the folder of a run that has ended")
    parser.add_argument("--rows", type=positive, default=32, help="of a batch (%(default)s)")
    settings = parse_arguments(parser, VARIANTS, argv, ())
    training, generation = run(build_step, settings), run(build_answers, settings)
    speeds = [as_speed(row, settings.rows) for row in generation]
    rows = [{**row, "name": f"{row['name']}, training"} for row in training]
    rows += [{**row, "name": f"{row['name']}, answering"} for row in speeds]
    report(rows, settings, title=f"skills of {settings.run}", unit="ms; rows/s", columns={})
    return int(any("error" in row for row in rows))


def build_step(variant: str, settings: argparse.Namespace) -> tuple[Step, dict[str, float]]:
    """Make the training step of a variant."""
    import torch
    from torch import nn

    from mttl.merging.fold import strip, unfold

    built = _load(settings)
    model: Any = built.model
    bare = strip(built.model)
    bare.backbone.requires_grad_(False)
    if variant == VARIANTS[0]:
        model = bare.backbone
        embeddings = model.get_input_embeddings().weight
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.weight is embeddings:
                module.register_forward_hook(lambda _, __, output: output.requires_grad_())
    else:
        unfold(bare)
    model.train()
    batch = random_batch(built, settings.rows)
    if variant == VARIANTS[0]:
        del batch["task_ids"]
    parameters = [value for value in model.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-6, fused=True) if parameters else None

    def step() -> None:
        if optimizer is not None:
            optimizer.zero_grad()
        model(**batch).loss.backward()
        if optimizer is not None:
            optimizer.step()

    return step, {}


def build_answers(variant: str, settings: argparse.Namespace) -> tuple[Step, dict[str, float]]:
    """Make the call that generates; the variant with skills reports what they change."""
    from mttl.merging.fold import strip

    built = _load(settings)
    model: Any = built.model
    facts = {}
    if variant == VARIANTS[0]:
        model = strip(built.model).backbone
    else:
        facts = changed(built)
    return answering(built, model, settings.rows), facts


def answering(built: "Built", model: Any, n_rows: int) -> Step:
    """Return the call that answers random rows greedily, as many tokens each as a run writes.

    Args:
        built: The run.
        model: Its model, or its bare backbone.
        n_rows: Of a batch.
    """
    length = built.form.max_output_length
    batch = random_batch(built, n_rows)
    del batch["labels"]
    if model is not built.model:
        del batch["task_ids"]
    same = {"num_beams": 1, "do_sample": False, "min_new_tokens": length, "max_new_tokens": length}

    def step() -> "torch.Tensor":
        return model.generate(**batch, **same)

    return step


def changed(built: "Built") -> dict[str, float]:
    """Return how many numbers are trained and changed, and the rank of the changes.

    Returns:
        Numbers of the ``backbone``, ``trained`` ones of skills and router, and whether the skills
        are ``mergeable``; if so, ``changed`` entries, and the means over layers of the ``rank`` of
        a weight's change and of the ``full`` rank it could have.
    """
    import torch

    from mttl.merging.fold import fold, strip, task_mixing, unfold

    model = built.model
    bare = strip(model)
    n_backbone = sum(value.numel() for value in bare.backbone.parameters())
    unfold(bare)
    parts = [model.router, *(layer.inventory for layer in model.skilled_layers().values())]
    trained = {v for part in parts for v in part.parameters() if v.requires_grad}
    n_trained = sum(value.numel() for value in trained)
    facts = {"backbone": float(n_backbone), "trained": float(n_trained), "mergeable": 0.0}
    mixing = task_mixing(model.router, 0)
    try:
        unfold(fold(model, mixing))
    except ValueError:
        return facts
    n_changed, ranks, full = 0, [], []
    with torch.no_grad():
        for layer in model.skilled_layers().values():
            weight, bias = _dense(layer)
            row = mixing[layer.group].double()
            inventory = copy.deepcopy(layer.inventory).double()
            new_weight, new_bias = inventory.fold(weight, bias, row)
            change = new_weight - weight
            n_changed += int(change.count_nonzero())
            if new_bias is not None:
                before = torch.zeros_like(new_bias) if bias is None else bias
                n_changed += int((new_bias - before).count_nonzero())
            if change.ndim > 1 and change.any():
                ranks.append(int(torch.linalg.matrix_rank(change, rtol=SMALLEST)))
                full.append(min(change.shape))
    facts |= {"mergeable": 1.0, "changed": float(n_changed)}
    if ranks:
        facts |= {"rank": sum(ranks) / len(ranks), "full": sum(full) / len(full)}
    return facts


def _dense(layer: Any) -> "tuple[Tensor, Tensor | None]":
    """Return weight and bias of a skilled linear layer in double precision, as (O, I)."""
    from mttl.aggregation.packed_weights import dense_weight, is_packed
    from mttl.merging.fold import is_transposed

    weight = dense_weight(layer.base) if is_packed(layer.weight) else layer.weight
    weight = weight.double()
    bias = None if layer.bias is None else layer.bias.double()
    return (weight.t() if is_transposed(layer.base) else weight), bias


def _load(settings: argparse.Namespace) -> "Built":
    import torch

    from mttl.assembly.model import load_run

    torch.manual_seed(0)
    return load_run(settings.run)


def random_batch(built: "Built", n_rows: int) -> "dict[str, Any]":
    """Return rows of random ids, each of as many as the run reads and writes, and their tasks."""
    import torch

    form, settings = built.form, cast(Any, built.model.backbone).config
    n_in, n_out = form.max_input_length, form.max_output_length
    inputs = torch.randint(2, min(settings.vocab_size, 256), (n_rows, n_in))
    labels = torch.randint(2, min(settings.vocab_size, 256), (n_rows, n_out))
    if not settings.is_encoder_decoder:  # it reads its answers too
        labels = inputs.clone()
    task_ids = torch.arange(n_rows) % len(built.tasks)
    mask = torch.ones_like(inputs)
    return {"input_ids": inputs, "attention_mask": mask, "labels": labels, "task_ids": task_ids}


if __name__ == "__main__":
    sys.exit(main())
