"""Add sparse skills to a model, θ0 + φ1 + φ2 …, and save or score the composition.

mttl compose --model t5-small --skills french.safetensors task.safetensors --out models/composed
mttl compose --model t5-small --skills french.safetensors task.safetensors --score verb_past

FILE=WEIGHT scales a skill: task.safetensors=0.5. Files of other models are rejected with a list of
differences. The order of the skills has no effect. A task with a head is answered by that of a
skill; `--out` then also writes head_1.safetensors, a skill for the composed model.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mttl.commands.name_checks import gym_with
from mttl.commands.options import CommandParser, command
from mttl.commands.sparse import prompt_form, task_objective
from mttl.io.errors import CheckpointError, ConfigError, raised_as
from mttl.io.files import new_folder
from mttl.io.reading import require_file
from mttl.runtime.command import make_console, say
from mttl.runtime.processes import device_of
from mttl.runtime.progress_bar import counting
from mttl.tasks.folder import SPLITS, Gym

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers import PreTrainedTokenizerBase as Tokenizer

    from mttl.heads.task_heads import TaskHeads
    from mttl.sparse.skill_file import SparseSkill
    from mttl.tasks.head_form import HeadForm


def _declare(parser: CommandParser) -> None:
    parser.add_model()
    add = parser.read.add_argument
    help = "files of sparse skills"
    add("--skills", nargs="+", required=True, metavar="FILE[=WEIGHT]", help=help)
    add("--score", metavar="TASK", help="score the composed model on this task")
    add("--split", choices=SPLITS, default="test", help="split to score (%(default)s)")
    parser.add_out("folder of the composed model", probe=True, required=False)


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Compose the skills, then score or save the model."""
    if options.out is None and options.score is None:
        raise ConfigError("nothing to do; give --out, --score or both")
    skills = [read_weight(given) for given in options.skills]
    for path, _ in skills:
        require_file(path, CheckpointError)
    gym = None
    if options.score is not None:
        gym = gym_with(options.gym, [options.score], options.split, [options.sample])
    from mttl.merging.check_written import write_model
    from mttl.models.backbone import load_pretrained, load_tokenizer
    from mttl.sparse.composition import SparseComposition
    from mttl.sparse.skill_file import SparseSkill

    model = load_pretrained(options.model)
    tokenizer = load_tokenizer(options.tokenizer or options.model)
    composition, headed = SparseComposition(model), {}
    for path, weight in skills:
        skill = SparseSkill.load(path)
        composition.apply(str(path), skill, weight=weight)
        headed |= {str(path): skill} if skill.head else {}  # skills with a head
    if gym is not None:
        score(options, gym, model, tokenizer, headed)
    if options.out is not None:
        with new_folder(options.out) as folder:
            write_model(folder, model, tokenizer, probe=not options.no_probe)
            for number, skill in enumerate(headed.values(), 1):
                about = {"head": skill.about["head"]}
                SparseSkill({}, about, skill.head).save(folder / f"head_{number}.safetensors")
        say(f"The model is in {options.out}")


def read_weight(given: str) -> tuple[Path, float]:
    """Return the path and weight of ``FILE=WEIGHT``; the default weight is 1."""
    path, equals, weight = given.rpartition("=")
    if not equals:
        return Path(given), 1.0
    try:
        return Path(path), float(weight)
    except ValueError as error:
        raise ConfigError(f"--skills '{given}': '{weight}' is not a number") from error


def score(
    options: argparse.Namespace,
    gym: Gym,
    model: "PreTrainedModel",
    tokenizer: "Tokenizer",
    headed: "Mapping[str, SparseSkill]",
) -> None:
    """Answer a task and print its score; ``headed`` are the skills with a head."""
    from mttl.inference.predictor import answer_prompts
    from mttl.metrics.crossfit import score_answers
    from mttl.models.backbone import is_decoder_only

    task, split, decoder_only = options.score, options.split, is_decoder_only(model)
    rows, form = gym.rows(task, split, options.sample), prompt_form(options, gym, task)
    model.to(device_of())  # type: ignore[arg-type]
    heads = read_head(task, gym.head(task), model, headed)
    with counting(make_console(stderr=True), "answering", len(rows)) as count:
        if heads is not None:
            objective = task_objective(options, gym, task, split, model, tokenizer, heads)
            answers = objective.answers(model, count.advance)
        else:
            generate: Any = model.generate
            encoder = form.encoder(tokenizer, decoder_only=decoder_only)
            answers = answer_prompts(
                lambda _, **settings: generate(**settings),
                *(tokenizer, encoder.prompts([form.text(task, row.input) for row in rows])),
                decoder_only=decoder_only,
                device=model.device,
                on_rows=count.advance,
                max_new_tokens=options.max_output_length,
                do_sample=False,
            )
    metric = gym.metric(task)
    whole = [row.outputs for row in rows], [row.source for row in rows]
    value = 100 * score_answers(metric, answers, *whole)
    make_console().print(f"{task}, {split} rows: {metric} {value:.1f} % of {len(rows)}")


def read_head(
    task: str,
    form: "HeadForm | None",
    model: "PreTrainedModel",
    headed: "Mapping[str, SparseSkill]",
) -> "TaskHeads | None":
    """Return the head for a task from the only skill with one; None for generated answers."""
    from mttl.assembly.build_heads import build_heads
    from mttl.config.backbone_schema import Heads
    from mttl.io.record import check
    from mttl.sparse.skill_file import SkillHead

    if form is None:
        return build_heads({}, [task], Heads(), model)
    if len(headed) != 1:
        have = f"heads are in {', '.join(headed)}" if headed else "no skill has a head"
        raise ConfigError(f"--score {task} needs --skills with one head, but {have}")
    ((path, skill),) = headed.items()
    facts = check(SkillHead, skill.about.get("head"), f"'{path}', its head", CheckpointError)
    if facts.form.kind != form.kind:
        needs = f"--score {task} needs a head of the kind {form.kind}"
        raise ConfigError(f"{needs}, but that of '{path}' is of the kind {facts.form.kind}")
    heads: Any = build_heads({task: facts.form}, [task], facts.settings, model)
    with raised_as(CheckpointError, f"the head of '{path}' does not fit the model", RuntimeError):
        heads.load_state_dict(skill.head)
    return heads
