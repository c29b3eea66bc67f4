"""Merge a task's skills into the weights: a plain transformers model without skills or router.

mttl merge-task runs/crossfit --task verb_past --out models/verb_past
mttl merge-task runs/crossfit --average --out models/average

The folder loads with `from_pretrained` of transformers. Its answers equal those of the run up to
rounding. It has a tokenizer whose chat template formats prompts as in training, the run's
generation settings, and a model card with example code. A quantised backbone is written in floating
point; the quantisation error is reported.
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
    which = parser.group("merged part").add_mutually_exclusive_group(required=True)
    which.add_argument("--task", metavar="NAME", help="merge the skills of a task of the run")
    which.add_argument("--average", action="store_true", help="merge the average of all skills")
    parser.add_out(probe=True)


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Merge the skills and save the model."""
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
    say(f"The model is in {options.out}; its README.md describes it")


def quantisation_loss(built: "Built") -> str:
    """Return a sentence on the error of a quantised base; empty if it is not quantised."""
    from mttl.aggregation.packed_weights import packed_layers
    from mttl.assembly.build_backbone import build_backbone
    from mttl.merging.fold import quantisation_error

    backbone = built.backbone
    if not packed_layers(built.model.backbone):
        return ""
    if backbone.quantize is None:
        return "The base model is stored quantised and was dequantised; its error is unknown."
    original = build_backbone(backbone.model_copy(update={"quantize": None}))
    overall, largest, worst = quantisation_error(built.model.backbone, original)
    return (
        f"The base model was quantised ({backbone.quantize}) in training and is dequantised here: "
        f"the relative error of its weights is {overall:.2e} (largest {largest:.2e}, in {worst})."
    )
