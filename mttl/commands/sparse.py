"""Train a sparse skill: lottery-ticket sparse fine-tuning of a language model.

mttl sparse --model t5-small --task verb_past --gym data/lexical --out verb_past.safetensors
mttl sparse --model bert-base-cased --text mine.txt --l1 0.1 --freeze-norms --out mine.safetensors
mttl compose --model t5-small --skills verb_past.safetensors --out models/composed
mttl sparse --model DIR --gym gym --task ner_fr --on fr.safetensors --out ner.safetensors
mttl sparse --model DIR --gym gym --task ner_fr=fr.safetensors ner_de=de.safetensors --out ner.…

Training has two phases: all weights are trained, the entries that changed most are selected, the
weights are reset, and only these entries are trained. `--on` adds existing skills first, to train a
task on top of a language. The head of a task (kind: tokens, label or tree) is trained densely, and
saved in the skill's file. After Ctrl-C, repeat the command with --resume.
"""

import argparse
import dataclasses
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from mttl.commands.name_checks import gym_with
from mttl.commands.options import CommandParser, command, positive
from mttl.io.errors import CheckpointError, ConfigError, TaskError, nearest, raised_as
from mttl.io.reading import read_text, require_file
from mttl.plugins.describe import sentences
from mttl.plugins.part_settings import OneOf
from mttl.runtime.command import make_console
from mttl.runtime.processes import device_of
from mttl.sparse.lottery_settings import LotterySettings
from mttl.tasks.folder import Gym

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

    from mttl.data.prompt_form import PromptForm
    from mttl.heads.task_heads import TaskHeads
    from mttl.sparse.objectives import TaskObjective, TextObjective
    from mttl.sparse.skill_file import SkillHead

SETTINGS = dataclasses.fields(LotterySettings)


def _declare(parser: CommandParser) -> None:
    parser.add_model()
    read = parser.read
    what = read.add_mutually_exclusive_group(required=True)
    help = "task to learn; several tasks each on top of their own skill"
    what.add_argument("--task", nargs="+", metavar="TASK[=FILE]", help=help)
    what.add_argument("--text", nargs="+", metavar="FILE", help="text files to learn, line by line")
    add = read.add_argument
    add("--mask", help="mask token of an encoder–decoder whose tokenizer has none")
    add("--on", nargs="+", default=[], metavar="FILE", help="sparse skills added before training")
    add = parser.work.add_argument
    for field in SETTINGS:
        text, default = sentences(LotterySettings)[field.name].rstrip("."), field.default
        add(
            f"--{field.name.replace('_', '-')}",
            default=default,
            type=float if default is None else type(default),
            choices=next((m.words for m in get_args(field.type) if isinstance(m, OneOf)), None),
            help=text[0].lower() + text[1:] + ("" if default is None else " (%(default)s)"),
        )
    add("--freeze-norms", action="store_true", help="do not train normalisation layers")
    help = "patterns of parameters that are not trained"
    add("--freeze", nargs="+", default=[], metavar="PATTERN", help=help)
    add = parser.written.add_argument
    add("--out", required=True, help="file of the skill to write")
    add("--save-every", type=positive, default=500, help="steps between checkpoints (%(default)s)")
    add("--resume", action="store_true", help="continue an interrupted training")


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Train in two phases, and write the skill."""
    out = Path(options.out)
    state = out.with_name(f"{out.name}.state")
    if out.exists() and not (options.resume and state.is_file()):
        raise ConfigError(f"'{out}' already exists; choose another --out or delete it")
    with raised_as(ConfigError, "", ValueError, text=lambda error: f"--{error}".replace("_", "-")):
        settings = LotterySettings(**{one.name: getattr(options, one.name) for one in SETTINGS})
    for path in options.text or ():
        require_file(path, ConfigError)
    tasks = [tuple(one.partition("=")[::2]) for one in options.task or ()]
    for path in [*options.on, *(path for _, path in tasks if path)]:
        require_file(path, CheckpointError)
    gym = None
    if tasks:
        gym = gym_with(options.gym, [task for task, _ in tasks], "train", [options.sample])
    import torch

    from mttl.io.record import as_row
    from mttl.models.backbone import load_pretrained, load_tokenizer
    from mttl.sparse.composition import SparseComposition
    from mttl.sparse.loop import load_state, run_steps
    from mttl.sparse.lottery_ticket import LotteryTicket
    from mttl.sparse.objectives import SourceTasks
    from mttl.sparse.skill_file import SparseSkill

    apart = ("out", "resume", "save_every", "arguments")
    about = {key: value for key, value in vars(options).items() if key not in apart}
    saved = load_state(state, about, resume=options.resume)
    torch.manual_seed(options.seed)
    model: Any = load_pretrained(options.model)
    model.to(device_of())
    tokenizer = load_tokenizer(options.tokenizer or options.model)
    facts, heads = new_head(gym, [task for task, _ in tasks], model) if gym else (None, None)
    composition = SparseComposition(model)
    for path in options.on:
        composition.apply(path, SparseSkill.load(path))
    if gym is None:
        objective = text_objective(options, model, tokenizer)
    else:
        parts = []
        for task, path in tasks:
            skill = SparseSkill.load(path) if path else SparseSkill({})
            composition.apply(path, skill)  # checks it
            composition.remove(path)
            own = task_objective(options, gym, task, "train", model, tokenizer, heads)
            parts.append((own, skill.changes))
        objective = SourceTasks(model, parts)
    maskable = maskable_names(model, freeze_norms=options.freeze_norms, freeze=options.freeze)
    ticket = LotteryTicket(model, maskable, objective, settings, heads)
    if saved is not None:
        ticket.load_state_dict(saved)
    run_steps(ticket, state, about, make_console(stderr=True), save_every=options.save_every)
    about |= {} if facts is None else {"head": as_row(facts)}
    skill = ticket.skill(about, originals=composition.originals)
    skill.save(out)
    state.unlink(missing_ok=True)
    share = 100 * skill.n_entries / sum(value.numel() for value in model.parameters())
    make_console().print(
        f"{skill.n_entries:,} entries in {len(skill.changes)} tensors, {share:.2f} % of the model; "
        f"{out.stat().st_size / 1024:,.0f} KiB in {out}"
    )


def new_head(
    gym: Gym, tasks: list[str], model: "nn.Module"
) -> "tuple[SkillHead | None, TaskHeads | None]":
    """Return a new head for all tasks; None if they generate their answers."""
    from mttl.assembly.build_heads import build_heads, task_heads
    from mttl.config.backbone_schema import Heads
    from mttl.models.backbone import freeze_unread
    from mttl.sparse.skill_file import SkillHead

    forms, settings = task_heads(gym, tasks), Heads()
    if not forms:
        return None, build_heads({}, tasks, settings, model)
    if len(kinds := {form.kind for form in forms.values()}) > 1:
        raise TaskError(f"--task: heads of the kinds {', '.join(sorted(kinds))}; use one kind")
    if "text" in kinds:
        raise TaskError(f"--task {tasks[0]} is raw text; give its file with --text FILE")
    labels = list(dict.fromkeys(label for form in forms.values() for label in form.labels))
    form = forms[tasks[0]].model_copy(update={"labels": labels})
    freeze_unread(model)
    return SkillHead(form=form, settings=settings), build_heads({"": form}, [""], settings, model)


def prompt_form(options: argparse.Namespace, gym: Gym, task: str) -> "PromptForm":
    """Return the form of a task's inputs and answers."""
    from mttl.data.prompt_form import PromptForm

    head = gym.head(task)
    return PromptForm(
        prefix="name" if options.prefix else "none",
        max_input_length=options.max_length,
        max_output_length=options.max_output_length,
        task_heads={} if head is None else {task: head},
    )


def task_objective(
    options: argparse.Namespace,
    gym: Gym,
    task: str,
    split: str,
    model: "nn.Module",
    tokenizer: "PreTrainedTokenizerBase",
    heads: "TaskHeads | None",
) -> "TaskObjective":
    """Return the training objective of the rows of a task."""
    from mttl.data.collate import TrainCollator, pad_id_of
    from mttl.data.headed import HeadedCollator
    from mttl.data.prepare import prepare
    from mttl.models.backbone import is_decoder_only
    from mttl.sparse.objectives import TaskObjective

    form, decoder_only = prompt_form(options, gym, task), is_decoder_only(model)
    given = gym, [task], split, [options.sample], tokenizer
    rows, pad_id = prepare(*given, decoder_only=decoder_only, form=form), pad_id_of(tokenizer)
    collate = HeadedCollator(pad_id) if heads else TrainCollator(pad_id, decoder_only)
    return TaskObjective(rows, collate, heads)


def text_objective(
    options: argparse.Namespace, model: "nn.Module", tokenizer: "PreTrainedTokenizerBase"
) -> "TextObjective":
    """Return the training objective of raw text."""
    from mttl.data.raw_text import InfilledSpans, MaskedTokens
    from mttl.models.backbone import is_decoder_only, is_encoder
    from mttl.sparse.objectives import TextObjective

    both_ways, decoder_only = is_encoder(model), is_decoder_only(model)
    if both_ways and model.get_output_embeddings() is None:  # type: ignore[operator]
        problem = "has no trained output layer for masked tokens"
        raise ConfigError(f"--model '{options.model}' {problem}")
    if options.mask is not None and (decoder_only or both_ways):
        raise ConfigError("--mask is only for encoder–decoder models; remove it")
    texts = [read_text(path, ConfigError) for path in options.text]
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    corruption = MaskedTokens(tokenizer) if both_ways else None
    if not (decoder_only or both_ways):
        corruption = InfilledSpans(tokenizer, options.mask)
    return TextObjective(tokenizer, lines, options.max_length, corruption)


def maskable_names(model: "nn.Module", *, freeze_norms: bool, freeze: list[str]) -> list[str]:
    """Return the parameters to train: all except unread ones, frozen norms and patterns."""
    names = [name for name, _ in model.named_parameters()]
    frozen: set[str] = set()
    if freeze_norms:
        kinds = {path: type(module).__name__ for path, module in model.named_modules()}
        frozen |= {name for name in names if kinds[name.rpartition(".")[0]].endswith("Norm")}
    for pattern in freeze:
        found = {name for name in names if fnmatchcase(name, pattern)}
        if not found:
            raise ConfigError(
                f"--freeze '{pattern}' matches no parameter.{nearest(pattern, names)}"
            )
        frozen |= found
    read = {name for name, value in model.named_parameters() if value.requires_grad}
    left = [name for name in names if name in read - frozen]
    if not left:
        raise ConfigError("--freeze matches all parameters; leave some to train")
    return left
