"""Members of a library as PEFT wrote them are routed by each method, and every command takes it."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.backbones import fill
from helpers.compare import relative_error
from helpers.gyms import TASKS
from helpers.interruption import SignalAt, called_back
from helpers.peft_adapters import peft, write_base
from mttl.analysis.token_record import read_token_record
from mttl.assembly.build_backbone import build_backbone
from mttl.assembly.model import load_run
from mttl.commands import adapt, plot, predict, train
from mttl.commands import library as LIBRARY
from mttl.config.load import load_config
from mttl.routing import RetrievalRouter
from mttl.runtime.command import run_command

GENERAL = ("general0", "general1")
IDS = {"input_ids": torch.arange(21).view(3, 7) + 5}
QUESTIONS = {"copy": ["abc", "b"], "reverse": ["cab"], "number": ["aab", "c"]}
TOKENS = ("arrow", "spectral", "phatgoose")
# Single precision in another order; PEFT's power iteration has converged, see below.
ROUNDING = 2e-5


def library(*words: object) -> int:
    return run_command(lambda: LIBRARY.main([str(word) for word in words]))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, adapters that PEFT wrote for the tasks of a gym, and a library of them."""
    folder = tmp_path_factory.mktemp("routing")
    base = write_base(folder)
    for seed, name in enumerate((*TASKS, *GENERAL)):
        targets = ["q_proj", "down_proj"]
        lora = peft.LoraConfig(r=2, lora_alpha=3, target_modules=targets, task_type="CAUSAL_LM")
        model = peft.get_peft_model(type(base).from_pretrained(folder / "base"), lora)
        for layer in model.modules():
            if hasattr(layer, "lora_A"):
                fill(layer.lora_A, seed)
                fill(layer.lora_B, seed + 50)
                # The first singular value is far above the second, also after subtraction.
                layer.lora_B["default"].weight.data[:, 1] *= 0.05
        model.save_pretrained(folder / "adapters" / name)
    assert library("add", folder / "skills", folder / "adapters/*") == 0
    return folder


def made(place: Path, router: str, *words: object) -> Path:
    """Return the run of a router over the members of the gym's tasks."""
    out = place / "-".join([router, *(str(word).strip("-") for word in words)])
    if not out.is_dir():
        config = f"{place / 'tiny.yaml'}+router/{router}.yaml"
        settings = ["-k", "moe.router.gate_steps=10"] if router == "phatgoose" else []
        given = ["-c", config, "--members", *TASKS, *words, "--out", out, *settings]
        assert library("run", place / "skills", *given) == 0
    return out


# These are slow tests: they differ in how members are scored, which other tests hold.
SLOW = [pytest.param(router, marks=pytest.mark.slow) for router in ("spectral", "average")]


@pytest.mark.parametrize(
    "router", ["arrow", "retrieval", pytest.param("phatgoose", marks=pytest.mark.slow), *SLOW]
)
def test_a_mixed_batch_with_beams_is_answered_as_its_rows(place: Path, router: str) -> None:
    built = load_run(made(place, router))
    assert set(built.tasks) == set(TASKS)
    tasks = [task for task, texts in QUESTIONS.items() for _ in texts]
    texts = [text for group in QUESTIONS.values() for text in group]
    settings = {"max_new_tokens": 4, "do_sample": False, "num_beams": 3}

    def answers(tasks: list[str], texts: list[str]) -> list[list[int]]:
        rows = built.tokenizer(texts, padding=True, padding_side="left", return_tensors="pt")
        given = {name: rows[name] for name in ("input_ids", "attention_mask")}
        ids = built.model.generate(built.task_ids(tasks), **given, **settings)
        return ids[:, rows["input_ids"].shape[1] :].tolist()

    together = answers(tasks, texts)
    for row, (task, text) in enumerate(zip(tasks, texts, strict=True)):
        (alone,) = answers([task], [text])
        assert together[row][: len(alone)] == alone
    for task, own in QUESTIONS.items():
        assert len(built.predict(task, own, num_beams=2)) == len(own)


@pytest.mark.every(2)
@pytest.mark.parametrize("router", ["phatgoose", "retrieval", SLOW[0]])
def test_every_command_takes_such_a_run(place: Path, router: str, tmp_path: Path, refused) -> None:
    run = made(place, router)
    with (tmp_path / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["task", "input"], ["copy", "abc"], ["number", "b"]])
    files = ["--in", str(tmp_path / "in.csv"), "--out", str(tmp_path / "out.csv")]
    assert predict.main(["--from", str(run), *files]) == 0
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 3
    given = ["-c", str(place / "tiny.yaml"), "--from", str(run), "--tasks", "copy", "--allow-seen"]
    settings = ["-k", "adapt.mode=skills_only", "adapt.max_steps=2", "adapt.eval_every=2"]
    assert adapt.main([*given, "--out", str(tmp_path / "adapted"), "--save", *settings]) == 0
    (task,) = (tmp_path / "adapted" / "models").iterdir()
    assert load_run(task).predict("copy", ["ab"])
    count = ["--count", "dev"] if router in TOKENS else []
    assert plot.main([str(run), *count, "--out", str(tmp_path / "plots")]) == 0
    assert list((tmp_path / "plots").glob("*.png"))
    if count:
        counts = read_token_record(run)
        assert set(counts.tasks) == set(TASKS)
        # Every token of every layer has its members.
        top_k = 2 if router == "phatgoose" else 3
        n_tokens = np.array(counts.counts).sum((1, 2)) / top_k
        assert (n_tokens == n_tokens[0]).all()
        assert n_tokens[0] > 0
        assert ">member<" in (tmp_path / "plots" / "heat_map.svg").read_text()
    else:
        assert "' has no token router " in refused(plot.main, run, "--count", "dev")


def test_x_lora_is_trained_over_frozen_members(place: Path, tmp_path: Path) -> None:
    members = made(place, "average")
    files = ["-c", f"{members / 'config.yaml'}+router/xlora.yaml"]
    start = [f"run.start={members}", "run.freeze_skills=true", f"run.dir={tmp_path}"]

    def trained(name: str, *words: str) -> int:
        words = (*files, "-k", "trainer.max_steps=2", *start, f"run.name={name}", *words)
        return run_command(lambda: train.main([*words]))

    builder = "mttl.commands.train_tasks.build_trainer"
    with pytest.MonkeyPatch.context() as patch, called_back(SignalAt(1), patch, builder):
        assert trained("again") == 130
    assert (trained("again", "--resume"), trained("whole")) == (0, 0)
    given = ["--from", str(tmp_path / "whole"), "--tasks", "copy", "--allow-seen", "--save"]
    steps = ["-k", "adapt.mode=router_only", "adapt.max_steps=2", "adapt.eval_every=1"]
    assert adapt.main([*files, *given, "--out", str(tmp_path / "adapted"), *steps]) == 0
    (task,) = (tmp_path / "adapted" / "models").iterdir()
    due, again, *found = map(load_run, (members, tmp_path / "again", tmp_path / "whole", task))
    states = [built.model.state_dict() for built in (again, found[0])]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    for folder in (tmp_path / "whole", task):  # tasks have no weights that could be recorded
        assert not list((folder / "plots").glob("routing*"))
    for built in found:
        assert built.predict("copy", ["ab"])
        for path, layer in built.model.skilled_layers().items():
            assert torch.equal(layer.inventory.up, due.model.skilled_layers()[path].inventory.up)


def test_what_the_routers_took_from_the_members(place: Path) -> None:
    for layer in load_run(made(place, "phatgoose")).model.token_layers().values():
        assert layer.router.gates.any(1).all()
        assert (layer.prior, layer.group) == (None, None)
    router = load_run(made(place, "retrieval")).model.router
    assert isinstance(router, RetrievalRouter)
    # A task's own examples are nearest to themselves.
    assert torch.equal(router.matrix()[0, :, 0].argmax(-1), torch.arange(3))
    torch.testing.assert_close(
        load_run(made(place, "average")).model.router.matrix()[0, :, 0], torch.full((3, 3), 1 / 3)
    )


@pytest.mark.parametrize("general", [False, True])
def test_arrow_on_a_whole_model_is_that_of_peft(place: Path, general: bool) -> None:
    words = ["--general", *GENERAL] if general else []
    built = load_run(made(place, "arrow", *words))
    base = build_backbone(load_config([str(place / "tiny.yaml")]).backbone)
    config = peft.ArrowConfig(top_k=3, router_temperature=1.0, use_gks=general, rng_seed=0)
    theirs = peft.create_arrow_model(
        base,
        [str(place / "adapters" / task) for task in sorted(TASKS)],
        config,
        [str(place / "adapters" / name) for name in GENERAL] if general else None,
    ).eval()
    with torch.no_grad():
        expected = theirs(**IDS).logits
        found = built.model(built.task_ids(["copy", "number", "reverse"]), **IDS).logits
        with theirs.disable_adapter():
            plain = theirs(**IDS).logits
    assert relative_error(plain, expected) > 0.01
    assert relative_error(found, expected) < ROUNDING
    if general:
        facts = json.loads((made(place, "arrow", *words) / "members.json").read_text())
        assert facts["general"] == list(GENERAL)
        other = load_run(made(place, "arrow")).model
        assert relative_error(other(torch.tensor([0, 1, 2]), **IDS).logits, expected) > 0.001


def test_mistakes_end_in_a_message(place: Path, tmp_path: Path, refused) -> None:
    config, out = ["-c", f"{place / 'tiny.yaml'}+router/arrow.yaml"], ["--out", tmp_path / "new"]
    for words, message in (
        ([*config, "--general", "*"], "--general names all members; leave at least one as a skill"),
        ([*config, "--general", "none"], "has no member 'none'"),
        (
            ["-c", f"{place / 'tiny.yaml'}+router/phatgoose.yaml", "--members", "general0", "copy"],
            "general0",
        ),
        (
            ["-c", f"{place / 'tiny.yaml'}+router/retrieval.yaml", "--members", "copy", "number"],
            "section router (retrieval): top_k (3) must be at most n_skills (2)",
        ),
    ):
        assert message in refused(LIBRARY.main, "run", place / "skills", *words, *out)
    assert not (tmp_path / "new").exists()
