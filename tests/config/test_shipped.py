import csv
import json
import re
import shlex
from pathlib import Path
from typing import get_args

import pytest

from helpers.command import ROOT, load_recipe
from mttl import yaml12
from mttl.build.build_moe import TOKEN_ROUTERS
from mttl.build.expert_matrix import read_expert_matrix
from mttl.config.babyai_schema import BabyAIConfig
from mttl.config.load import configs_dir, load_any_config, load_config, resolve_path
from mttl.config.moe_schema import TokenExperts
from mttl.gym.table import crossfit, ontology

FILES = sorted(path.relative_to(configs_dir()).as_posix() for path in configs_dir().rglob("*.yaml"))
MAIN = [name for name in FILES if "/" not in name]
FRAGMENTS = [name for name in FILES if "/" in name]


@pytest.mark.parametrize("name", MAIN)
def test_main_files_validate_alone(name: str) -> None:
    config = load_any_config(name)
    if isinstance(config, BabyAIConfig):
        assert name.startswith("babyai")
    else:
        assert resolve_path(config.data.partition).is_file()


@pytest.mark.parametrize("name", FRAGMENTS)
def test_fragments_validate_on_the_default(name: str) -> None:
    if name.startswith("babyai/"):
        assert isinstance(load_any_config(f"babyai.yaml+{name}"), BabyAIConfig)
        assert isinstance(load_any_config(f"babyai_paper.yaml+{name}"), BabyAIConfig)
    elif name.startswith("experts/"):
        load_config(f"crossfit.yaml+router/token_top2.yaml+{name}")
    else:
        load_config(f"crossfit.yaml+{name}")


@pytest.mark.parametrize("name", FILES)
def test_every_file_says_what_it_is(name: str) -> None:
    assert (configs_dir() / name).read_text(encoding="utf-8").startswith("# ")


def test_every_kind_has_a_fragment() -> None:
    kinds: dict[str, set[str]] = {"router": set(), "skills": set(), "optim": set()}
    for section, found in kinds.items():
        for name in FRAGMENTS:
            if name.startswith(f"{section}/") and "/token_" not in name:
                found.add(getattr(load_config(f"crossfit.yaml+{name}"), section).kind)
    assert kinds["skills"] == {
        *("lora", "ia3", "dense", "sparse", "supermask", "bitfit", "krona", "head_mask"),
        *("adapter", "compacter", "several", "intrinsic", "prefix", "prompt", "diff_pruning"),
    }
    assert kinds["optim"] == {"adamw", "adam", "adafactor"}
    assert kinds["router"] == {
        *("polytropon", "shared", "private", "expert", "average", "task_moe", "hyperformer"),
        *("categorical", "score_function", "metadata", "random"),
    }


def test_every_kind_of_token_routing_has_a_fragment() -> None:
    routers, experts = set(), {"lora"}
    for name in FRAGMENTS:
        if name.startswith("router/token_"):
            moe = load_config(f"crossfit.yaml+{name}").moe
            assert moe is not None
            routers.add(moe.router.kind)
        if name.startswith("experts/"):
            moe = load_config(f"crossfit.yaml+router/token_top2.yaml+{name}").moe
            assert moe is not None
            experts.add(moe.experts.kind)
    assert routers == set(TOKEN_ROUTERS)
    sections = get_args(get_args(TokenExperts)[0])
    assert experts == {get_args(one.model_fields["kind"].annotation)[0] for one in sections}


def test_the_expert_matrix_is_the_tasks_families() -> None:
    config = load_config("crossfit.yaml+router/expert.yaml")
    assert config.router.kind == "expert"
    lexical = configs_dir().parent / "data" / "lexical" / "TASKS.csv"
    families = {row["task"]: row["family"] for row in _rows(lexical)}
    rows = _rows(resolve_path(config.router.matrix))
    partition = json.loads(resolve_path(config.data.partition).read_text(encoding="utf-8"))
    assert set(partition["train"]) <= {row["task"] for row in rows}
    assert config.skills.n_skills == len(rows[0]) - 1
    for row in rows:
        task = row.pop("task")
        assert [name for name, weight in row.items() if float(weight)] == [families[task]]


def test_the_expert_of_crossfit_knows_the_ontology_of_all_tasks() -> None:
    """The paper's baseline starts: all its tasks have a row, new ones that of their category."""
    config = load_config("crossfit_paper.yaml+router/expert_crossfit.yaml")
    assert config.adapt.init == "matrix"
    rows = _rows(resolve_path(config.router.matrix))
    tops = list(ontology(crossfit()))
    assert list(rows[0]) == ["task", *tops]
    for row in rows:
        task = row.pop("task")
        assert [top for top in tops if row[top] == "1"] == [crossfit()[task].category.split("/")[0]]
    partition = json.loads(resolve_path(config.data.partition).read_text(encoding="utf-8"))
    tasks = [task for side in partition.values() for task in side]
    assert read_expert_matrix(config.router.matrix, tasks, config.skills.n_skills).shape == (160, 4)


def test_the_papers_setting_adapts_as_the_paper_does() -> None:
    assert (
        load_config("crossfit_paper.yaml").adapt
        == load_config("crossfit.yaml+adapt/paper.yaml").adapt
    )


@pytest.mark.parametrize("name", [name for name in FRAGMENTS if name.startswith("router/")])
def test_routers_validate_on_the_papers_setting(name: str) -> None:
    config = load_config(f"crossfit_paper.yaml+{name}")
    assert config.backbone == load_config("crossfit_paper.yaml").backbone


# What the README prints.


README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"python (pl_\w+\.py [^`\n]*)", README)


def test_the_commands_of_the_readme_are_found() -> None:
    section = README.partition("## Commands")[2].partition("\n## ")[0]
    printed = [line for line in section.splitlines() if line.startswith("python pl_")]
    assert len(printed) >= 5
    for line in printed:
        assert line.removeprefix("python ") in COMMANDS
    assert COMMANDS[0] == "pl_train.py -c crossfit.yaml"  # the one beside the installation


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_readme_parse_and_load(command: str) -> None:
    script, *words = shlex.split(command.partition(" < ")[0], comments=True)
    options = load_recipe(ROOT / script).parse(words)
    if script == "pl_predict.py":  # it takes what the run says
        return
    overrides = options.override
    config = load_any_config(options.config, overrides)
    for text in overrides:
        key, _, value = text.partition("=")
        section, name = key.split(".")
        assert str(getattr(getattr(config, section), name)) == str(yaml12.parse(value))


def test_the_readme_lists_what_is_shipped() -> None:
    rows = re.findall(r"^\| `([\w/*]+\.yaml)` \| (.*) \|$", README, flags=re.MULTILINE)
    listed: set[str] = set()
    for pattern, text in rows:
        room, star, _ = pattern.rpartition("/*")
        names = re.findall(r"`(\w+)`", text) if star else []
        listed |= {f"{room}/{name}.yaml" for name in names} or {pattern}
    assert listed == set(FILES)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
