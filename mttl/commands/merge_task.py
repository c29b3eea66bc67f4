"""Fold what one task uses into plain weights: a model for any tool, without skills or router.

mttl merge-task runs/crossfit --task verb_past --out models/verb_past
mttl merge-task runs/crossfit --average --out models/average

The folder is read by transformers (`from_pretrained`). Its answers are those of the run, up to
rounding: it also holds a tokenizer whose chat template formats prompts as in training, the run's
search, and a card with lines to copy. A quantised backbone is written in floating point, as it was
used; the error of quantisation is reported.
"""

import argparse
from typing import TYPE_CHECKING

from mttl.commands.export import mixture
from mttl.commands.name_checks import check_run_task
from mttl.commands.options import CommandParser, command
from mttl.io.errors import CheckpointError, raised_as
from mttl.io.files import new_folder
from mttl.runtime.command import say

if TYPE_CHECKING:
    from mttl.assembly.model import Built


def _declare(parser: CommandParser) -> None:
    parser.add_source("run")
    parser.add_backbone()
    which = parser.group("what is folded").add_mutually_exclusive_group(required=True)
    which.add_argument("--task", metavar="NAME", help="a task of the run")
    which.add_argument("--average", action="store_true", help="the average of all skills")
    parser.add_out()
    parser.add_no_probe()


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Merge and save."""
    check_run_task(options.task, options.run)
    from mttl.assembly.model import load_run
    from mttl.inference.model_card import PromptExport, scores_of
    from mttl.merging.check_written import check_written, mixture_answer
    from mttl.merging.fold import dequantise, fold

    built = load_run(options.run, backbone=options.backbone)
    built.require(**{"averages" if options.average else "merges": "merge-task"})
    mixing, about = mixture(built, options, options.task)
    tasks = built.tasks if options.average else [options.task]
    prompt_export = PromptExport.of(built, tasks)
    lost = quantisation_loss(built)
    with raised_as(CheckpointError, f"'{options.run}' cannot be merged", ValueError):
        answers = {} if options.no_probe else {tasks[0]: mixture_answer(built.model, mixing)}
        backbone = fold(built.model, mixing).backbone
    dequantise(backbone)
    with new_folder(options.out) as temporary:
        backbone.save_pretrained(temporary)  # type: ignore[operator]
        check_written(temporary, backbone, answers)
        prompt_export.write(
            *(temporary, "model"),
            place=str(options.out),
            base=built.base,
            about=f"{about} {lost}".rstrip(),
            scores=() if options.average else scores_of(options.run, tasks),
        )
    if lost:
        say(lost)
    say(f"The model is in {options.out}; its README.md says how to ask")


def quantisation_loss(built: "Built") -> str:
    """Return the error of a quantised base against its original weights; else nothing."""
    from mttl.aggregation.packed_weights import packed_layers
    from mttl.assembly.build_backbone import build_backbone
    from mttl.merging.fold import quantisation_error

    backbone = built.backbone
    if not packed_layers(built.model.backbone):
        return ""
    if backbone.quantize is None:
        return "The base is stored quantised, and was dequantised; its error is not known."
    original = build_backbone(backbone.model_copy(update={"quantize": None}))
    error = quantisation_error(built.model.backbone, original)
    return (
        f"The base was quantised ({backbone.quantize}) in training and is dequantised here: the "
        f"relative error of its weights is {error.overall:.2e} (largest {error.largest:.2e}, of "
        f"{error.worst})."
    )
