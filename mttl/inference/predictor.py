"""A trained model with its prompt form and generation settings, for answering texts.

Evaluation, adapted models and commands use the same form, so the same input has the same answer
everywhere.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, Self, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mttl.data.collate import pad_id_of, padded_inputs
from mttl.data.encode import PromptPrefix, TextEncoder, tokenizer_identity
from mttl.data.headed import HeadedCollator, HeadedEncoder
from mttl.data.prompt_form import PromptForm
from mttl.heads.task_heads import TaskHeads
from mttl.inference.logit_sum import AddedLogits, LogitSum
from mttl.inference.mixture_name import LOGITS, is_combined, shares_of
from mttl.inference.option_scores import option_scores
from mttl.inference.read_prompts import Ids
from mttl.inference.reranking import asked_about
from mttl.inference.task_options import OptionChoice, check_choices, choice_ids
from mttl.io.errors import TaskError, nearest, raised_as, require_positive
from mttl.models.backbone import is_decoder_only
from mttl.models.generation import generate_texts
from mttl.models.headed import headed_answers
from mttl.routing.task.fixed import GivenRows
from mttl.skills.attention import AttendedInventory
from mttl.skills.skilled_model import SkilledModel
from mttl.tasks.control import Codes
from mttl.tasks.template import Record

# Data types of answers by the precision of training. Weights that were trained in half or double
# precision are loaded in single precision.
MIXED = {"16-mixed": torch.half, "bf16-mixed": torch.bfloat16}


def in_batches(
    lengths: Sequence[int],
    batch_size: int,
    work: Callable[[list[int]], Iterable[Any]],
    on_rows: Callable[[int], object] = lambda n: None,
) -> list[Any]:
    """Return what ``work`` returns for each row, given batches of rows with similar length.

    ``on_rows`` is called with the size of every finished batch.
    """
    order, found = sorted(range(len(lengths)), key=lengths.__getitem__), dict[int, Any]()
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        found |= zip(rows, work(rows), strict=True)
        on_rows(len(rows))
    return [found[row] for row in range(len(lengths))]


def _of_each(what: str, given: Any, texts: Sequence[object], *, shared: bool) -> list[Any]:
    found = [given] * len(texts) if shared else list(given)
    if len(found) != len(texts):
        raise TaskError(
            f"there are {len(found)} {what} and {len(texts)} texts; give one for all texts, or one "
            "for each"
        )
    return found


@torch.no_grad()
def answer_prompts(
    generate: Callable[..., Tensor],
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Ids],
    *,
    decoder_only: bool,
    device: torch.device,
    batch_size: int = 64,
    on_rows: Callable[[int], object] = lambda n: None,
    **settings: Any,
) -> list[str]:
    """Return a generated answer to every prompt, in order and stripped.

    ``generate`` receives the indices of a batch's rows and the arguments of a model's ``generate``,
    including ``settings``. With ``num_return_sequences=n``, each prompt has n consecutive answers.
    Batches are those of `in_batches`.
    """

    def answered(rows: list[int]) -> Iterable[Sequence[str]]:
        asked = [prompts[row] for row in rows]
        batch = padded_inputs(asked, pad_id_of(tokenizer), left=decoder_only)
        found = generate_texts(
            partial(generate, rows),
            tokenizer,
            {name: value.to(device) for name, value in batch.items()},
            decoder_only=decoder_only,
            **settings,
        )
        n = settings.get("num_return_sequences", 1)
        return [found[i : i + n] for i in range(0, len(found), n)]

    return [*chain(*in_batches([*map(len, prompts)], batch_size, answered, on_rows))]


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """A model that answers texts of its tasks.

    Attributes:
        model: Backbone, skills and router.
        tokenizer: Tokenizer of the backbone.
        tasks: Task names in the order of their ids.
        form: Format of inputs in training, and maximum length of answers.
        search: Generation settings, from `mttl.models.generation.search_settings`.
        per_token: Rank answers by the mean instead of the sum over their tokens.
        mixed: Data type of mixed precision, of `MIXED`; by default precision is single.
        weight: Weight of the logits, if those of other tasks are added (`with_logits`).
        added: Models, their tasks and weights whose logits are added.
    """

    model: SkilledModel
    tokenizer: PreTrainedTokenizerBase
    tasks: tuple[str, ...]
    form: PromptForm
    search: Mapping[str, Any]
    per_token: bool = True
    mixed: torch.dtype | None = None
    weight: float = 1.0
    added: tuple[tuple["Predictor", str, float], ...] = ()

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context of the run's precision."""
        return torch.autocast(self.device.type, self.mixed) if self.mixed else nullcontext()

    def task_ids(self, names: Sequence[str]) -> torch.Tensor:
        """Return the ids of tasks by name, shape (B,).

        Raises:
            TaskError: If a name is unknown.
        """
        for name in names:
            if name not in self.tasks:
                raise TaskError(f"the model has no task '{name}'.{nearest(name, self.tasks)}")
        return torch.tensor([self.tasks.index(name) for name in names], dtype=torch.long)

    def mixture(self, shares: Mapping[str, float]) -> Self:
        """Return a model whose only task has the mean of several tasks' routing weights.

        The task with the largest share determines the form of inputs, the ranked options and the
        head. Shares are divided by their sum.

        Raises:
            TaskError: If a task is unknown, a share is negative or all are 0, or the model has no
                routing weights of tasks.
        """
        total = math.fsum(shares.values()) if shares else 0.0
        if not (0 < total < math.inf and min(shares.values()) >= 0):
            raise TaskError(f"shares of tasks ({shares}) must be at least 0, with one above 0")
        if self.unmixed:
            raise TaskError(f"{self.unmixed} Name one task")
        with torch.no_grad():
            rows = self.model.eval().router.mix(self.task_ids([*shares]).to(self.device))
        parts = rows.new_tensor([share / total for share in shares.values()])
        row = torch.einsum("gbhk,b->ghk", rows, parts).unsqueeze(1)
        first = max(shares, key=lambda task: shares[task])
        model = self.model.with_router(GivenRows(row))
        if model.heads is not None:
            model.heads = TaskHeads([model.heads.of_task[self.tasks.index(first)]])
        return replace(self, model=model, tasks=(first,))

    def with_logits(self, *added: tuple["Predictor", str, float], weight: float = 1.0) -> Self:
        """Return a model that adds the logits of other tasks to its own in generation.

        Each task reads records with its own template and prefix, or the same text with its prefix.
        The model's task determines the search; its settings that change scores, such as
        ``repetition_penalty``, change only its own. See `mttl.inference.logit_sum`.

        Args:
            *added: A model, its task and the weight of its logits, which may be negative.
            weight: Weight of the model's own logits.

        Raises:
            TaskError: If a task is unknown, has a head or another vocabulary or end of answers.
            ValueError: If the weight is not above 0.
        """
        require_positive(weight=weight)
        own = tokenizer_identity(self.tokenizer), self.encoder.answers([""])
        for run, task, _ in added:
            run.task_ids([task])
            theirs = tokenizer_identity(run.tokenizer), run.encoder.answers([""])
            if theirs != own or run.form.task_heads or self.form.task_heads:
                raise TaskError(
                    f"the logits of '{task}' cannot be added: its model has another tokenizer, "
                    "ends answers differently, or does not generate them; combine models with one "
                    "tokenizer and template"
                )
        return replace(self, weight=weight, added=added)

    @property
    def unmixed(self) -> str:
        """Reason why routing weights of tasks cannot be mixed; empty if they can."""
        layers, reason = self.model.skilled_layers().values(), ""
        if not self.model.router.n_groups:
            reason = "The run routes only tokens"
        elif self.model.router.reads_text:
            reason = "The router reads every prompt"
        elif any(isinstance(layer.inventory, AttendedInventory) for layer in layers):
            reason = "Tokens attend to the skills"
        return reason and f"{reason}, so tasks have no routing weights to mix."

    def predict(
        self,
        tasks: str | Mapping[str, float] | Sequence[str],
        texts: Sequence[str | Record],
        *,
        control: Codes | list[Codes | None] | None = None,
        batch_size: int = 64,
        on_rows: Callable[[int], object] = lambda n: None,
        candidates: int = 1,
        rerank: Mapping[str, float] | None = None,
        **search: Any,
    ) -> list[str]:
        """Return answers to texts, as in evaluation; the model is left in evaluation mode.

        Tasks with ranked options choose among these, unless generation settings are given.

        Args:
            tasks: Task of all texts, a task for each, or a `mixture` such as ``{"a": 0.7, "b":
                0.3}`` or ``"mix:a=0.7,b=0.3"`` for all. ``"logits:a=1,b=-0.5"`` adds logits
                (`with_logits`).
            texts: Inputs without the task prefix, or records with the columns of the task's file.
            control: Codes by metric of a controlled task, such as ``{"knowledge_f1": 1}``, or a
                list with those of each text; by default those in the column ``control`` of
                records, or the highest.
            batch_size: Texts per batch.
            on_rows: Function called after each batch with its size.
            candidates: Answers generated for each text, of which the most probable is returned.
                They are beams, or samples with ``do_sample=True``.
            rerank: Weights of further tasks in choosing the answer; needs records. See
                `mttl.inference.reranking`.
            **search: Arguments of ``generate`` of transformers that override the run's settings:
                ``num_beams=4``, ``do_sample=True, temperature=0.7``, ``max_new_tokens=200``.

        Returns:
            One answer per text, in order, stripped.

        Raises:
            TaskError: If a task is unknown or raw text, their number differs from that of texts, or
                a record does not have the columns of the task.
            TypeError: If ``texts`` is a single text or record instead of a list.
            ValueError: If several answers per text are requested.
        """
        if search.get("num_return_sequences", 1) != 1:
            n = search["num_return_sequences"]
            raise ValueError(f"num_return_sequences ({n}) must be 1: each text has one answer")
        run, tasks = self._combined(tasks)
        run.task_ids([*(rerank or ())])
        ranks = candidates > 1
        names, inputs, prefixes, task_ids = run._asked(tasks, texts, control, ranks=ranks)
        if not names:
            return []
        if run.model.heads is not None:
            rows = [row for row, _ in run.headed_rows(names, inputs)]
            return run.from_heads(rows, batch_size=batch_size, on_rows=on_rows)
        options = {} if search or run.added or ranks else run.form.task_options
        known = {name: run.choice_ids(options[name], name) for name in {*names} & {*options}}
        prompts, found = run.prompts(inputs, prefixes), dict[int, str]()
        if ranked := [place for place, name in enumerate(names) if name in known]:
            ids = [known[names[place]] for place in ranked]
            how = {"per_token": run.per_token, "batch_size": batch_size}
            chosen = run.choose_encoded(task_ids[ranked], [prompts[p] for p in ranked], ids, **how)
            found = {place: own.answer for place, own in zip(ranked, chosen, strict=True)}
            on_rows(len(ranked))
        if rest := [place for place in range(len(names)) if place not in found]:
            run.model.eval()
            added, settings = run._added_prompts(texts, inputs), {**run.search, **search}
            if ranks:  # `rest` are all rows
                settings["num_return_sequences"] = candidates
                if settings["num_beams"] > 1 or not settings.get("do_sample"):
                    settings["num_beams"] = max(settings["num_beams"], candidates)
            answers = answer_prompts(
                lambda rows, **inputs: run.generate(
                    task_ids[rest][rows],
                    added=[[prompts[row] for row in rows] for prompts in added],
                    **inputs,
                ),
                *(run.tokenizer, [prompts[place] for place in rest]),
                decoder_only=run.decoder_only,
                device=run.device,
                batch_size=batch_size,
                on_rows=on_rows,
                **settings,
            )
            if ranks:
                each = [answers[i : i + candidates] for i in range(0, len(answers), candidates)]
                given = task_ids, prompts
                answers = run._best(names, texts, given, each, rerank or {}, batch_size)
            found |= zip(rest, answers, strict=True)
        return [found[place] for place in range(len(names))]

    def headed_rows(
        self, tasks: Sequence[str], texts: Sequence[str]
    ) -> list[tuple[dict[str, Any], int]]:
        """Return an encoded input for the head of each task, and the number of ids cut."""
        encoder = HeadedEncoder(self.tokenizer, self.form.max_input_length)
        rows = []
        for task, text in zip(tasks, texts, strict=True):
            head, prefix = self.form.task_heads[task], self.form.prompt_prefix(task)
            row, n_cut = encoder.encode(head, text.strip(), prefix)
            own = {"task_id": self.tasks.index(task), "references": []}
            rows.append((row._asdict() | own, n_cut))
        return rows

    def from_heads(
        self,
        rows: Sequence[Mapping[str, Any]],
        *,
        scored: bool = False,
        batch_size: int = 64,
        on_rows: Callable[[int], object] = lambda n: None,
    ) -> list[Any]:
        """Return the answers to `headed_rows`, or their parts with scores (`Head.scored`)."""
        collate = HeadedCollator(pad_id_of(self.tokenizer))
        self.model.eval()

        def answered(places: list[int]) -> list[Any]:
            batch = collate([rows[place] for place in places])
            inputs = {k: v.to(self.device) if torch.is_tensor(v) else v for k, v in batch.items()}
            with self.autocast():
                return headed_answers(self.model, inputs["task_ids"], inputs, scored=scored)

        return in_batches([len(row["input_ids"]) for row in rows], batch_size, answered, on_rows)

    def generate(
        self, task_ids: torch.Tensor, *, added: Sequence[Sequence[Ids]] = (), **inputs: Any
    ) -> torch.Tensor:
        """Generate ids in the run's precision, like ``generate`` of transformers.

        ``added`` are the prompts of each of the tasks whose logits are added.
        """
        if added:
            parts = [
                AddedLogits(run, int(run.task_ids([task])), weight, prompts)
                for (run, task, weight), prompts in zip(self.added, added, strict=True)
            ]
            start = inputs["input_ids"].shape[1] if self.decoder_only else 1
            summed = LogitSum(self.weight, parts, start)
            inputs["logits_processor"] = [summed, *inputs.get("logits_processor", ())]
        with self.autocast():
            return self.model.generate(task_ids, **inputs)

    def choose(
        self,
        tasks: str | Mapping[str, float] | Sequence[str],
        texts: Sequence[str | Record],
        choices: Sequence[str] | Sequence[Sequence[str]],
        *,
        control: Codes | list[Codes | None] | None = None,
        per_token: bool = False,
        batch_size: int = 64,
        on_rows: Callable[[int], object] = lambda n: None,
    ) -> list[OptionChoice]:
        """Choose among given answers by likelihood; see `mttl.inference.task_options`.

        Args:
            tasks: Task of all texts, a task for each, or a `mixture` for all.
            texts: Inputs, or records.
            choices: Answers for all texts, or a list for each text.
            control: Codes, as for `predict`.
            per_token: Rank by means instead of sums over an answer's tokens.
            batch_size: Answers per batch.
            on_rows: Function called with the number of scored answers.

        Raises:
            TaskError: If a task is unknown, the numbers differ, or a text has less than two
                different choices after truncation to the answer length of training.
        """
        run, tasks = self._combined(tasks)
        how = {"per_token": per_token, "batch_size": batch_size, "on_rows": on_rows}
        _, inputs, prefixes, task_ids = run._asked(tasks, texts, control, ranks=True)
        if isinstance(choices, str):
            raise TypeError(f"choices ('{choices}') must be a list of answers, such as ['a', 'b']")
        shared = all(isinstance(choice, str) for choice in choices)
        of_each = _of_each("lists of choices", choices, texts, shared=shared)
        first = {tuple(own): place for place, own in reversed([*enumerate(of_each, 1)])}
        pairs = reversed(first.items())
        known = {own: run.choice_ids(own, f"text {place}") for own, place in pairs}
        ids = [known[tuple(own)] for own in of_each]
        if not ids:
            return []
        return run.choose_encoded(task_ids, run.prompts(inputs, prefixes), ids, **how)

    def choose_encoded(
        self,
        task_ids: torch.Tensor,
        prompts: Sequence[Sequence[int]],
        ids: Sequence[Mapping[str, Sequence[int]]],
        **how: Any,
    ) -> list[OptionChoice]:
        """Choose as `choose` does, given encoded prompts, and the `choice_ids` of each.

        ``how`` has further arguments of `option_scores`.
        """
        scores = self.option_scores(task_ids, prompts, [list(o.values()) for o in ids], **how)
        return [
            OptionChoice.among(dict(zip(own, values, strict=True)))
            for own, values in zip(ids, scores, strict=True)
        ]

    def option_scores(
        self,
        task_ids: torch.Tensor,
        prompts: Sequence[Ids],
        ids: Sequence[Sequence[Ids]],
        *,
        per_token: bool = False,
        batch_size: int = 64,
        on_rows: Callable[[int], object] = lambda n: None,
    ) -> list[list[float]]:
        """Return the log-probability of each answer to each prompt, in the run's precision.

        Arguments are those of `mttl.inference.option_scores.option_scores`, and of `choose`.
        """
        self.model.eval()

        def scored(rows: list[int]) -> list[list[float]]:
            own = [prompts[row] for row in rows], [ids[row] for row in rows]
            how = {"pad_id": pad_id_of(self.tokenizer), "per_token": per_token}
            with self.autocast():
                found = option_scores(self.model, task_ids[rows], *own, **how)
            on_rows(sum(map(len, found)))
            return found

        return in_batches([*map(len, prompts)], max(1, batch_size // max(map(len, ids))), scored)

    def choice_ids(self, choices: Sequence[str], place: str) -> dict[str, list[int]]:
        """Return the ids of choices, truncated as in training.

        Raises:
            TaskError: If there are less than two, or two are identical after truncation.
        """
        answers = check_choices(choices, place)
        ids = choice_ids(self.encoder, answers, f"{place}: choices", "shorten them")
        return dict(zip(answers, ids, strict=True))

    def pipeline(self, task: str | Mapping[str, float]) -> Callable[..., Any]:
        """Return a function of one or several texts or records, with options of `predict`.

        Args:
            task: Task, or several as for `predict`.

        Raises:
            TaskError: If the task is unknown.
        """
        model, name = self._combined(task)
        model.task_ids([name])

        def answer(texts: str | Record | Sequence[str | Record], **options: Any) -> str | list[str]:
            one = isinstance(texts, str | Mapping)
            answers = model.predict(name, [texts] if one else texts, **options)
            return answers[0] if one else answers

        return answer

    def _combined(self, tasks: Any) -> tuple[Self, Any]:
        """Return the model of a mixture or sum, and the task to give it."""
        if isinstance(tasks, Mapping):
            model = self.mixture(tasks)
            return model, model.tasks[0]
        if isinstance(tasks, str) and is_combined(tasks):
            return combined(tasks, lambda task: (self, task))
        return self, tasks

    def prompts(self, inputs: Sequence[str], prefixes: Sequence[PromptPrefix]) -> list[list[int]]:
        """Return the ids of inputs after their prefixes."""
        pairs = zip(inputs, prefixes, strict=True)
        return self.encoder.prompts([own.text + text for text, own in pairs], prefixes)

    def _added_prompts(
        self, given: Sequence[str | Record], inputs: Sequence[str]
    ) -> list[list[list[int]]]:
        """Return the prompts of the added tasks, from their templates where they have any."""
        found = []
        for run, task, _ in self.added:
            own = [
                run.form.filled(task, text, f"text {number}")
                if isinstance(text, Mapping) and task in run.form.task_templates
                else input
                for number, (text, input) in enumerate(zip(given, inputs, strict=True), 1)
            ]
            found.append(run.prompts(own, [run.form.prompt_prefix(task)] * len(own)))
        return found

    def _best(
        self,
        tasks: Sequence[str],
        records: Sequence[str | Record],
        given: tuple[torch.Tensor, Sequence[Ids]],
        candidates: Sequence[Sequence[str]],
        weights: Mapping[str, float],
        batch_size: int,
    ) -> list[str]:
        """Return each row's best candidate (`reranking`), ``given`` ids of tasks and prompts."""
        rows = [list(dict.fromkeys(filter(None, own))) or [""] for own in candidates]
        ids = [self.encoder.answers(own) for own in rows]
        totals = self.option_scores(*given, ids, batch_size=batch_size)
        for task, weight in weights.items():
            pairs = asked_about(self.form, task, tasks, records, rows)
            prefixes = [self.form.prompt_prefix(task)] * len(pairs)
            prompts = self.prompts([text for text, _ in pairs], prefixes)
            ids = [[own] for own in self.encoder.answers([answer for _, answer in pairs])]
            own_ids = self.task_ids([task] * len(pairs)).to(self.device)
            scores = iter(self.option_scores(own_ids, prompts, ids, batch_size=batch_size))
            totals = [[total + weight * next(scores)[0] for total in own] for own in totals]
        return [own[total.index(max(total))] for own, total in zip(rows, totals, strict=True)]

    def _asked(
        self, tasks: Any, texts: Sequence[str | Record], control: Any, *, ranks: bool
    ) -> tuple[list[str], list[str], list[PromptPrefix], torch.Tensor]:
        """Return tasks, inputs and prefixes of texts or records, and the ids of the tasks."""
        if isinstance(texts, str | Mapping):
            raise TypeError(
                f"texts ({texts!r}) must be a list of texts or records; write [{texts!r}]"
            )
        for number, text in enumerate(texts, 1):
            if not isinstance(text, str | Mapping):
                raise TypeError(f"text {number} ({text!r}) must be a text or a record")
        names = _of_each("tasks", tasks, texts, shared=isinstance(tasks, str))
        codes = _of_each("codes", control, texts, shared=not isinstance(control, list))
        if ranks and self.added:
            raise TaskError("a sum of logits generates answers and cannot rank any; name one task")
        if raw := self.form.texts:
            raise TaskError(f"'{raw[0]}' is raw text without answers; merge or export its skills")
        task_ids = self.task_ids(names).to(self.device)
        inputs, prefixes = [], []
        for number, (name, text, given) in enumerate(zip(names, texts, codes, strict=True), 1):
            place, record = f"text {number}", {} if isinstance(text, str) else text
            filled = text if isinstance(text, str) else self.form.filled(name, text, place)
            inputs.append(filled.strip())
            with raised_as(TaskError, place, TaskError):
                own = self.form.codes_in(name, record) if given is None else given
                prefixes.append(self.form.prompt_prefix(name, own))
        return names, inputs, prefixes, task_ids

    @cached_property
    def encoder(self) -> TextEncoder:
        """Encoder of inputs and answers, as in training."""
        return self.form.encoder(self.tokenizer, decoder_only=self.decoder_only)

    @property
    def decoder_only(self) -> bool:
        """True for a decoder-only backbone."""
        return is_decoder_only(self.model.backbone)

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next(self.model.parameters()).device


Model = TypeVar("Model", bound=Predictor)


def combined(name: str, find: Callable[[str], tuple[Model, str]]) -> tuple[Model, str]:
    """Return the model of a mixture or a sum of logits by its name, and the task to give it.

    ``find`` returns the model of a task in the name, and the task's name there. Raises a
    `TaskError` if the name is malformed or the tasks cannot be combined.
    """
    parts = [(*find(task), weight) for task, weight in shares_of(name).items()]
    run, task, weight = parts[0]
    if name.startswith(LOGITS):
        return run.with_logits(*parts[1:], weight=weight), task
    if any(other is not run for other, *_ in parts):
        raise TaskError("tasks of different models cannot be mixed")
    mixed = run.mixture({own: share for _, own, share in parts})
    return mixed, mixed.tasks[0]
