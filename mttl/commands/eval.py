"""Evaluate a task of a run on benchmarks of the LM Evaluation Harness (lm_eval).

mttl eval runs/crossfit --as verb_past --tasks hellaswag arc_easy
mttl eval runs/crossfit --as mix:verb_past=0.7,noun_plural=0.3 --tasks my_task --include-path tasks

The model with the skills of a task, or of a mixture of tasks, answers the harness's prompts as they
are. It needs `pip install "lm_eval[hf]"`.
"""

import argparse
import json
import logging
from importlib import import_module
from pathlib import Path
from typing import Any

from mttl.checkpoints.inventory_files import check_named
from mttl.commands.name_checks import check_run_task
from mttl.commands.options import LIST, NATURAL, POSITIVE, CommandParser, command
from mttl.inference.mixture_name import MIXTURE, shares_of
from mttl.io.errors import ConfigError, TaskError, nearest, raised_as
from mttl.io.files import write_text
from mttl.runtime.command import make_console
from mttl.runtime.libraries import check_libraries


def _declare(parser: CommandParser) -> None:
    parser.add_source(required=False)
    parser.add_adapted()
    add = parser.read.add_argument
    help = "task whose skills answer, or a mixture such as mix:a=0.7,b=0.3"
    add("--as", dest="name", required=True, metavar="TASK", help=help)
    help = "tasks, groups or patterns of the harness"
    add("--tasks", required=True, **LIST, metavar="NAME", help=help)
    help = "folder of task definitions, instead of the harness's own"
    add("--include-path", type=Path, metavar="DIR", help=help)
    add = parser.work.add_argument
    add("--few-shot", **NATURAL, help="examples before each question (as the tasks define)")
    add("--limit", **POSITIVE, help="only the first rows of each task (all)")
    add("--batch-size", **POSITIVE, default=16, help="rows per batch (%(default)s)")
    parser.add_out("JSON file with all results", metavar="FILE", required=False)


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Evaluate, print the harness's table and write the results."""
    check_named(options.source, options.adapted)
    name, mistaken = options.name, f"--as '{options.name}'"
    with raised_as(TaskError, mistaken, TaskError):
        for task in shares_of(name) if name.startswith(MIXTURE) else [name]:
            check_run_task(task, *filter(None, [options.source]), *options.adapted)
    if options.include_path is not None and not options.include_path.is_dir():
        raise ConfigError(f"--include-path '{options.include_path}' is not a folder")
    check_libraries("lm_eval", "accelerate")
    # Its types are wrong, and it may not be installed.
    names = ("lm_eval", "lm_eval.tasks", "lm_eval.utils")
    harness, tasks, tools = (import_module(name) for name in names)
    from mttl.assembly.load_tasks import load_tasks
    from mttl.inference.task_model import TaskModel

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    place = options.include_path  # reading all definitions of the harness takes half a minute
    manager = tasks.TaskManager(include_path=place, include_defaults=place is None)
    for wanted in options.tasks:
        if not manager.match_tasks([wanted]):
            raise TaskError(f"lm_eval has no task '{wanted}'.{nearest(wanted, manager.all_tasks)}")
    models, _ = load_tasks(options.source, options.adapted, options.backbone)
    for built in models.values():
        built.require(generates="mttl eval", answers="mttl eval")
    with raised_as(TaskError, mistaken, TaskError):
        model = TaskModel(models, name)
    found: Any = harness.simple_evaluate(
        harness_model(model, options.batch_size),
        tasks=manager.match_tasks(options.tasks),
        task_manager=manager,
        num_fewshot=options.few_shot,
        limit=options.limit,
        log_samples=False,
    )
    if options.out is not None:
        text = json.dumps(found, indent=2, default=tools.handle_non_serializable)
        write_text(options.out, text + "\n")
    for part in filter(found.get, ("results", "groups")):
        make_console().print(tools.make_table(found, part), markup=False, soft_wrap=True)


def harness_model(model: Any, batch_size: int) -> Any:
    """Return a `TaskModel` for lm_eval; ConfigError if routing reads what lm_eval joins or pads."""
    run = model.run
    if "prompts" in run.model.router.seen:
        raise ConfigError("the router reads prompts, which lm_eval joins with answers; use predict")
    if run.model.routes_tokens and batch_size > 1:
        raise ConfigError("the run routes tokens, also those of padding; set --batch-size 1")
    return import_module("lm_eval.models.huggingface").HFLM(
        pretrained=model,
        tokenizer=run.tokenizer,
        backend="causal" if run.decoder_only else "seq2seq",
        add_bos_token=False if run.decoder_only else None,  # as in training
        batch_size=batch_size,
    )
