"""Checks that a written model, adapter or run loads and has the intended outputs.

A folder with ``config.json`` is read by transformers, one with ``adapter_config.json`` by PEFT, and
a run by this package. Names and shapes are compared, and optionally the logits of a probe.
"""

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from jaxtyping import Float
from torch import Tensor
from transformers import AutoConfig

from mttl.assembly.saved_run import Built
from mttl.io.errors import CheckpointError, grouped
from mttl.io.reading import reason
from mttl.merging.low_rank_factors import LowRank
from mttl.merging.weights_folder import Weights
from mttl.models.backbone import read_architecture
from mttl.routing.context import Routing
from mttl.runtime.libraries import missing_libraries
from mttl.skills.skilled_model import SkilledModel

# Logits of the probe by task, or by another name.
Answers = Mapping[str, Float[Tensor, "1 L V"]]
Causes = Mapping[str, Iterable[str]]
N_TOKENS = 16


def check_written(folder: Path, network: Any, answers: Answers, like: Path | None = None) -> None:
    """Raise CheckpointError unless a folder of a model, an adapter or a run loads as intended.

    The message names all tensors that are missing, unexpected or of another shape, and answers that
    differ from the intended ones by more than `rounding`; without ``answers`` only names and shapes
    are compared. ``network`` is the model in the folder, the base of an adapter, or the run, loaded
    from the folder. ``like`` is a folder of a model whose wrong tensors are allowed.
    """
    if isinstance(network, Built):
        compare_answers(task_answers(network.model, network.tasks), answers, network.model.backbone)
    elif (folder / "adapter_config.json").is_file():
        _check_adapter(folder, network, answers)
    else:
        known = read_model(like, meta=True)[1] if like else {}
        wrong = read_model(folder, meta=True)[1]
        _refuse({cause: {*names} - {*known.get(cause, ())} for cause, names in wrong.items()})
        if answers:
            read = read_model(folder)[0]
            compare_answers(dict.fromkeys(answers, logits(read)), answers, read)


def write_model(folder: Path, network: Any, tokenizer: Any, *, probe: bool) -> None:
    """Write a model with its tokenizer, and check it; ``probe`` also checks its answers."""
    network.save_pretrained(folder)
    check_written(folder, network, {"model": logits(network)} if probe else {})
    tokenizer.save_pretrained(folder)


def rounding(network: Any) -> float:
    r"""Return the largest relative difference of logits that rounding explains.

    Each of n matrices multiplies values that are rounded to the ε of its type, and sums I terms in
    single precision, with an error of :math:`\epsilon_{32} \sqrt I`. Squares of independent errors
    add up: :math:`\sqrt n \max(\epsilon, 10 \epsilon_{32} \sqrt I)`. The factor 10 allows for
    layers that amplify errors.
    """
    widths = [value.shape[-1] for value in network.parameters() if value.dim() > 1]
    single = 10 * torch.finfo(torch.float32).eps * max(widths) ** 0.5
    return len(widths) ** 0.5 * max(torch.finfo(network.dtype).eps, single)


@torch.no_grad()
def logits(backbone: Any, ask: Callable[..., Any] | None = None) -> Float[Tensor, "1 L V"]:
    """Return a model's logits for ids across the vocabulary, computed by ``ask`` if given."""
    embeddings = backbone.get_input_embeddings().weight
    ids = torch.linspace(1, len(embeddings) - 1, N_TOKENS, device=embeddings.device).long()[None]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if backbone.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids.flip(1)
    return (ask or backbone)(**inputs)[0].float().cpu()


def mixture_answer(
    model: SkilledModel, mixing: Float[Tensor, "G H K"], ask: Callable[[Any], Tensor] = logits
) -> Float[Tensor, "1 L V"]:
    """Return the logits of a model with one mixture for any task; ``ask`` computes them."""
    task = torch.zeros(1, dtype=torch.long, device=mixing.device)
    with model.slot.use(Routing(task, mixing[:, None])):
        return ask(model.backbone)


def task_answers(model: SkilledModel, tasks: Sequence[str]) -> dict[str, Tensor]:
    """Return the logits of a model for each of its tasks."""
    ids = torch.arange(len(tasks), device=next(model.parameters()).device)[:, None]
    return {
        name: logits(model.backbone, partial(model, own))
        for name, own in zip(tasks, ids, strict=True)
    }


def changed_answer(network: Any, changes: Mapping[str, LowRank]) -> Float[Tensor, "1 L V"]:
    """Return the logits of a model with changes of its weights."""

    def add(part: LowRank, _: Any, given: tuple[Tensor], found: Tensor) -> Tensor:
        return found + (given[0].float() @ part.down.float() @ part.up.float().t()).to(found.dtype)

    layers = {path: network.get_submodule(path) for path in changes}
    hooks = [layers[path].register_forward_hook(partial(add, changes[path])) for path in layers]
    try:
        return logits(network)
    finally:
        for hook in hooks:
            hook.remove()


def read_model(folder: Path, *, meta: bool = False, tensors: Any = None) -> tuple[Any, Causes]:
    """Return a model as transformers loads it (``meta``: without values), and wrong tensors."""
    config = AutoConfig.from_pretrained(folder)
    named = getattr(transformers, (config.architectures or [""])[0], None)
    kind: Any = named or read_architecture(str(folder))[0]._model_mapping[type(config)]
    how: dict[str, Any] = {"state_dict": tensors, "config": config} if tensors else {}
    if meta and not missing_libraries("accelerate"):
        how["device_map"] = "meta"
    how |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    network, report = kind.from_pretrained(None if tensors else folder, **how)
    return network.eval(), {
        "missing": report["missing_keys"] & dict(network.named_parameters()).keys(),
        "unexpected": report["unexpected_keys"],
        "of another shape": [name for name, *_ in report["mismatched_keys"]],
    }


def _check_adapter(folder: Path, base: Any, answers: Answers) -> None:
    if missing_libraries("peft"):
        logging.getLogger(__name__).warning("peft is not installed: the adapter is not checked")
        return
    from peft import PeftModel, get_peft_model_state_dict

    written = Weights(folder / "adapter_model.safetensors")
    try:
        with warnings.catch_warnings(action="ignore"):
            read = PeftModel.from_pretrained(base, str(folder)).eval()
            due = get_peft_model_state_dict(read, save_embedding_layers=False)
        _refuse({"missing": due.keys() - {*written}, "unexpected": {*written} - due.keys()})
        poly = read.active_peft_config.peft_type == "POLY"
        more = [{"task_ids": torch.tensor([k])} if poly else {} for k in range(len(answers))]
        # Logits of prompts precede those of the text.
        length = max((answer.shape[1] for answer in answers.values()), default=0)
        found = [logits(base, partial(read, **one))[:, -length:] for one in more]
        compare_answers(dict(zip(answers, found, strict=True)), answers, base)
        getattr(read.base_model, "unload", lambda: None)()
        vars(base).pop("peft_config", None)
    except CheckpointError:
        raise
    except Exception as error:  # PEFT raises various errors for unreadable adapters
        _refuse({"peft": [reason(error)]})


def compare_answers(found: Answers, due: Answers, network: Any) -> None:
    """Raise CheckpointError if answers differ."""
    most = rounding(network)
    errors = {task: float((found[task] - own).norm() / own.norm()) for task, own in due.items()}
    if off := [f"{task} by {error:.1e}" for task, error in errors.items() if not error <= most]:
        _refuse({f"different logits (limit {most:.1e})": off})


def _refuse(causes: Causes) -> None:
    if lines := grouped({cause: sorted(names) for cause, names in causes.items()}):
        raise CheckpointError("the written files do not load as intended:\n" + "\n".join(lines))
