"""Custom skills, token routers, losses, metrics and callbacks take part in a training."""

import importlib
import json
import sys
from pathlib import Path

import pytest

import mttl
from helpers.command import column, read_csv, train
from helpers.gyms import write_config, write_gym
from helpers.new_tasks import NEW
from mttl.assembly.model import load_run
from mttl.commands import adapt
from mttl.io.errors import MttlError
from mttl.plugins.classes import TRUST

PARTS = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from pytorch_lightning import Callback
from mttl.metrics.crossfit import TextMetric
from mttl.routing.task.fixed import FixedRouter
from mttl.routing.task.task_router import TaskRouter
from mttl.routing.token.token_router import LinearRouter
from mttl.routing.token.top_k import top_choice
from mttl.skills.weights.ia3 import IA3Inventory
from mttl.skills.weights.lora import LoRAInventory
from mttl.training.loss import TokenLoss


class Thin(LoRAInventory):
    uses = ("task", "token")
    def __init__(self, in_features: int, out_features: int, n_skills: int, n_heads: int, *,
                 width: int = 1):
        super().__init__(in_features, out_features, n_skills, n_heads=n_heads, rank=width)


class Composed(LoRAInventory):
    uses = ("composed",)


class FirstChoice(LinearRouter):
    def __init__(self, in_features: int, n_experts: int, *, scale: float = 0.1):
        super().__init__(in_features, n_experts, init_scale=scale)
    def choose(self, tokens):
        logits = tokens.logits(self.weight)
        return top_choice(logits, logits.topk(1).indices, normalise=False)


class Focal(TokenLoss):
    def __init__(self, power: float = 2.0):
        super().__init__()
        self.power = power
    def forward(self, logits, labels):
        losses = cross_entropy(logits, labels, reduction="none")
        return (1 - (-losses).exp()) ** self.power * losses


class Learned(Focal):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))


class Sum(TokenLoss):
    def forward(self, logits, labels):
        return logits.sum()




class Half(TextMetric):
    def row(self, prediction, accepted):
        return 0.5
    def score(self, rows):
        return sum(rows) / len(rows)


class Hundred(Half):
    def score(self, rows):
        return 100 * super().score(rows)



class Broken(Half):
    def score(self, rows):
        return {}["score"]


class Count(Callback):
    def __init__(self, file: str, every: int = 1):
        self.file, self.every, self.n = file, every, 0
    def on_train_batch_end(self, trainer, *rest):
        self.n += 1
        open(self.file, "w").write(str(self.n))


class Odd(FixedRouter):
    def __init__(self, n_groups: int, n_tasks: int, n_heads: int, n_skills: int, kind_of: str):
        super().__init__(torch.ones(n_tasks, n_skills), n_groups, n_heads)
        if kind_of == "value":
            raise ValueError("kind_of is odd")
        self.kind_of = kind_of
    def matrix(self):
        return super().matrix()[..., :1] if self.kind_of == "shape" else 1 / 0


class Asks(TaskRouter):
    def forward(self, task_ids, weather): ...
    def for_new_tasks(self, n_tasks, *, init="mean"): ...


class Reads(FixedRouter):
    def __init__(self, n_groups: int, n_tasks: int, n_heads: int, n_skills: int):
        super().__init__(torch.ones(n_tasks, n_skills), n_groups, n_heads)
    def forward(self, task_ids, examples):
        return super().forward(task_ids) * examples.mean()
    def for_new_tasks(self, n_tasks, *, init="mean"):
        return Reads(self.n_groups, n_tasks, self.n_heads, self.n_skills)
"""
QUICK = ("trainer.max_steps=3", "trainer.val_check_interval=3")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(TRUST, "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own_all.py").write_text(PARTS)
    gym = write_gym(tmp_path / "gym", NEW, unseen=["first"])
    yield write_config(tmp_path / "tiny.yaml", gym)
    sys.modules.pop("own_all", None)


def test_all_parts_take_part(config: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "skills: {kind: 'own_all:Thin', width: 2, n_skills: 3, targets: [attention]}\n"
        "loss: {kind: 'own_all:Focal', power: 1}\n"
        "data: {metrics: {twice: 'own_all:Half', first: 'own_all:Half'}}\n"
        "trainer: {callbacks: [{kind: 'own_all:Count', file: counted}]}\n"
        "moe: {router: {kind: 'own_all:FirstChoice', scale: 0.2}, n_experts: 2, targets: [mlp],\n"
        "      experts: {kind: 'own_all:Thin'}}\n"
    )
    run = train(f"{config}+{own}", "all", *QUICK)
    plain = train(config, "plain", *QUICK)
    assert (tmp_path / "counted").read_text() == "3"
    # The focal loss is below cross-entropy, from the first step on; validation has the usual one.
    first = column(run.metrics, "train/loss")[1], column(plain.metrics, "train/loss")[1]
    assert first[0] < 0.999 * first[1]
    assert set(column(run.metrics, "val/twice/score").values()) == {0.5}
    scores = {(row["task"], row["metric"], row["score"]) for row in read_csv(run.results)}
    assert ("twice", "own_all:Half", "0.500000") in scores
    model = load_run(run.path).model
    layer = next(iter(model.skilled_layers().values()))
    assert (type(layer.inventory).__name__, layer.inventory.rank) == ("Thin", 2)
    routed = next(iter(model.token_layers().values()))
    assert type(routed.router).__name__ == "FirstChoice"
    assert (type(routed.experts).__name__, routed.experts.rank) == ("Thin", 1)
    given = ["-c", f"{config}+{own}", "--from", str(run.path), "-k", "adapt.max_steps=2"]
    assert adapt.main(given) == 0
    (line,) = (run.path / "adapt-all" / "results.jsonl").read_text().splitlines()
    assert json.loads(line)["test"] == 0.5


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("skills.kind=own_all:Composed", "Composed cannot be mixed by task"),
        ("loss={kind: 'own_all:Learned'}", "section loss: 'own_all:Learned' has parameters, which"),
        (
            "loss={kind: 'own_all:Sum'}",
            (r"Sum returned losses of shape \(\); it must return " "one loss per"),
        ),
        ("data.metrics={twice: 'own_all:Broken'}", "Broken failed: KeyError: 'score'"),
        ("data.metrics={twic: EM}", r"data\.metrics: the folder .* has no task 'twic'\. Did you"),
        ("trainer.callbacks=[{kind: 'own_all:Count'}]", r"callbacks\.0\.file: is missing"),
        ("router={kind: 'own_all:Odd', kind_of: x}", r"ZeroDivisionError: .*own_all\.py, line"),
        (
            "router={kind: 'own_all:Odd', kind_of: value}",
            r"^section router \(own_all:Odd\): kind_of is odd",
        ),
        ("router={kind: 'own_all:Odd', kind_of: shape}", r"' returns weights of shape \(12, 1, 1,"),
        ("router={kind: 'own_all:Asks'}", "has the argument 'weather'; allowed after task_ids are"),
        (
            "moe={router: {kind: 'own_all:FirstChoice'}, experts: {kind: lora}, "
            "balance: {switch: 0.1}}",
            r"section moe: the router 'own_all:FirstChoice' takes no balance loss\. Remove",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(config: Path, setting: str, message: str) -> None:
    name, _, value = setting.partition("=")
    own = config.with_name("own.yaml")
    section, _, key = name.partition(".")
    own.write_text(f"{section}:\n  {key}: {value}\n" if key else f"{section}: {value}\n")
    with pytest.raises(MttlError, match=message):
        train(f"{config}+{own}", "refused", *QUICK)


def test_a_metric_scores_an_adaptation(config: Path) -> None:
    sys.path.append(str(config.parent))
    importlib.import_module("own_all")  # which trusts it
    run = train(config, "run", *QUICK).path
    pairs = [(word, "b") for word in ("ab", "cab", "b", "ca", "bb", "ac", "cc", "abc")]
    given = {"task": "new", "max_steps": 1, "batch_size": 4}
    assert mttl.adapt_to(run, pairs, metric="own_all:Half", **given).result.dev == 0.5
    with pytest.raises(MttlError, match=r"Hundred returned 50.*between -1 and 1"):
        mttl.adapt_to(run, pairs, metric="own_all:Hundred", **given)


def test_examples_are_shown_but_not_of_none(config: Path) -> None:
    own = config.with_name("own.yaml")
    own.write_text("router: {kind: 'own_all:Reads'}\n")
    run = train(f"{config}+{own}", "reads", *QUICK)
    assert load_run(run.path).model.router.shown_examples.shape == (1, 16)
    given = ["-c", f"{config}+{own}", "--from", str(run.path), "-k", "adapt.examples=0"]
    with pytest.raises(MttlError, match="the router needs training examples of each task, but"):
        adapt.main(given)


def test_a_class_that_is_gone_is_told_with_the_run(config: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("skills: {kind: 'own_all:Thin', n_skills: 3}\n")
    run = train(f"{config}+{own}", "gone", *QUICK)
    del sys.modules["own_all"]
    (tmp_path / "own_all.py").unlink()
    with pytest.raises(MttlError, match=r"gone/skills/meta\.json': 'own_all:Thin' is code"):
        load_run(run.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TRUST, "own_all")
        with pytest.raises(MttlError, match=r"meta\.json': there is no module 'own_all"):
            load_run(run.path)
    with pytest.raises(MttlError, match="no module 'own_all'"):
        train(f"{config}+{own}", "gone", resume=True)
