"""Sparse skills from the command line: learned, stopped, continued, composed, taken off."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

from helpers.backbones import fill
from helpers.gyms import write_gym
from mttl.commands import build as BUILD
from mttl.commands import compose as COMPOSE
from mttl.commands import sparse as LEARN
from mttl.io import yaml12
from mttl.models.backbone import build_random, load_pretrained, load_tokenizer
from mttl.runtime.command import INTERRUPTED, USER_MISTAKE, run_command
from mttl.sparse import loop as stoppable_loop
from mttl.sparse.composition import SparseComposition
from mttl.sparse.lottery_ticket import LotteryTicket
from mttl.sparse.skill_file import SparseSkill

QUICK = ["--full-steps", "3", "--sparse-steps", "3", "--lr", "1e-2", "--batch-size", "4"]
TINY_T5 = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 1, "num_heads": 4}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of tiny models that read bytes."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    sizes = {"vocab_size": 384, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 24, "max_position_embeddings": 64}
    made = {
        "t5": build_random("t5", {**TINY_T5, "vocab_size": 384}),
        "llama": LlamaForCausalLM(LlamaConfig(**sizes, pad_token_id=0)),
        "bert": BertForMaskedLM(BertConfig(**sizes, pad_token_id=0)),
    }
    for name, model in made.items():
        fill(model)
        model.save_pretrained(folder / name)
    return {name: folder / name for name in made}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("one line\n\nanother line of text\nnaïve\n" * 3, encoding="utf-8")
    return path


def words(model: Path, out: Path, *more: object) -> list[str]:
    given = ("--model", model, "--tokenizer", "byte", "--out", out, *QUICK, *more)
    return [str(word) for word in given]


def learn(model: Path, out: Path, *more: object) -> SparseSkill:
    assert LEARN.main(words(model, out, *more)) == 0
    return SparseSkill.load(out)


def test_a_language_and_a_task_compose_and_come_off_again(models, text, tmp_path, capsys):
    gym = write_gym(tmp_path / "gym")
    files = [tmp_path / "language.safetensors", tmp_path / "task.safetensors"]
    options = ["--mask", "_", "--density", "0.1", "--l1", "0.1", "--freeze-norms"]
    language = learn(models["t5"], files[0], "--text", str(text), *options)
    task = learn(
        *(models["t5"], files[1], "--task", "copy", "--gym", str(gym)),
        *("--on", str(files[0]), "--density", "0.1"),
    )
    assert not any("layer_norm" in name for name in language.changes)
    assert task.about["on"] == [str(files[0])]
    model = load_pretrained(str(models["t5"]))
    start = {name: value.detach().clone() for name, value in model.named_parameters()}
    composition = SparseComposition(model)
    for path in files:
        composition.apply(str(path), SparseSkill.load(path))
    composed = {name: value.detach().clone() for name, value in model.named_parameters()}
    composition.clear()
    assert all(torch.equal(value, start[name]) for name, value in model.named_parameters())

    skills = ["--skills", str(files[1]), f"{files[0]}=1.0"]
    base = ["--model", str(models["t5"]), "--tokenizer", "byte", *skills]
    out = tmp_path / "composed"
    score = ["--score", "copy", "--gym", str(gym), "--split", "dev", "--max-output-length", "4"]
    assert COMPOSE.main([*base, "--out", str(out), *score]) == 0
    assert "copy, dev rows: EM" in capsys.readouterr().out
    saved = dict(load_pretrained(str(out)).named_parameters())
    assert all(torch.equal(value, saved[name]) for name, value in composed.items())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama", ["--criterion", "movement", "--structure", "rows"]),
        ("llama", ["--criterion", "fisher", "--scope", "tensor"]),
        ("t5", ["--criterion", "magnitude", "--form", "masked", "--rounds", "2", "--rewind", "1"]),
        ("t5", ["--criterion", "movement", "--form", "masked", "--schedule", "cubic"]),
        ("t5", ["--criterion", "random", "--structure", "blocks", "--block", "4"]),
    ],
)
def test_every_kind_of_model_and_support(name, options, models, text, tmp_path):
    skill = learn(models[name], tmp_path / "a.safetensors", "--text", str(text), *options)
    assert skill.n_entries > 0
    assert any(bool((change.values != 0).any()) for change in skill.changes.values())
    assert not (tmp_path / "a.safetensors.state").exists()


@pytest.mark.usefixtures("masking")
def test_a_masked_model(models, text, tmp_path):
    skill = learn(models["bert"], tmp_path / "a.safetensors", "--text", str(text))
    assert skill.n_entries > 0


@contextmanager
def interrupted() -> Iterator[None]:
    """Interrupt the training after its second and its fifth step."""
    advance = LotteryTicket.advance

    def stopping(self: LotteryTicket) -> None:
        advance(self)
        if self.n_done in (2, 5):
            signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LotteryTicket, "advance", stopping)
        yield


def test_a_run_that_was_stopped_continues_to_the_same_file(models, text, tmp_path):
    given = ["--text", str(text), "--mask", "_", "--density", "0.05"]
    whole = learn(models["t5"], tmp_path / "whole.safetensors", *given)
    out = tmp_path / "stopped.safetensors"
    command = words(models["t5"], out, *given)
    with interrupted():
        assert run_command(lambda: LEARN.main(command)) == INTERRUPTED
        assert not out.exists()
        assert run_command(lambda: LEARN.main(command)) == USER_MISTAKE  # not without --resume
        assert run_command(lambda: LEARN.main([*command, "--resume"])) == INTERRUPTED
    assert LEARN.main([*command, "--resume"]) == 0
    found = SparseSkill.load(out)
    for name, change in whole.changes.items():
        assert torch.equal(found.changes[name].indices, change.indices)
        assert torch.equal(found.changes[name].values, change.values)
    assert not out.with_name(f"{out.name}.state").exists()


def test_a_run_that_was_killed_before_its_state_was_removed_ends(models, text, tmp_path):
    out = tmp_path / "a.safetensors"
    command = words(models["t5"], out, "--text", text, "--mask", "_", "--save-every", 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "unlink", lambda path, missing_ok=False: None)
        assert LEARN.main(command) == 0
    before = out.read_bytes()
    assert out.with_name(f"{out.name}.state").exists()
    assert LEARN.main([*command, "--resume"]) == 0
    assert out.read_bytes() == before
    assert sorted(path.name for path in tmp_path.glob("*a.safetensors*")) == ["a.safetensors"]


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        ("t5", ["--density", "2"], r"--density (2.0) must be at most 1"),
        ("t5", ["--sparse-lr", "nan"], "--sparse-lr (nan) must be above 0"),
        ("t5", ["--mask", "_", "--freeze", "x.*"], "--freeze 'x.*' matches no parameter"),
        ("t5", ["--mask", "_", "--freeze", "*"], "--freeze matches all parameters; leave some to"),
        ("t5", ["--mask", "_", "--on", "no.safetensors"], "'no.safetensors' does not exist"),
        ("llama", ["--mask", "_"], "--mask is only for encoder–decoder models"),
        ("bert", ["--mask", "_"], "--mask is only for encoder–decoder models"),
    ],
)
def test_mistakes_are_named(model, given, message, models, text, tmp_path, refused):
    out = tmp_path / "x.safetensors"
    assert message in refused(LEARN.main, *words(models[model], out, "--text", text, *given))
    assert not list(tmp_path.glob("x.*"))


def test_more_mistakes(models, text, tmp_path, refused):
    out, empty = tmp_path / "x.safetensors", tmp_path / "empty.txt"
    empty.write_text("\n \n")
    base = words(models["t5"], out)
    for given, message in (
        (["--text", empty], "the text has no line with tokens"),
        (["--text", text, "--save-every", 0], "at least 1"),
    ):
        assert message in refused(LEARN.main, *base, *given)
    state, given = out.with_name(f"{out.name}.state"), [*base, "--text", text, "--resume"]
    stoppable_loop.save_state(state, {}, {"lr": 3.0})
    assert "belongs to a run with other settings" in refused(LEARN.main, *given)
    state.unlink()
    out.touch()
    assert "exists; choose another --out" in refused(LEARN.main, *given)


def test_a_skill_of_another_network_is_refused_with_a_list(models, text, tmp_path, refused):
    skill, out = tmp_path / "a.safetensors", tmp_path / "x.safetensors"
    start = learn(models["t5"], skill, "--text", str(text), "--mask", "_", "--density", "1")
    torch.manual_seed(0)
    wide = build_random("t5", {**TINY_T5, "d_ff": 32, "vocab_size": 384})
    wide.save_pretrained(tmp_path / "wide")
    load_pretrained(str(models["t5"])).half().save_pretrained(tmp_path / "half")
    before = sorted(tmp_path.iterdir())
    for model, part in (
        ("wide", r"DenseReluDense.wi.weight: shape (32, 16) instead of (24, 16)"),
        ("half", "other weights"),  # read in single precision, but rounded
    ):
        common = ["--model", str(tmp_path / model), "--tokenizer", "byte"]
        learned = [*common, "--text", str(text), "--mask", "_", "--on", str(skill), *QUICK]
        for main, given in (
            (LEARN.main, [*learned, "--out", str(out)]),
            (COMPOSE.main, [*common, "--skills", str(skill), "--out", str(out)]),
        ):
            found = refused(main, *given)
            assert f"of {len(start.changes)}" in found
            assert part in found
    assert sorted(tmp_path.iterdir()) == before


def test_composing_refuses_what_does_not_fit(models, text, tmp_path, refused):
    skill, there = tmp_path / "a.safetensors", tmp_path / "there"
    learn(models["t5"], skill, "--text", text, "--mask", "_")
    there.mkdir()
    for model, given, out, message in (
        ("llama", [skill], "out", "was made for another network"),
        ("t5", [skill], None, "nothing to do"),
        ("t5", [f"{skill}=much"], "out", "'much' is not a number"),
        ("t5", [skill, f"{skill}=0.5"], "out", "is applied already; use each name once"),
        ("t5", [skill], "there", "' already exists; choose another path or remove it"),
    ):
        where = ["--out", tmp_path / out] if out else []
        named = ["--model", models[model], "--tokenizer", "byte", "--skills", *given]
        assert message in refused(COMPOSE.main, *named, *where)
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def gym(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks of all kinds of heads, from a file of trees."""
    folder = tmp_path_factory.mktemp("gym")
    lines, rows = [], ["text\tlabel"]
    for number in range(24):
        words = ["Bo", "sees", "Rome"][: 2 + number % 2]
        for place, word in enumerate(words, 1):
            head, relation = (0, "root") if place == 2 else (2, "dep")
            lines.append(f"{place}\t{word}\t_\tX{place}\t_\t_\t{head}\t{relation}\t_\t_")
        lines.append("")
        rows.append(f"{' '.join(words)} {number}\t{len(words)}")
    (folder / "a.conllu").write_text("\n".join(lines) + "\n")
    (folder / "a.tsv").write_text("\n".join(rows) + "\n")
    source = {"train": "a.conllu", "format": "conllu"}
    tasks = {
        **{name: {"kind": "tokens", "source": source} for name in ("tags", "tags_2")},
        "trees": {"kind": "tree", "source": source},
    }
    shared = {"source": {"train": "a.tsv"}, "input": "{text}", "output": "{label}"}
    tasks |= {"length": {"kind": "label", **shared}, "said": {"kind": "text-to-text", **shared}}
    tasks = {"k": 8, "tasks": tasks}
    (folder / "tasks.yaml").write_text(yaml12.dump(tasks))
    given = ["--config", str(folder / "tasks.yaml"), "--samples", "100"]
    assert BUILD.main([*given, "--out", str(folder / "gym"), "--workers", "1"]) == 0
    return folder / "gym"


@pytest.fixture
def masking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give bytes a mask token."""
    tokenizer = load_tokenizer("byte")
    tokenizer.add_special_tokens({"mask_token": "<extra_id_1>"})
    monkeypatch.setattr("mttl.models.backbone.load_tokenizer", lambda name: tokenizer)


@pytest.mark.parametrize(
    ("name", "task", "metric"),
    [("bert", "tags", "tag-accuracy"), ("llama", "length", "accuracy"), ("t5", "trees", "LAS")],
)
@pytest.mark.usefixtures("masking")
def test_a_head_on_top_of_a_language(name, task, metric, models, gym, text, tmp_path, capsys):
    """Learned on one language, the task is solved on another, and by the saved composition."""
    long = ["--full-steps", "40", "--sparse-steps", "60", "--lr", "3e-2", "--density", "0.1"]
    mask = ["--mask", "_"] if name == "t5" else []
    given, paths = ["--gym", str(gym)], [tmp_path / f"{one}.safetensors" for one in "abc"]
    for path in paths[:2]:
        learn(models[name], path, "--text", str(text), *mask, "--density", "0.1")
    learned = [*given, "--task", task, "--on", paths[0], *long]
    skill = learn(models[name], paths[2], *learned)
    labels = {"tags": ["X1", "X2", "X3"], "length": ["2", "3"], "trees": ["dep", "root"]}
    assert skill.about["head"]["form"]["labels"] == labels[task]
    base = ["--tokenizer", "byte", *given, "--score", task]
    shown, out = [], tmp_path / "out"
    for more in (
        ["--model", str(models[name]), "--skills", str(paths[0]), str(paths[2])],
        ["--model", str(models[name]), "--skills", str(paths[1]), str(paths[2]), "--out", str(out)],
        ["--model", str(out), "--skills", str(out / "head_1.safetensors")],
    ):
        assert COMPOSE.main([*base, *more]) == 0
        shown.append(capsys.readouterr().out.split("The model")[0].splitlines()[-1])
    assert shown[0].startswith(f"{task}, test rows: {metric} 100.0 % of ")
    assert shown[1] == shown[2]


@pytest.mark.usefixtures("masking")
def test_a_stopped_run_with_sources_of_their_own_ends_with_the_same_head(
    models, gym, text, tmp_path
):
    languages = [tmp_path / f"{name}.safetensors" for name in "ab"]
    for path, seed in zip(languages, (1, 2), strict=True):
        learn(models["bert"], path, "--text", text, "--density", "0.1", "--seed", seed)
    tasks = [f"{task}={path}" for task, path in zip(("tags", "tags_2"), languages, strict=True)]
    given = ["--gym", gym, "--task", *tasks, "--density", "0.1"]
    whole = learn(models["bert"], tmp_path / "whole.safetensors", *given)
    out = tmp_path / "stopped.safetensors"
    command = words(models["bert"], out, *given)
    with interrupted():
        assert run_command(lambda: LEARN.main(command)) == INTERRUPTED
        assert run_command(lambda: LEARN.main([*command, "--resume"])) == INTERRUPTED
    assert LEARN.main([*command, "--resume"]) == 0
    found = SparseSkill.load(out)
    assert found.head.keys() == whole.head.keys() != set()
    assert all(torch.equal(found.head[name], value) for name, value in whole.head.items())
    for name, change in whole.changes.items():
        assert torch.equal(found.changes[name].values, change.values)


def test_what_does_not_work_with_heads(models, gym, tmp_path, refused):
    out, skill = tmp_path / "x.safetensors", tmp_path / "a.safetensors"
    other = tmp_path / "b.safetensors"
    learn(models["bert"], skill, "--gym", gym, "--task", "tags")
    learn(models["bert"], other, "--gym", gym, "--task", "length")
    for tasks, message in (
        (["said"], "a BertForMaskedLM generates no answers; give all tasks a head"),
        (
            ["tags", "said"],
            "'tags' has a head, but 'said' has no head (kind: tokens, label or tree)",
        ),
        (["tags", "length"], "--task: heads of the kinds label, tokens; use one kind"),
        (["tags=no"], "'no' does not exist"),
    ):
        given = words(models["bert"], out, "--gym", gym, "--task", *tasks)
        assert message in refused(LEARN.main, *given)
    base = ["--model", models["bert"], "--tokenizer", "byte", "--gym", gym, "--skills"]
    for skills, task, message in (
        (
            [skill, other],
            "tags",
            f"needs --skills with one head, but heads are in {skill}, {other}",
        ),
        ([other], "tags", "needs a head of the kind tokens, but that of"),
        ([skill], "said", "a BertForMaskedLM generates no answers"),
    ):
        assert message in refused(COMPOSE.main, *base, *skills, "--score", task)
