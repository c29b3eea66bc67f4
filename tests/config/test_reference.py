"""Every setting has a line with its type, its default and its sentence."""

import pytest

from helpers.command import ROOT, load_recipe
from mttl.config.config_errors import models_in
from mttl.config.reference import reference
from mttl.config.section import Section
from mttl.config.worlds import WORLDS
from mttl.runtime.command import USER_MISTAKE, run_command


@pytest.mark.parametrize(
    "line",
    [
        "- `optim.lr` (number > 0; default 0.001): Learning rate of the skills.",
        "- `optim.kind` (adamw | adam | adafactor; required): `adamw`: Adam with decoupled",
        "- `data.sampler.kind` (proportional | uniform | temperature | homogeneous; default prop",
        "- `data.sampler.temperature` (number > 0 or none; default none): Temperature, by",
        "- `backbone.train` (true or false or list of text; default true): Train the backbone",
        "- `backbone.train` (true or false or list of text; default false): Train the backbone",
        "- `skills.kinds` (list of sections `skills`; required): One section `skills` per kind",
        "- `moe.targets` (list of text; default [mlp]): ",
        "- `moe.balance.bias` (number ≥ 0; default 0.0): ",
        "- `run.dir` (text; default runs): Folder of all runs.",
        "- `rl.ppo.n_steps` (whole number > 0; default 40): ",
        "- `trainer.max_epochs` (whole number ≥ -1 or none; default none): ",
        "- `backbone.config` (mapping to any value; default {}): ",
    ],
)
def test_lines(line: str) -> None:
    assert f"\n{line}" in reference()


def settings(schema: type[Section]) -> set[str]:
    """Return the names of all settings below a schema, of all kinds."""
    names: set[str] = set()
    for name, field in schema.model_fields.items():
        inner = models_in(field.annotation)
        names |= {f"{name}.{below}" for model in inner for below in settings(model)} or {name}
    return names


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.section)
def test_every_setting_has_a_sentence(world) -> None:
    lines = [line for line in reference().splitlines() if line.startswith("- `")]
    assert all(line.partition("): ")[2] for line in lines)
    given = {line.split("`")[1] for line in lines}
    # Ranges and rates of tasks have one sentence; settings of kinds are those of skills.
    apart = ("search.ranges", "optim.tasks.", "skills.kinds.")
    listed = {name for name in settings(world.schema) if not name.startswith(apart)}
    assert listed - {name for name in listed if name.endswith(".kind")} <= given


def test_a_section_alone() -> None:
    text = reference("rl")
    assert text.startswith("## Settings of a policy for BabyAI\n\n### rl\n")
    assert "### optim" not in text
    assert " Same settings as above." in reference("optim")
    assert reference("skills").count("### skills") == 2


@pytest.mark.parametrize("recipe", ["pl_train", "pl_finetune", "pl_search"])
def test_commands_show_settings(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    main = load_recipe(ROOT / f"{recipe}.py").main
    with pytest.raises(SystemExit) as end:
        main(["--settings", "run"])
    assert not end.value.code
    assert "`run.seed` (whole number ≥ 0, < 4294967296; default 13)" in capsys.readouterr().out
    assert run_command(lambda: main(["--settings", "rnu"])) == USER_MISTAKE
    assert "there is no section 'rnu'. Did you mean 'run'?" in capsys.readouterr().err
