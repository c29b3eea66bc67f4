"""Estimate the diagonal Fisher information of a model on tasks, for `mttl merge`.

mttl fisher --model models/expert --tasks verb_past --out expert.safetensors

The default is the empirical Fisher information: the mean over rows of the squared gradient of log
p(answer | input). The file has one tensor per parameter, under the parameter's name.
"""

import argparse
from typing import TYPE_CHECKING, Any

from mttl.commands.name_checks import gym_with
from mttl.commands.options import CommandParser, command, natural, positive
from mttl.config.enums import GRADIENTS
from mttl.io.errors import ConfigError, TrainingError, raised_as
from mttl.runtime.command import make_console, say
from mttl.runtime.progress_bar import counting
from mttl.tasks.folder import SPLITS, Gym

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

LABELS = ("reference", "sampled")


def _declare(parser: CommandParser) -> None:
    add = parser.read.add_argument
    add("--model", required=True, metavar="DIR", help="folder of a model")
    add("--tokenizer", metavar="NAME", help="tokenizer, if the folder has none; or byte")
    add("--gym", default="data/lexical", metavar="DIR", help="folder of tasks (%(default)s)")
    add("--tasks", required=True, nargs="+", metavar="TASK", help="names of the tasks")
    add("--split", choices=SPLITS, default="train", help="split of the tasks (%(default)s)")
    add("--samples", type=int, nargs="+", default=[100], metavar="N", help="few-shot samples (100)")
    add("--max-input-length", type=positive, default=64, help="maximum input tokens (%(default)s)")
    help = "maximum output tokens (%(default)s)"
    add("--max-output-length", type=positive, default=36, help=help)
    add("--prefix", action="store_true", help="add the prefix [task] to every input")
    add = parser.work.add_argument
    add("--rows", type=positive, default=512, help="number of rows, drawn at random (%(default)s)")
    add("--labels", choices=LABELS, default="reference", help="answers: the rows', or sampled ones")
    help = "gradients to square, per example or batch (%(default)s)"
    add("--gradients", choices=GRADIENTS, default="example", help=help)
    add("--batch-size", type=positive, default=16, help="rows per batch (%(default)s)")
    add("--at-once", type=positive, default=8, help="gradients per batch; 1 fits every model")
    add("--seed", type=natural, default=13, help="seed of rows and labels (%(default)s)")
    parser.add_out("file to write, .safetensors; must not exist", metavar="FILE")


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Estimate the Fisher information, and write the file."""
    if options.out.suffix != ".safetensors":
        raise ConfigError(f"--out '{options.out}' must end in .safetensors")
    gym = gym_with(options.gym, options.tasks, options.split, options.samples)
    import torch

    from mttl.aggregation.fisher import diagonal_fisher
    from mttl.io.safetensors_file import write_tensors
    from mttl.merging.likelihood import answer_log_likelihood, likelihood_batch, sample_targets
    from mttl.models.backbone import load_pretrained

    model = load_pretrained(options.model).requires_grad_(False)
    model.set_attn_implementation("eager")  # required by gradients of several rows at once
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)  # type: ignore[arg-type]
    batches = read_batches(options, model, gym)
    n_rows = sum(len(batch["labels"]) for batch in batches)
    generator = torch.Generator(device).manual_seed(options.seed)

    def targets(batch: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
        made = likelihood_batch(model, {key: value.to(device) for key, value in batch.items()})
        return sample_targets(model, made, generator) if options.labels == "sampled" else made

    with (
        counting(make_console(stderr=True), "rows", n_rows) as count,
        raised_as(TrainingError, f"'{options.model}'", ValueError),
    ):
        found = diagonal_fisher(
            model,
            answer_log_likelihood(model, traceable=options.at_once > 1),
            (targets(batch) for batch in batches),
            gradients=options.gradients,
            at_once=options.at_once,
            on_batch=count.advance,
        )
    metadata = {"format": "pt", "labels": options.labels, "gradients": options.gradients}
    metadata |= {"n_rows": str(n_rows), "tasks": " ".join(options.tasks)}
    write_tensors(options.out, {name: value.cpu() for name, value in found.items()}, metadata)
    say(f"Fisher information on {n_rows} rows is in {options.out}")


def read_batches(
    options: argparse.Namespace, model: "PreTrainedModel", gym: Gym
) -> list[dict[str, Any]]:
    """Return batches of rows, drawn uniformly over all tasks."""
    import torch

    from mttl.data.collate import TrainCollator, pad_id_of
    from mttl.data.prepare import prepare
    from mttl.data.prompt_form import PromptForm
    from mttl.models.backbone import is_decoder_only, load_tokenizer

    tokenizer = load_tokenizer(options.tokenizer or options.model)
    form = PromptForm(
        max_input_length=options.max_input_length,
        max_output_length=options.max_output_length,
        prefix="name" if options.prefix else "none",
    )
    rows: Any = prepare(
        *(gym, options.tasks, options.split, options.samples, tokenizer),
        decoder_only=is_decoder_only(model),
        form=form,
    )
    lengths = {"input_ids": options.max_input_length, "labels": options.max_output_length}
    if n_cut := sum(any(len(row[name]) >= n for name, n in lengths.items()) for row in rows):
        what = f"{n_cut} of {len(rows)} rows are as long as --max-input-length or"
        say(f"{what} --max-output-length allows, and may be cut", stderr=True)
    generator = torch.Generator().manual_seed(options.seed)
    order = torch.randperm(len(rows), generator=generator)[: options.rows].tolist()
    collate = TrainCollator(pad_id_of(tokenizer), is_decoder_only(model))
    return [
        collate([rows[place] for place in order[start : start + options.batch_size]])
        for start in range(0, len(order), options.batch_size)
    ]
