"""Export a run's skills as adapters for PEFT or AdapterHub, or the policy of a level.

mttl export runs/crossfit --task verb_past --out adapters/verb_past
mttl export runs/crossfit --task verb_past --rank 8 --out adapters/small
mttl export runs/crossfit --all --out adapters
mttl export runs/crossfit --vllm --out served
mttl export runs/crossfit --inventory --out adapters/poly
mttl export runs/words --task entities --out adapters/entities
mttl export runs/babyai --task GoToObj --out policies/go_to_obj

A task's mixture, the average of all skills or a single skill becomes an equivalent adapter: PEFT's
LoRA, IA3 or prompt tuning, or AdapterHub's bottleneck adapter. The whole inventory with its router
becomes a Poly adapter. A trained backbone is written to OUT/base_model; with --all the adapters
OUT/TASK of all tasks share it. With --vllm they are LoRA, and OUT/README.md has the command of vLLM
that serves them. Each folder also has a tokenizer whose chat template formats prompts as in
training, the run's generation settings, and a model card with example code. With a head of tags or
labels the adapter is for transformers' classes for classification, and has their config.json. Of a
BabyAI run, OUT has the weights of one level's policy, with its skills merged, and code that needs
only PyTorch.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mttl.commands.name_checks import check_run_task, has_policies
from mttl.commands.options import CommandParser, command
from mttl.io.errors import ConfigError
from mttl.io.files import new_folder
from mttl.runtime.command import make_console, say

if TYPE_CHECKING:
    from torch import Tensor

    from mttl.assembly.model import Built
    from mttl.inference.model_card import Kind
    from mttl.merging.check_written import Answers
    from mttl.merging.low_rank_factors import LowRank
    from mttl.peft_format.skill_formats import SkillAdapter

BASE, EXACT = "base_model", "exact"
FOR_TEXT = ("all", "average", "skill", "inventory", "rank", "no_probe", "backbone")


class Export(NamedTuple):
    """An adapter to write, its subfolder, and its expected answers."""

    folder: str
    kind: "Kind"
    tasks: Sequence[str]
    about: str
    exact: bool
    adapter: "SkillAdapter"
    answers: "Answers"
    network: Any = None  # with a head, the base as a model of transformers for classification


def _declare(parser: CommandParser) -> None:
    parser.add_source("run")
    parser.add_backbone()
    which = parser.group("exported part").add_mutually_exclusive_group(required=True)
    help = "export the mixture of a task, or the policy of a level, of the run"
    which.add_argument("--task", metavar="NAME", help=help)
    help = "export every task, with a common base model"
    which.add_argument("--all", action="store_true", help=help)
    help = "export every task as LoRA for vllm serve, with its command"
    which.add_argument("--vllm", action="store_true", help=help)
    which.add_argument("--average", action="store_true", help="export the average of all skills")
    which.add_argument("--skill", type=int, metavar="K", help="export one skill, numbered from 0")
    which.add_argument("--inventory", action="store_true", help="export all skills and the router")
    help = "truncate adapters to this rank by SVD (default: no truncation)"
    parser.work.add_argument("--rank", type=int, metavar="R", help=help)
    parser.add_out(probe=True)


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Export the adapters."""
    if options.rank is not None and options.inventory:
        raise ConfigError("--rank does not work with --inventory; remove it")
    options.all |= options.vllm
    check_run_task(options.task, options.run)
    if has_policies(options.run):
        _export_policy(options)
        return
    from mttl.assembly.model import load_run
    from mttl.data.collate import pad_id_of
    from mttl.inference.model_card import PromptExport, scores_of
    from mttl.library.member_sources import lasting_name
    from mttl.merging.check_written import check_written, write_model
    from mttl.merging.fold import strip, unfold
    from mttl.peft_format.skill_formats import vllm_rank

    built = load_run(options.run, backbone=options.backbone)
    if options.inventory or options.task or options.all:
        built.require(**{"exports_inventory" if options.inventory else "exports_lora": "export"})
    if built.model.heads is not None and not (options.task or options.inventory):
        raise ConfigError("the tasks of this run have heads; export one of them with --task NAME")
    for task in built.tasks if options.all else ():
        if task in (BASE, "..") or Path(task).name != task:
            raise ConfigError(
                f"the task '{task}' cannot be the name of a folder next to '{BASE}'; export the "
                "tasks one by one with --task"
            )
    trained = built.meta["backbone"]["trained"]
    base = str((options.out / BASE).resolve()) if trained else lasting_name(built.base)
    # The run's scores are those of its tasks' mixtures.
    mixed = options.average or options.skill is not None
    scores = () if mixed else scores_of(options.run, built.tasks)
    cut = f" Truncated to rank {options.rank}"
    cut += "; the scores are those of the run at full rank." if scores else "."
    exact, kind, most_rank = True, "lora", 0
    with new_folder(options.out) as temporary:
        for export in exports(built, options, base):
            folder, exact = temporary / export.folder, exact and export.exact
            if options.vllm:
                most_rank = max(most_rank, vllm_rank(export.folder, export.adapter))
            export.adapter.write(folder)
            if export.adapter.library == "peft":
                bare = strip(built.model)
                check_written(folder, export.network or bare.backbone, export.answers)
                unfold(bare)
            if export.network is not None:
                export.network.config.pad_token_id = pad_id_of(built.tokenizer)
                export.network.config.save_pretrained(folder)
            form, kind = PromptExport.of(built, export.tasks), export.kind
            replace(form, search={**form.search, **export.adapter.search}).write(
                *(folder, kind),
                place=str(options.out / export.folder),
                base=base,
                about=export.about + ("" if export.exact else cut),
                scores=[row for row in scores if row["task"] in export.tasks],
            )
        if options.all:
            about = f"The tasks of `{options.run}` as adapters of one base model."
            PromptExport.of(built, built.tasks).write(
                *(temporary, "loras" if kind == "lora" else "bottlenecks"),
                place=str(options.out),
                base=base,
                about=about + ("" if exact else cut),
                scores=scores,
                vllm_rank=most_rank,
            )
        if trained:
            bare, probe = strip(built.model).backbone, not options.no_probe
            write_model(temporary / BASE, bare, built.tokenizer, probe=probe)
    what = "adapters are" if options.all else "adapter is"
    say(f"The {what} in {options.out}; its README.md describes it")


def _export_policy(options: argparse.Namespace) -> None:
    useless = [name for name in FOR_TEXT if getattr(options, name) not in (None, False)]
    if useless:
        raise ConfigError(
            f"'{options.run}' has policies, which have no --{useless[0].replace('_', '-')}; export "
            "the policy of a level with --task LEVEL"
        )
    from mttl.babyai.export_policy import export_policy

    export_policy(options.run, options.task, options.out)
    say(f"The policy is in {options.out}; the end of its policy.py shows how to play it")


def exports(built: "Built", options: argparse.Namespace, base: str) -> Iterator[Export]:
    """Yield the adapters that the options select, and print how exact each is."""
    from mttl.merging.check_written import changed_answer, logits, mixture_answer, task_answers
    from mttl.merging.fold import strip, unfold
    from mttl.peft_format.classifier import head_logits, with_head
    from mttl.peft_format.poly import poly_checkpoint
    from mttl.peft_format.skill_formats import SkillAdapter, skill_adapter

    console, model = make_console(), built.model
    if options.inventory:
        config, tensors = poly_checkpoint(model, base=base)
        console.print(f"Poly adapter with {config['n_skills']} skills; ids of the tasks:")
        for task_id, task in enumerate(built.tasks):
            console.print(f"  {task_id} {task}", markup=False)
        about = f"All skills of `{options.run}` with their router."
        if built.search["num_beams"] > 1:
            about += " PEFT's Poly has no beam search, which the run used; this is greedy."
        adapter = SkillAdapter("peft", config, tensors, {})
        answers = {} if options.no_probe else task_answers(model, built.tasks)
        yield Export("", "poly", built.tasks, about, True, adapter, answers)
        return
    for name in built.tasks if options.all else [options.task]:
        tasks = built.tasks if name is None else [name]
        mixing, about = mixture(built, options, name)
        adapter = skill_adapter(model, mixing, options.rank, base=base, name=name or "skills")
        peft = adapter.config.get("peft_type")
        what = f"an adapter of PEFT's {peft}" if peft else "an adapter of AdapterHub"
        if adapter.factors:
            what = f"a LoRA adapter of rank {adapter.config['r']}"
        head = network = None
        if model.heads is not None:
            head = model.heads.of_task[int(built.task_ids(tasks))]
            bare = strip(model)
            adapter, network = with_head(adapter, bare.backbone, head)
            unfold(bare)
            prefix = built.form.prompt_prefix(tasks[0]).text
            about += f" Inputs begin with `{prefix}`." * bool(prefix)
        error = accuracy(adapter.factors)
        what = f"{name}: {what}" if options.all else what[0].upper() + what[1:]
        console.print(f"{what}, {error}", markup=False)
        folder = name or "" if options.all else ""
        if adapter.note:
            console.print(adapter.note.strip(), markup=False)
        answers, exact = {}, error == EXACT
        if exact and not options.no_probe:
            ask = logits if head is None else partial(head_logits, head=head)
            answers = {tasks[0]: mixture_answer(model, mixing, ask)}
        elif not options.no_probe:  # truncated
            bare = strip(model)
            answers = {tasks[0]: changed_answer(network or bare.backbone, adapter.factors)}
            unfold(bare)
        kind = "lora" if peft else "bottleneck"
        kind = kind if head is None else adapter.config["task_type"]
        yield Export(folder, kind, tasks, about + adapter.note, exact, adapter, answers, network)


def mixture(built: "Built", options: argparse.Namespace, task: str | None) -> "tuple[Tensor, str]":
    """Return the mixing weights of a task, an average or one skill, and a description."""
    from mttl.merging.fold import average_mixing, skill_mixing, task_mixing

    router, run = built.model.router, f"`{options.run}`"
    if task is not None:
        return task_mixing(router, int(built.task_ids([task]))), f"The task `{task}` of {run}."
    if options.average:
        return average_mixing(router), f"The average of all skills of {run}."
    return skill_mixing(built.model.router, options.skill), f"Skill {options.skill} of {run}."


def accuracy(adapter: "Mapping[str, LowRank]") -> str:
    """Return a text on the truncation error: overall and the largest of a layer."""
    from mttl.merging.low_rank_factors import relative_error

    error = relative_error(list(adapter.values()))
    if not error:
        return EXACT
    errors = {path: relative_error([part]) for path, part in adapter.items()}
    worst = max(errors, key=errors.__getitem__)
    largest = f"largest {errors[worst]:.2e}, of {worst}"
    return f"relative error of the weight changes {error:.2e} ({largest})"
