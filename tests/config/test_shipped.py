import csv
import json
import re
from pathlib import Path
from typing import get_args

import pytest

from helpers.command import ROOT
from mttl.assembly.build_router import read_expert_matrix
from mttl.config.babyai_schema import BabyAIConfig
from mttl.config.load import configs_dir, dump_config, load_any_config, load_config, resolve_path
from mttl.config.moe_schema import TokenExperts
from mttl.io.errors import ConfigError
from mttl.plugins.parts import PARTS
from mttl.skills import KINDS
from mttl.tasks.task_file import crossfit

FILES = sorted(path.relative_to(configs_dir()).as_posix() for path in configs_dir().rglob("*.yaml"))
MAIN = [name for name in FILES if "/" not in name]
FRAGMENTS = [name for name in FILES if "/" in name]


@pytest.mark.parametrize("name", MAIN)
def test_main_files_validate_alone(name: str) -> None:
    config = load_any_config(name)
    if isinstance(config, BabyAIConfig):
        assert name.startswith("babyai")
    else:
        assert resolve_path(config.data.partition, "data.partition").is_file()


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
    assert kinds["skills"] == {*KINDS, "several"}
    assert kinds["optim"] == {"adamw", "adam", "adafactor"}
    assert kinds["router"] | {"none"} == {*PARTS["routers"]}


def test_every_kind_of_token_routing_has_a_fragment() -> None:
    routers, experts = set(), {"lora"}
    for name in FRAGMENTS:
        if name.startswith("router/"):
            moe = load_config(f"crossfit.yaml+{name}").moe
            assert moe is not None or "/token_" not in name
            routers |= {moe.router.kind} if moe else set()
        if name.startswith("experts/"):
            moe = load_config(f"crossfit.yaml+router/token_top2.yaml+{name}").moe
            assert moe is not None
            experts.add(moe.experts.kind)
    assert routers == set(PARTS["token_routers"])
    sections = get_args(get_args(TokenExperts)[0])
    assert experts == {get_args(one.model_fields["kind"].annotation)[0] for one in sections}


def test_the_expert_matrix_is_the_tasks_families() -> None:
    config = load_config("crossfit.yaml+router/expert.yaml")
    assert config.router.kind == "expert"
    lexical = configs_dir().parent / "data" / "lexical" / "TASKS.csv"
    families = {row["task"]: row["family"] for row in _rows(lexical)}
    rows = _rows(resolve_path(config.router.matrix, "router.matrix"))
    partition = json.loads(
        resolve_path(config.data.partition, "data.partition").read_text(encoding="utf-8")
    )
    assert set(partition["train"]) <= {row["task"] for row in rows}
    assert config.skills.n_skills == len(rows[0]) - 1
    for row in rows:
        task = row.pop("task")
        assert [name for name, weight in row.items() if float(weight)] == [families[task]]


def test_the_expert_of_crossfit_knows_the_ontology_of_all_tasks() -> None:
    """The paper's baseline starts: all its tasks have a row, new ones that of their category."""
    config = load_config("crossfit_paper.yaml+router/expert.yaml")
    assert config.adapt.init == "expert_row"
    rows = _rows(resolve_path(config.router.matrix, "router.matrix"))
    tops = sorted({task.category.split("/")[0] for task in crossfit().values()})
    assert list(rows[0]) == ["task", *tops]
    for row in rows:
        task = row.pop("task")
        assert [top for top in tops if row[top] == "1"] == [crossfit()[task].category.split("/")[0]]
    partition = json.loads(
        resolve_path(config.data.partition, "data.partition").read_text(encoding="utf-8")
    )
    tasks = [task for side in partition.values() for task in side]
    assert read_expert_matrix(config.router.matrix, tasks, config.skills.n_skills).shape == (160, 4)


@pytest.mark.parametrize(
    ("files", "n_skills"),
    [
        ("crossfit.yaml", 7),
        ("crossfit_paper.yaml", 4),
        ("crossfit.yaml+data/crossfit_tasks.yaml", 4),
        ("crossfit.yaml+data/crossfit_library.yaml", 4),
        ("crossfit.yaml+data/grid.yaml", 28),
    ],
)
def test_an_expert_takes_the_matrix_of_its_gym(files: str, n_skills: int) -> None:
    """One file serves every gym; what is written down names the matrix and the number."""
    config = load_config(f"{files}+router/expert.yaml")
    assert config.router.matrix == config.data.expert_matrix
    assert config.skills.n_skills == n_skills
    partition = config.data.partition
    if isinstance(partition, str):
        partition = json.loads(
            resolve_path(partition, "data.partition").read_text(encoding="utf-8")
        )
    tasks = [task for side in partition.values() for task in side]
    assert len(read_expert_matrix(config.router.matrix, tasks, n_skills)) == len(tasks)
    assert "per_column" not in dump_config(config)


@pytest.mark.parametrize(
    ("files", "override", "message"),
    [
        ("", "skills.n_skills=per_column", "router.kind: expert, and name a file in"),
        ("+router/expert.yaml", "data.expert_matrix=null", "name a file in router.matrix"),
        ("+router/expert.yaml", "data.expert_matrix=nowhere.csv", "file 'nowhere.csv' does not"),
        ("+router/private.yaml", "router.kind=expert", "'per_task' is for the private router"),
    ],
)
def test_a_skill_per_column_needs_columns(files: str, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(f"crossfit.yaml{files}", [override])


def test_baselines_adapt_as_published() -> None:
    private = load_config("crossfit_paper.yaml+router/private.yaml").adapt
    assert (private.mode, private.init) == ("skills_only", "private_skill")
    assert load_config("crossfit_paper.yaml+router/expert.yaml").adapt.init == "expert_row"
    fused = load_config("crossfit.yaml+router/private.yaml+aggregation/fusion.yaml").adapt
    assert (fused.mode, fused.init) == ("all", "auto")


def test_the_page_lists_what_is_shipped() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w/*]+\.yaml)` \| (.*) \|$", page, flags=re.MULTILINE)
    listed: set[str] = set()
    for pattern, text in rows:
        room, star, _ = pattern.rpartition("/*")
        names = re.findall(r"`(\w+)`", text) if star else []
        listed |= {f"{room}/{name}.yaml" for name in names} or {pattern}
    assert listed == set(FILES)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
