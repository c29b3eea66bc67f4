"""One job: its settings, its start, what it reads, and seeds."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import PreTrainedTokenizerBase

import mttl.adaptation.job as job_file
from helpers.gyms import TINY_T5, write_gym
from helpers.modes import adapted
from helpers.skills import skilled, spread
from mttl.adaptation.fine_tune import best_task
from mttl.adaptation.job import JobRun, job_config
from mttl.adaptation.modes import row_starts
from mttl.adaptation.plan import FewShotJob, FewShotResult
from mttl.config.load import load_config, with_settings
from mttl.config.schema import Config
from mttl.data.data_module import TextToTextDataModule
from mttl.io.errors import ConfigError, MttlError
from mttl.io.record import as_row, check
from mttl.models.backbone import build_random, load_tokenizer
from mttl.routing.task.c_poly import CPolyRouter
from mttl.routing.task.fixed import AverageRouter, PrivateRouter, SharedRouter
from mttl.routing.task.polytropon import PolytroponRouter
from mttl.routing.task.prompt_router import SmearRouter
from mttl.skills.skilled_model import SkilledModel
from mttl.tasks.folder import Gym
from mttl.training.text_to_text import TextToTextModule

SETTINGS = job_config(
    load_config(
        "crossfit.yaml",
        [
            *("adapt.lr=1e-2", "adapt.router_lr=1e-2", "adapt.max_steps=2", "adapt.eval_every=1"),
            *("adapt.batch_size=5", "data.eval_batch_size=8"),
        ],
    ),
    {"prefix": "name", "descriptions": False, "max_input_length": 24, "max_output_length": 4},
)
JOB = FewShotJob("copy", 100, 13)


def settings(**adapt: object) -> Config:
    """Return the settings with others in the section adapt."""
    return SETTINGS.model_copy(update={"adapt": SETTINGS.adapt.model_copy(update=adapt)})


def built(n_tasks: int = 3) -> tuple[SkilledModel, PreTrainedTokenizerBase]:
    model = skilled(build_random("t5", TINY_T5["config"]), n_tasks=n_tasks)
    return model, load_tokenizer("byte")


@pytest.fixture
def gym(tmp_path: Path) -> Gym:
    return Gym(write_gym(tmp_path))


def test_a_job_without_test_rows_is_the_same_job_without_its_test_score(gym: Gym) -> None:
    own, state = built(), torch.get_rng_state()
    whole = JobRun(*own, JOB, gym, SETTINGS).run().result
    (gym.directory / "copy" / "copy_16_100_test.tsv").unlink()
    blind = JobRun(*own, JOB, Gym(gym.directory), SETTINGS).run(score_test=False).result
    assert torch.equal(torch.get_rng_state(), state)
    assert math.isnan(blind.test)
    assert as_row(blind)["test"] is None
    assert (whole.n_answers, blind.n_answers) == (3, 5)  # rows of test, rows of dev
    assert (blind.dev, blind.step, blind.n_trained) == (whole.dev, whole.step, whole.n_trained)


def test_the_digest_is_of_the_rows_before_the_job(gym: Gym) -> None:
    before, path = gym.digest("copy", 100), gym.file("copy", "train", 100)
    changed = path.read_text() + "copy: z\tz\n"
    found = JobRun(*built(), JOB, gym, SETTINGS).run(on_step=lambda: path.write_text(changed))
    assert found.result.rows == before != gym.digest("copy", 100)


@pytest.mark.parametrize("examples", [None, 0, 1, 4])
def test_as_many_rows_are_read_as_examples_are_given(examples, gym, monkeypatch) -> None:
    read: dict[str, list[int]] = {"train": [], "dev": []}

    def listing(module: object, training: Any, development: Any, **more: Any) -> tuple:
        for split, batches in (("train", training), ("dev", development)):
            read[split] = [row for batch in batches for row in batch["task_ids"]]
        return 0, 0.5, []

    monkeypatch.setattr(job_file, "fine_tune", listing)
    result = JobRun(*built(), JOB, gym, settings(examples=examples)).run().result
    expected = (16, 5) if examples is None else (examples, examples)
    assert (len(read["train"]), len(read["dev"])) == expected
    assert math.isnan(result.dev) == (examples == 0)
    assert result.n_answers == 3  # all rows of the test


def test_as_many_rows_as_fit_stand_before_a_question(gym: Gym) -> None:
    model, tokenizer = built()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rows = [(row.input, row.outputs[0]) for row in gym.rows("copy", "train", 100)]
    shown = []
    for length, seed in ((128, 13), (128, 14), (96, 13), (1024, 13)):
        config = settings(mode="in_context", context_length=length)
        run = JobRun(model, tokenizer, replace(JOB, seed=seed), gym, config)
        outcome = run.run()
        assert (outcome.result.n_trained, outcome.result.step) == (0, 0)
        examples = run.form.task_examples["copy"]
        shown.append(examples)
        text = "".join(f"{question}\n{answer}\n\n" for question, answer in examples)
        assert all(answer.input.startswith(text) for answer in outcome.answers["test"])
        assert {(asked.removeprefix("[copy] "), answer) for asked, answer in examples} <= {*rows}
        # Byte by byte, and an end token: another example would not leave room for a question.
        room = length - config.data.max_input_length
        longest = max(len(f"[copy] {question}\n{answer}\n\n") for question, answer in rows)
        assert room - longest < len(text) + len("[copy] ") + 1 <= room or len(examples) == 16
    assert [len(examples) for examples in shown[2:]] == [len(shown[2]), 16]
    assert shown[0][: len(shown[2])] == shown[2]
    assert shown[0] != shown[1]
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    with pytest.raises(ConfigError, match=r"context_length \(30\) has no room for an example"):
        JobRun(model, tokenizer, JOB, gym, settings(mode="in_context", context_length=30))
    model.backbone.config.max_position_embeddings = 100
    with pytest.raises(ConfigError, match=r"context_length \(101\) must be at most 100, the b"):
        JobRun(model, tokenizer, JOB, gym, settings(mode="in_context", context_length=101))


def test_examples_are_shown_as_rows_with_descriptions(gym: Gym) -> None:
    gym.table.write_text("task,metric,description\ncopy,EM,Copy it.\n")
    config = settings(mode="in_context")
    data = config.data.model_copy(update={"descriptions": True})
    own = Gym(gym.directory)
    run = JobRun(*built(), JOB, own, config.model_copy(update={"data": data}))
    texts = [answer.input for answer in run.run().answers["test"]]
    assert all(text.count("[copy] Copy it. ") == 17 for text in texts)  # 16 rows and the question


def test_empty_answers_are_counted_where_the_test_is_not_scored(gym, monkeypatch) -> None:
    own = built()
    monkeypatch.setattr(own[1], "batch_decode", lambda rows, **more: [""] * len(rows))
    blind = JobRun(*own, JOB, gym, SETTINGS).run(score_test=False).result
    assert (blind.n_empty, blind.n_answers) == (5, 5)


def test_rates_come_from_adapt_the_optimizer_from_optim_and_others_by_name() -> None:
    config = load_config("crossfit.yaml", ["adapt.lr=3e-3", "optim.label_smoothing=0.1"])
    found, optim = job_config(config, {"prefix": "none"}), config.optim
    rates = {"lr": 3e-3, "backbone_lr": 3e-3, "router_lr": 0.1}
    assert found.optim.model_dump() == found.optim.model_dump() | rates
    assert (found.optim.betas, found.optim.label_smoothing) == (optim.betas, 0.1)
    assert (optim.betas, found.data.prefix) == ([0.9, 0.98], "none")
    changed = with_settings(config, {"adapt.lr": 0.5, "data.dir": "elsewhere"})
    assert (changed.adapt.lr, changed.data.dir) == (0.5, "elsewhere")
    assert config.adapt.lr != 0.5
    assert with_settings(config, {}) == config
    mixed = with_settings(config, {"trainer.precision": "bf16-mixed"})
    assert job_config(mixed, {}).trainer.precision == "bf16-mixed"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"adapt.rl": 1}, "adapt.rl: section 'adapt' has no setting 'rl'. Did you mean 'lr'"),
        ({"adapt.gradient_free": True}, "gradient_free trains coefficients only: it needs mode"),
        ({"adapt.mode": "average", "adapt.init": "coefficients"}, "' has no effect; use mode"),
        ({"adapt.mode": "from_scratch", "adapt.init": "factors"}, "init 'factors' has no effect"),
        ({"adapt.init": "best_coefficients", "adapt.examples": 0}, "' needs examples of the new"),
        ({"adapt.init": "private_skill", "adapt.mode": "zero_shot"}, "'zero_shot' does not train"),
        ({"adapt.init": "expert_row", "adapt.mode": "average"}, "mode 'average' uses equal"),
        ({"adapt.unlikelihood": 1, "adapt.mode": "zero_shot"}, "unlikelihood and"),
        ({"adapt.unlikelihood": 1, "adapt.examples": 0}, "unlikelihood and length_normalised need"),
        ({"generation.mode": "rank", "generation.num_beams": 2}, "num_beams (2) is for generation"),
        ({"generation.mode": "generate", "generation.per_token": False}, "per_token (false) needs"),
        ({"generation.mode": "both", "trainer.strategy": "fsdp2"}, "with generation.mode (both)"),
        ({"trainer.precision": "bf16-true"}, "trainer.precision (bf16-true) does not work in"),
    ],
)
def test_mistakes_are_answered(values: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        job_config(with_settings(load_config("crossfit.yaml"), values), {})


def few_rows(module: TextToTextModule, gym: Gym, n_at_once: int) -> TextToTextDataModule:
    data = SETTINGS.data.model_copy(update={"samples": [100], "batch_size": n_at_once})
    return TextToTextDataModule(gym, ["copy"], module.tokenizer, data, decoder_only=False, seed=13)


def loop_over_tasks(module: TextToTextModule, gym: Gym) -> list[float]:
    """PyTorch's cross-entropy of every row alone, routed as each task is."""
    totals = []
    for task in range(module.model.router.n_tasks):
        total = 0.0
        for batch in few_rows(module, gym, 1).train_dataloader():
            inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
            logits = module.model(torch.tensor([task]), **inputs).logits
            loss = functional.cross_entropy(logits[0], inputs["labels"][0], reduction="sum")
            total += loss.item()
        totals.append(total)
    return totals


@pytest.mark.every(3)
@pytest.mark.parametrize(("seed", "n_at_once"), [(0, 1), (1, 3), (1, 100)])
def test_the_best_task_is_that_of_a_plain_loop(gym: Gym, seed: int, n_at_once: int) -> None:
    model, tokenizer = built(6)
    module = JobRun(model, tokenizer, JOB, gym, SETTINGS).module
    spread(model.router, seed)
    module.train()
    found = best_task(module, few_rows(module, gym, n_at_once).train_dataloader())
    assert module.training
    model.eval()
    with torch.no_grad():
        expected = loop_over_tasks(module, gym)
    assert found == min(range(6), key=expected.__getitem__)
    assert len({round(total, 4) for total in expected}) == 6  # rounding decides nothing


def test_tasks_that_cost_too_much_are_given_up(gym: Gym, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task of which one part costs more than all parts of the best is not asked for another."""
    module = JobRun(*built(4), JOB, gym, SETTINGS).module
    asked = []

    def nll(batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, None, None]:
        asked.append(int(batch["task_ids"][0]))
        return torch.tensor([9.0, 1.0, 3.5, 1.5][asked[-1]]), None, None

    monkeypatch.setattr(module, "nll", nll)
    batches = [{"task_ids": torch.zeros(1, dtype=torch.long)}] * 3
    assert best_task(module, batches) == 1
    # All once; then the best twice more, the next one until it costs more than 3, the others not.
    assert asked == [0, 1, 2, 3, 1, 1, 3, 3]


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("mode", "init"),
    [("zero_shot", "nearest_task"), ("all", "nearest_task"), ("router_only", "best_coefficients")],
)
def test_a_job_begins_with_the_nearest_task(gym: Gym, mode: str, init: str) -> None:
    model, tokenizer = built()
    best = JobRun(model, tokenizer, JOB, gym, SETTINGS).nearest_task()
    rows = []
    run = JobRun(model, tokenizer, JOB, gym, settings(mode=mode, init=init))
    whole = run.run(
        tasks=["red", "green", "blue"], keep=lambda outcome: rows.append(outcome.history.rows[0])
    ).result
    known = model.router.matrix()[:, [best]]
    assert whole.task == "copy"
    assert whole.begun_as == ("red", "green", "blue")[best]
    assert check(type(whole), as_row(whole), "", MttlError) == whole
    assert (whole.n_trained == 0) == (mode == "zero_shot")
    torch.testing.assert_close(torch.as_tensor(rows[0]).flatten(), known.detach().flatten())
    with adapted(model, "zero_shot", init="nearest_task", rows=torch.tensor([[float(best)]])):
        assert torch.equal(model.router.matrix(), known)


ROW = {"mode": "router_only"}


@pytest.mark.parametrize(
    ("asked", "given", "router", "start"),
    [
        ("auto", {}, None, "nearest_task"),
        ("auto", ROW, None, "mean"),
        ("mean", {}, None, "mean"),
        ("fresh", {}, None, "fresh"),
        ("auto", {"mode": "zero_shot"}, None, "mean"),  # no row of the new task is read
        ("auto", {"mode": "from_scratch"}, None, "mean"),
        ("auto", {"mode": "average"}, None, "mean"),
        ("auto", {"examples": 0}, None, "mean"),
        ("auto", {}, SharedRouter(3, 3), "mean"),  # tasks have equal routing weights
        ("auto", {}, AverageRouter(3, 3, 1, 3), "mean"),
        ("auto", {}, PrivateRouter(3, 3), "nearest_task"),
        ("auto", {}, SmearRouter(3, 3, 1, 3, n_features=8), "mean"),  # no rows
        ("auto", {}, CPolyRouter(3, 3, 1, 5), "mean"),
        ("best_coefficients", ROW, None, "best_coefficients"),
        ("best_coefficients", ROW, CPolyRouter(3, 3, 1, 5), "best_coefficients"),
        ("best_coefficients", ROW, SharedRouter(3, 3), "coefficients"),
    ],
)
def test_a_start_is_decided_by_what_there_is(asked, given, router, start) -> None:
    adapt = settings(**{"mode": "all", "init": asked} | given).adapt
    router = router or PolytroponRouter(3, 3, 1, 3)
    assert row_starts(router, adapt) == (start,)
    if asked == "auto":  # a second start is for tasks that begin as a trained one alone
        twice = adapt.model_copy(update={"init": "best_of_two"})
        assert row_starts(router, twice) == (start, "mean")[: 2 if start == "nearest_task" else 1]


@pytest.mark.every(3)
@pytest.mark.parametrize("better", ["nearest_task", "mean", "neither"])
def test_the_better_of_two_is_kept(gym: Gym, better: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores, weights and answers are those of the better start alone; of equals, the first."""
    model, tokenizer = built()

    def state() -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in model.state_dict().items()}

    def tuned(module: TextToTextModule, *batches: object, **more: object) -> tuple:
        score = scored.pop(0)
        with torch.no_grad():
            for value in module.model.parameters():
                value.add_(score if value.requires_grad else 0)
        return 1, score, []

    def adapt(init: str) -> tuple[FewShotResult, dict[str, torch.Tensor]]:
        states: list[dict[str, torch.Tensor]] = []
        run = JobRun(model, tokenizer, JOB, gym, settings(mode="all", init=init))
        tasks = ["red", "green", "blue"]
        result = run.run(tasks=tasks, keep=lambda _: states.append(state())).result
        (kept,) = states
        return result, kept

    monkeypatch.setattr(job_file, "fine_tune", tuned)
    first, second = {"nearest_task": (0.8, 0.5), "mean": (0.5, 0.8), "neither": (0.5, 0.5)}[better]
    before, scored = state(), [first, second]
    result, kept = adapt("best_of_two")
    scored = [max(first, second)]
    alone, expected = adapt("mean" if better == "mean" else "nearest_task")
    assert result == alone
    torch.testing.assert_close(kept, expected, rtol=0, atol=0)
    torch.testing.assert_close(state(), before, rtol=0, atol=0)
    scored = [first, second]
    JobRun(model, tokenizer, JOB, gym, settings(mode="all", init="best_of_two")).run(stay=True)
    torch.testing.assert_close(state(), expected, rtol=0, atol=0)


def test_a_router_without_rows_is_refused(gym: Gym) -> None:
    run = JobRun(*built(), JOB, gym, settings(mode="zero_shot", init="nearest_task"))
    n_groups = run.module.model.router.n_groups
    run.module.model.router = SmearRouter(n_groups, 3, 1, 3, n_features=8)
    with pytest.raises(ConfigError, match="init 'nearest_task' and 'best_coefficients' need"):
        run.run()
