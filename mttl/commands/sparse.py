"""Train a sparse skill: lottery-ticket sparse fine-tuning of a language model.

mttl sparse --model t5-small --task verb_past --gym data/lexical --out verb_past.safetensors
mttl sparse --model bert-base-cased --text mine.txt --l1 0.1 --freeze-norms --out mine.safetensors
mttl compose --model t5-small --skills verb_past.safetensors --out models/composed

Training has two phases: all weights are trained, the entries that changed most are selected, the
weights are reset, and only these entries are trained. `--on` adds existing skills first, to train a
task on top of a language. After Ctrl-C, repeat the command with --resume.
"""

import argparse
import dataclasses
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from mttl.commands.name_checks import gym_with
from mttl.commands.options import CommandParser, command, positive
from mttl.io.errors import CheckpointError, ConfigError, nearest
from mttl.io.reading import read_text, require_file
from mttl.plugins.describe import sentences
from mttl.plugins.part_settings import OneOf
from mttl.runtime.command import make_console
from mttl.sparse.lottery_settings import LotterySettings
from mttl.tasks.folder import Gym

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

    from mttl.sparse.lottery_ticket import Objective

SETTINGS = dataclasses.fields(LotterySettings)


def _declare(parser: CommandParser) -> None:
    parser.add_model()
    read = parser.read
    what = read.add_mutually_exclusive_group(required=True)
    what.add_argument("--task", help="task to learn")
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
    try:
        settings = LotterySettings(**{one.name: getattr(options, one.name) for one in SETTINGS})
    except ValueError as error:
        name, _, rest = str(error).partition(" ")
        raise ConfigError(f"--{name.replace('_', '-')} {rest}") from error
    for path in options.text or ():
        require_file(path, ConfigError)
    for path in options.on:
        require_file(path, CheckpointError)
    gym = None
    if options.task is not None:
        gym = gym_with(options.gym, [options.task], "train", [options.sample])
    import torch

    from mttl.models.backbone import load_pretrained, load_tokenizer
    from mttl.sparse.composition import SparseComposition
    from mttl.sparse.loop import load_state, run_steps
    from mttl.sparse.lottery_ticket import LotteryTicket
    from mttl.sparse.skill_file import SparseSkill

    apart = ("out", "resume", "save_every", "arguments")
    about = {key: value for key, value in vars(options).items() if key not in apart}
    saved = load_state(state, about, resume=options.resume)
    torch.manual_seed(options.seed)
    model: torch.nn.Module = load_pretrained(options.model)
    tokenizer = load_tokenizer(options.tokenizer or options.model)
    objective = make_objective(options, gym, model, tokenizer)
    composition = SparseComposition(model)
    for path in options.on:
        composition.apply(path, SparseSkill.load(path))
    if torch.cuda.is_available():
        torch.nn.Module.cuda(model)
    maskable = maskable_names(model, freeze_norms=options.freeze_norms, freeze=options.freeze)
    ticket = LotteryTicket(model, maskable, objective, settings)
    if saved is not None:
        ticket.load_state_dict(saved)
    run_steps(ticket, state, about, make_console(stderr=True), save_every=options.save_every)
    skill = ticket.skill(about, originals=composition.originals)
    skill.save(out)
    state.unlink(missing_ok=True)
    share = 100 * skill.n_entries / sum(value.numel() for value in model.parameters())
    size = out.stat().st_size / 1024
    make_console().print(
        f"{skill.n_entries:,} entries in {len(skill.changes)} tensors, {share:.2f} % of the model; "
        f"{size:,.0f} KiB in {out}"
    )


def make_objective(
    options: argparse.Namespace,
    gym: Gym | None,
    model: "nn.Module",
    tokenizer: "PreTrainedTokenizerBase",
) -> "Objective":
    """Return the training objective."""
    from mttl.data.encode import TextEncoder
    from mttl.data.raw_text import InfilledSpans, MaskedTokens
    from mttl.models.backbone import is_decoder_only, is_encoder
    from mttl.sparse.objectives import TaskObjective, TextObjective

    both_ways, decoder_only = is_encoder(model), is_decoder_only(model)
    problems = {
        "--task needs a model that generates answers": both_ways and gym is not None,
        f"--model '{options.model}' has no trained output layer for masked tokens": both_ways
        and model.get_output_embeddings() is None,  # type: ignore[operator]
        "--mask is only for encoder–decoder models; remove it": options.mask is not None
        and gym is None
        and (decoder_only or both_ways),
    }
    if found := next((problem for problem, wrong in problems.items() if wrong), None):
        raise ConfigError(found)
    if gym is not None:
        encoder = TextEncoder(
            tokenizer,
            decoder_only=decoder_only,
            max_input_length=options.max_length,
            max_output_length=options.max_output_length,
        )
        prefix = f"[{options.task}] " if options.prefix else ""
        rows = gym.rows(options.task, "train", options.sample)
        return TaskObjective(encoder, [(prefix + row.input, row.outputs[0]) for row in rows])
    texts = [read_text(path, ConfigError) for path in options.text]
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    corruption = MaskedTokens(tokenizer) if both_ways else None
    if not (decoder_only or both_ways):
        corruption = InfilledSpans(tokenizer, options.mask)
    return TextObjective(tokenizer, lines, options.max_length, corruption)


def maskable_names(model: "nn.Module", *, freeze_norms: bool, freeze: list[str]) -> list[str]:
    """Return the trainable parameters: all except frozen norms and patterns."""
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
    left = [name for name in names if name not in frozen]
    if not left:
        raise ConfigError("--freeze matches all parameters; leave some to train")
    return left
