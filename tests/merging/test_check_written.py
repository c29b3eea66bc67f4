"""What is written for others is read by them: a mismatch ends in status 2 and leaves nothing."""

import importlib
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.cards import QUESTIONS, run_card
from helpers.gyms import TINY_LLAMA, TINY_T5, make_run, store_backbone
from mttl.assembly.model import load_run
from mttl.assembly.saved_run import Built
from mttl.io import yaml12
from mttl.io.errors import CheckpointError
from mttl.merging.check_written import check_written, logits, rounding
from mttl.models.backbone import build_random, load_pretrained
from mttl.runtime.command import USER_MISTAKE, run_command

pytest.importorskip("peft")
SCRIPTS = {
    name: importlib.import_module(f"mttl.commands.{name}")
    for name in ("merge_task", "merge", "export", "library", "compose")
}
MODEL, ADAPTER = "model.safetensors", "adapter_model.safetensors"
ENDS = ("SelfAttention.o.weight", "A.weight", "_A")
COMMANDS = {
    "merge-task": ("merge_task", "{run} --task copy", MODEL),
    "average": ("merge_task", "{run} --average", MODEL),
    "merge": ("merge", "{recipe}", MODEL),
    "export": ("export", "{run} --task copy", ADAPTER),
    "cut off": ("export", "{run} --task copy --rank 1", ADAPTER),
    "all": ("export", "{run} --all", ADAPTER),
    "inventory": ("export", "{run} --inventory", ADAPTER),
    "library export": ("library", "export {library}", ADAPTER),
    "library run": ("library", "run {library} -c {config}", "skills.safetensors"),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A half-precision base, a run over it that answers in single precision, and its library."""
    folder = tmp_path_factory.mktemp("written")
    torch.manual_seed(0)  # answers differ between questions
    below = store_backbone(folder / "base", {**TINY_T5, "initial_scale": {"*": 3.0}})
    load_pretrained(below["name"]).half().save_pretrained(below["name"])
    run, config = make_run(folder, "optim.lr=1", backbone=below), folder / "tiny.yaml"
    assert SCRIPTS["library"].main(["add", str(folder / "library"), str(run)]) == 0
    recipe = folder / "recipe.yaml"
    models = {
        "base": {"model": str(folder / "base")},
        "models": [{"run": str(run), "task": "copy"}],
    }
    recipe.write_text(yaml12.dump(models | {"method": {"kind": "arithmetic"}}))
    return {"run": run, "recipe": recipe, "library": folder / "library", "config": config}


def damage(folder: Path, network, file: str, how: str) -> str:
    """Change a tensor's value or name, in the file or in the run that was loaded; name it."""
    if isinstance(network, Built):
        with torch.no_grad():
            next(value for name, value in network.model.named_parameters() if "up" in name).mul_(
                1.5
            )
        return network.tasks[0]
    tensors = load_file(folder / file)
    name = next(name for name in tensors if name.endswith(ENDS))
    value = tensors.pop(name)
    tensors[name if how == "value" else "strange.up"] = 1.5 * value
    save_file(tensors, folder / file, {"format": "pt"})
    return name.removesuffix(".weight")


@pytest.mark.every(3)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_mismatch_leaves_nothing(command, places, tmp_path, monkeypatch, capsys) -> None:
    """A tensor is changed, or its name, before it is read: refused, with that name."""
    script, words, file = COMMANDS[command]
    call = [*(word.format(**places) for word in words.split()), "--out", str(tmp_path / "out")]
    named: list[str] = []
    for how in ("value", "name") if command != "library run" else ("value",):

        def damaged(folder, network, answers, like=None, how=how):
            if folder.name != "base_model":
                named.append(damage(folder, network, file, how))
            check_written(folder, network, answers, like)

        for module in ("run", "check_written"):
            monkeypatch.setattr(f"mttl.merging.{module}.check_written", damaged)
        for more in ([], ["--no-probe"]):
            if how == "value" and more:  # nothing but the answers shows it
                continue
            capsys.readouterr()
            assert run_command(lambda: SCRIPTS[script].main([*call, *more])) == USER_MISTAKE  # noqa: B023
            told = capsys.readouterr().err
            assert "do not load as intended" in told
            assert ("different logits" in told) == (how == "value")
            assert how == "value" or named[-1] in told.replace("\n", "")
            assert not list(tmp_path.iterdir())


def test_cards_answer_in_the_precision_of_the_run(places, tmp_path: Path) -> None:
    """The base is stored in half precision, and the run read it in single."""
    run = load_run(places["run"])
    asked = dict(zip(run.predict("copy", QUESTIONS), QUESTIONS, strict=True))
    assert len(asked) > 1
    for command in ("merge-task", "merge", "export"):
        script, words, _ = COMMANDS[command]
        out, given = tmp_path / command, [word.format(**places) for word in words.split()]
        assert SCRIPTS[script].main([*given, "--out", str(out)]) == 0
        assert 'dtype="float32"' in (out / "README.md").read_text()
        if command != "merge":  # which rounds what it writes to half precision
            assert run_card(out, [*asked.values()]) == [*asked]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_rounding_follows_from_the_type(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """What the type explains passes, and ten times as much does not."""
    network = build_random(kind, {"t5": TINY_T5, "llama": TINY_LLAMA}[kind]["config"])
    torch.nn.Module.to(network, dtype).eval()
    network.save_pretrained(tmp_path)
    answer = logits(network)
    for share in (0.5, 10):
        off = answer + share * rounding(network) * answer
        refused = pytest.raises(CheckpointError, match="different logits")
        with refused if share > 1 else nullcontext():
            check_written(tmp_path, network, {"it": off})
