"""Adapters and runs become a library, a library becomes runs and adapters again."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.backbones import fill
from helpers.command import file_sums, note_again, train
from helpers.compare import relative_error
from helpers.fake_repositories import FakeRepositories
from helpers.gyms import TASKS
from helpers.peft_adapters import peft, save_lora, write_base
from mttl.analysis.routing_record import read_record
from mttl.assembly.build_backbone import build_backbone
from mttl.assembly.model import load_run
from mttl.commands import export as EXPORT
from mttl.commands import library as LIBRARY
from mttl.config.load import load_config
from mttl.io.errors import ConfigError
from mttl.library.library_folder import open_library
from mttl.peft_format.peft_folder import read_peft, write_peft
from mttl.runtime.command import run_command

ROUNDING = 1e-5  # float32 arithmetic in another order
IDS = {"input_ids": torch.arange(10).view(2, 5) + 5}
QUESTIONS = ["abc", "b", "cab"]
# Ranks and layers differ.
KINDS = ((1, ["q_proj"]), (2, ["q_proj", "v_proj"]), (3, ["up_proj"]))
SIZES = {"q_proj": (16, 16), "v_proj": (16, 8), "up_proj": (16, 24)}
LAYER = {"q_proj": "self_attn.q_proj", "v_proj": "self_attn.v_proj", "up_proj": "mlp.up_proj"}


def library(*words: object) -> int:
    return run_command(lambda: LIBRARY.main([str(word) for word in words]))


def weights(folder: Path) -> dict[str, str]:
    opened = open_library(folder)
    return {name: opened.card(name).weights["sha256"] for name in opened.members}


def tensors_of(rank: int, targets: list[str], seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name in targets:
        path, (n_in, n_out) = f"model.layers.0.{LAYER[name]}", SIZES[name]
        tensors[f"{path}.lora_A.weight"] = torch.randn(rank, n_in, generator=generator)
        tensors[f"{path}.lora_B.weight"] = torch.randn(n_out, rank, generator=generator)
    return tensors


def settings_of(base: Path, rank: int, targets: list[str]) -> dict[str, object]:
    return {
        **{"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 5},
        **{"base_model_name_or_path": str(base), "target_modules": targets},
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model, twelve adapters of it (two by PEFT itself), and a configuration."""
    folder = tmp_path_factory.mktemp("library")
    write_base(folder)
    for number in range(10):
        rank, targets = KINDS[number % 3]
        write_peft(
            folder / "adapters" / f"task{number:02}",
            settings_of(folder / "base", rank, targets),
            tensors_of(rank, targets, number),
        )
    for seed, name in enumerate(("past", "plural")):
        rank, targets = KINDS[1 + seed]
        settings = {"r": rank, "lora_alpha": 5, "target_modules": targets}
        model = save_lora(folder / "base", folder / "adapters" / name, seed, **settings)
        told = "---\nlicense: mit\ndatasets: [words, numbers]\n---\n# Past\n"
        (folder / "adapters" / name / "README.md").write_text(told)
        with torch.no_grad():
            torch.save(model(**IDS).logits, folder / f"{name}.pt")
    return folder


@pytest.fixture(scope="module")
def skills(place: Path) -> Path:
    """A library of all adapters, made by one command."""
    assert library("add", place / "skills", place / "adapters/*", "--no-probe") == 0
    return place / "skills"


@pytest.fixture(scope="module")
def private(place: Path, skills: Path) -> Path:
    chosen = ["--members", "past", "plural", "task00"]
    config = f"{place / 'tiny.yaml'}+router/private.yaml"
    assert library("run", skills, "-c", config, *chosen, "--out", place / "private") == 0
    return place / "private"


def test_many_folders_come_in_with_one_command(skills: Path, capsys) -> None:
    opened = open_library(skills)
    assert len(opened.members) == 12
    assert opened.version == 1
    card = opened.card("past")
    assert (card.task, card.licence, card.data) == ("past", "mit", "words, numbers")
    assert max(card.targets.values()) == 2
    assert card.training["lora_alpha"] == 5
    assert library("list", skills) == 0
    told = capsys.readouterr().out
    assert "task09" in told
    assert "mit" in told
    assert library("show", skills, "past") == 0
    assert json.loads(capsys.readouterr().out)["targets"].keys() == {
        "model.layers.0.self_attn.q_proj",
        "model.layers.0.self_attn.v_proj",
    }


@pytest.mark.parametrize(
    ("told", "prefix"), [({None}, "none"), ({"code"}, "code"), ({None, "name"}, "name")]
)
def test_inputs_begin_as_in_the_training_of_members(told: set[str | None], prefix: str) -> None:
    assert LIBRARY._prefix_of(dict(enumerate(told))) == prefix


def test_members_that_read_inputs_in_two_ways_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"differ in data\.prefix \(name: a; none: c, d\): use"):
        LIBRARY._prefix_of({"a": "name", "b": None, "c": "none", "d": "none"})


def test_members_answer_as_in_peft(place: Path, private: Path) -> None:
    built = load_run(private)
    assert built.tasks == ("past", "plural", "task00")
    for name in ("past", "plural"):
        found = built.model(built.task_ids([name] * 2), **IDS).logits
        assert relative_error(found, torch.load(place / f"{name}.pt")) < ROUNDING
    assert read_record(private).weights.shape[1:] == (3, 3)
    members = json.loads((private / "members.json").read_text())["members"]
    assert [one["name"] for one in members] == ["past", "plural", "task00"]
    assert load_config([str(private / "config.yaml")]).skills.n_skills == "per_task"


def test_a_member_goes_out_and_comes_back_bit_for_bit(place: Path, skills: Path, tmp_path) -> None:
    assert library("export", skills, "--out", tmp_path / "out") == 0
    assert library("add", tmp_path / "again", tmp_path / "out/*") == 0
    assert weights(tmp_path / "again") == weights(skills)
    assert open_library(tmp_path / "again").card("past").licence == "mit"
    # PEFT reads it.
    base = peft.PeftConfig.from_pretrained(tmp_path / "out" / "past").base_model_name_or_path
    assert base == str(place / "base")
    model = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "out" / "past").eval()
    assert relative_error(model(**IDS).logits, torch.load(place / "past.pt")) < ROUNDING


def test_a_run_of_members_goes_out_and_comes_back(private: Path, skills: Path, tmp_path) -> None:
    """As a run, and as adapters of PEFT."""
    assert EXPORT.main([str(private), "--all", "--out", str(tmp_path / "out")]) == 0
    known = weights(skills)
    expected = {name: known[name] for name in ("past", "plural", "task00")}
    for source in (private, tmp_path / "out"):
        again = tmp_path / f"of-{source.name}"
        assert library("add", again, source) == 0
        assert weights(again) == expected
    # Of another library, under other names.
    assert library("add", again, skills, "--name", "x-*", "--licence", "gpl") == 0
    opened = open_library(again)
    assert len(opened.members) == 15
    assert opened.card("x-past").licence == "gpl"
    assert weights(again)["x-past"] == known["past"]


def test_a_matrix_says_which_members_a_task_uses(place, skills, tmp_path) -> None:
    names = ("past", "plural", "task00", "task01")
    rows = "task,a,b,c,d\npast,1,0,0,0\nplural,1,1,0,0\ntask00,0,0,1,0\ntask01,0,0,0,1\n"
    (tmp_path / "matrix.csv").write_text(rows)
    given = ["--members", *names, "-k", f"router.matrix={tmp_path / 'matrix.csv'}"]
    config, out = f"{place / 'tiny.yaml'}+router/expert.yaml", tmp_path / "run"
    assert library("run", skills, "-c", config, *given, "--out", out) == 0
    built = load_run(out)
    assert built.tasks == names
    wanted = torch.tensor([[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    found = built.model.router.matrix()[0, :, 0]
    torch.testing.assert_close(found, wanted, atol=1e-8, rtol=0)
    assert len(built.predict("past", QUESTIONS, num_beams=2)) == len(QUESTIONS)


def test_tasks_of_a_run_come_in_exactly(place: Path, tmp_path: Path) -> None:
    config = f"{place / 'tiny.yaml'}+router/private.yaml"
    given = ("trainer.max_steps=4", "trainer.val_check_interval=4", "data.prefix=code")
    made = train(config, "trained", *given).path
    built = load_run(made)
    with torch.no_grad():
        for layer in built.model.skilled_layers().values():
            fill(layer.inventory)
    saved = load_file(made / "skills" / "skills.safetensors")
    for path, layer in built.model.skilled_layers().items():
        saved |= {f"{path}.{name}": v for name, v in layer.inventory.state_dict().items()}
    save_file(saved, made / "skills" / "skills.safetensors")
    meta = json.loads((made / "skills" / "meta.json").read_text())
    kept = {"task_options": {"copy": ["a", "b"]}, "task_templates": {"copy": {"input": "{x}"}}}
    meta["settings"]["data"] |= kept
    (made / "skills" / "meta.json").write_text(json.dumps(meta))
    note_again(made / "skills")
    built = load_run(made)
    skills, again = tmp_path / "skills", tmp_path / "run"
    assert library("add", skills, made) == 0
    card = open_library(skills).card("copy")
    assert max(card.targets.values()) == 2
    assert card.training["max_steps"] == 4
    assert card.data == str(place / "gym")
    assert {row["split"] for row in card.scores} == {"dev", "test"}
    auto = ["-k", "data.prefix=auto"]
    assert library("run", skills, "-c", config, "--out", again, *auto) == 0
    found = load_run(again)
    assert found.form.prefix == "code"  # as in their training
    for name in kept:
        assert getattr(found.form, name) == getattr(built.form, name) != {}
    assert library("run", skills, "-c", config, "--out", tmp_path / "named") == 0
    assert load_run(tmp_path / "named").form.prefix == "name"  # as the configuration says
    for task in TASKS:
        one, other = (run.model(run.task_ids([task] * 2), **IDS).logits for run in (found, built))
        assert relative_error(one, other) < ROUNDING
    assert library("add", skills, made, "--rank", "1", "--name", "small-*") == 0
    card = open_library(skills).card("small-copy")
    assert max(card.targets.values()) == 1
    assert 0 < card.training["lost_by_cut"] < 1
    assert library("add", skills, made, "--skills") == 0
    assert (
        open_library(skills).card("trained-0").weights == open_library(skills).card("copy").weights
    )


def test_adapters_come_from_the_hub(place: Path, tmp_path: Path, monkeypatch, refused) -> None:
    hub = FakeRepositories.used(monkeypatch, tmp_path / "hub")
    shutil.copytree(place / "adapters" / "past", hub.root / "me" / "past-lora")
    (hub.root / "me" / "past-lora" / "optimizer.pt").write_bytes(b"large")
    skills = tmp_path / "skills"
    assert library("add", skills, "me/past-lora@v1") == 0
    assert hub.asked == [("v1", None)]
    assert list(open_library(skills).members) == ["past-lora"]
    assert not list((hub.root / "snapshots").rglob("optimizer.pt"))
    told = refused(LIBRARY.main, "add", skills, "me/absent")
    assert "loading it from the model hub failed" in told


def test_bad_members_are_refused_with_one_list(place, skills, tmp_path, refused) -> None:
    good = place / "adapters" / "past"

    def copy(name: str) -> Path:
        return Path(shutil.copytree(good, tmp_path / "bad" / name))

    (copy("half") / "adapter_config.json").unlink()
    (tmp_path / "bad" / "unfinished").mkdir()
    (tmp_path / "bad" / "unfinished" / "config.yaml").touch()
    (copy("empty") / "adapter_model.safetensors").unlink()
    config, tensors = read_peft(good).config, read_peft(good).tensors
    for name, changed in (
        ("nan", {key: tensor * torch.nan for key, tensor in tensors.items()}),
        ("rankless", {key: t[:0] if "_A" in key else t[:, :0] for key, t in tensors.items()}),
    ):
        write_peft(tmp_path / "bad" / name, config, changed)
    write_peft(
        tmp_path / "bad" / "other", config | {"base_model_name_or_path": "org/other"}, tensors
    )
    write_peft(tmp_path / "bad" / "nameless", config | {"base_model_name_or_path": None}, tensors)
    copy("good")
    copy("task00")
    before = file_sums(skills)
    sources = [tmp_path / "bad/*", good, good, tmp_path / "nowhere/*", place / "tiny.yaml"]
    told = refused(LIBRARY.main, "add", skills, *sources)
    for problem in (
        "is not a PEFT folder",
        "unfinished' has no trained skills (no meta.json, also not in skills/). Name the folder of",
        "empty' has no adapter_model.safetensors",
        "nan/adapter_model.safetensors': 'base_model.model.model.layers.0.self_attn.q_proj.lora_",
        "rankless': the factors of 'model.layers.0.self_attn.q_proj' have shapes (0, ",
        "other' has another base model: 'org/other'",
        "nameless' does not name its base model",
        "the name 'task00' is already used by the library",
        "the name 'past' is already used by the library",
        "no folder matches",
        "tiny.yaml' is a file",
        f"nothing was added to '{skills}'",
    ):
        assert problem in told, problem
    assert "good'" not in told
    assert file_sums(skills) == before
    # The first command of a library leaves nothing either.
    refused(LIBRARY.main, "add", tmp_path / "new", tmp_path / "bad")
    assert not (tmp_path / "new").exists()
    told = refused(LIBRARY.main, "add", tmp_path / "new", tmp_path / "bad" / "nameless")
    assert "no adapter names its base model; name it" in told
    # What the user says goes.
    base = ["--backbone", place / "base"]
    assert library("add", tmp_path / "new", tmp_path / "bad" / "nameless", *base) == 0


def test_mistakes_end_in_a_message(place: Path, skills: Path, private: Path, tmp_path, refused):
    trained = train(place / "random.yaml", "own", "trainer.max_steps=1", "data.evaluate=[]").path
    other = build_backbone(load_config([str(place / "random.yaml")]).backbone)
    fill(other, seed=3)
    other.save_pretrained(tmp_path / "other")
    tiny, adapter = str(place / "tiny.yaml"), place / "adapters" / "past"
    assert library("add", tmp_path / "two", adapter, "--backbone", tmp_path / "other") == 0
    twice = tmp_path / "twice"
    assert library("add", twice, adapter) == 0
    shutil.copytree(adapter, tmp_path / "more")
    assert library("export", twice, "past", "--out", tmp_path / "named") == 0
    assert library("add", twice, tmp_path / "named" / "past", "--name", "second") == 0
    before = sorted(tmp_path.iterdir())
    x, two, own = tmp_path / "x", tmp_path / "two", ["--name", "y"]
    on, member = ["-c", f"{tiny}+router/private.yaml"], ["--members", "past"]
    run, arrow = ["run", skills, "--out", tmp_path / "new"], ["-c", f"{tiny}+router/arrow.yaml"]
    other = ["-k", f"backbone.name={tmp_path / 'other'}"]
    for given, message in (
        (["add", x, trained], "also trained its backbone"),
        (["add", two, private], "has another base model"),
        (["add", two, adapter, *own, "--backbone", place / "base"], "not '"),
        (["add", skills, adapter, *own, "--rank", "2"], "--rank and --skills are for runs"),
        (["add", x, adapter, "--backbone", "none"], "backbone.name ('none')"),
        (["show", skills, "pst"], "has no member 'pst'. Did you mean 'past'"),
        (["export", skills, "--out", two], "already exists"),
        ([*run, *on, "--out", two], "already exists"),
        ([*run, *on, "--members", "x*"], "has no member 'x*'"),
        ([*run, *on, "-k", "skills.rank=2"], "skills.rank=2: skills come from the library; use"),
        (["run", twice, *on, *run[2:]], "both have the task 'past'"),
        ([*run, *on, *member, "plural", *other], "Set the"),
        ([*run, "-c", place / "random.yaml"], "need backbone.kind: pretrained"),
        ([*run, *on, "-k", "backbone.train=true"], "train: false"),
        ([*run, "-c", f"{tiny}+router/task_moe.yaml", *member, "plural"], "needs training with"),
        ([*run, *arrow, *member], "with 1 mem"),
        ([*run, *arrow, *member, "plural", "--mix", "deltas"], "--mix does not work with token"),
        ([*run, *arrow, "-k", "moe.every=2"], "moe.every and moe.stacks"),
    ):
        assert message in refused(LIBRARY.main, *given)
    assert sorted(tmp_path.iterdir()) == before
