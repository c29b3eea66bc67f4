import csv
import json
import re
from pathlib import Path

import pytest

from helpers.command import ROOT
from mttl.assembly.build_router import read_expert_matrix
from mttl.config.babyai_schema import BabyAIConfig
from mttl.config.load import configs_dir, dump_config, find_file, load_any_config, load_config
from mttl.config.moe_schema import TokenExperts
from mttl.config.schema import Config
from mttl.config.section import kind_of, models_in
from mttl.io.errors import ConfigError
from mttl.plugins.parts import PARTS
from mttl.tasks.task_file import crossfit

FILES = sorted(path.relative_to(configs_dir()).as_posix() for path in configs_dir().rglob("*.yaml"))
MAIN = [name for name in FILES if "/" not in name]
FRAGMENTS = [name for name in FILES if "/" in name]


@pytest.mark.parametrize("name", MAIN)
def test_main_files_validate_alone(name: str) -> None:
    config = load_any_config(name, ["data.tasks=tasks.yaml"] * (name == "custom.yaml"))
    if isinstance(config, BabyAIConfig):
        assert name.startswith("babyai")
    elif config.data.partition != "auto":
        assert find_file(config.data.partition).is_file()


@pytest.mark.parametrize("name", FRAGMENTS)
def test_fragments_validate_on_the_default(name: str) -> None:
    if name.startswith("babyai/"):
        assert isinstance(load_any_config(f"babyai.yaml+{name}"), BabyAIConfig)
        assert isinstance(load_any_config(f"babyai_paper.yaml+{name}"), BabyAIConfig)
    elif name.startswith("experts/"):
        load_config(f"crossfit.yaml+router/token_top2.yaml+{name}")
    else:
        load_config(f"crossfit.yaml+{name}")


def test_every_kind_has_a_fragment() -> None:
    kinds: dict[str, set[str]] = {"router": {"none"}, "skills": set(), "optim": set()}
    routers, experts = set(), {"lora"}
    for name in FRAGMENTS:
        section = name.partition("/")[0]
        if section == "experts":
            experts.add(
                load_config(f"crossfit.yaml+router/token_top2.yaml+{name}").moe.experts.kind
            )
        elif section in kinds:
            config = load_config(f"crossfit.yaml+{name}")
            kinds[section].add(getattr(config, section).kind)
            routers |= {config.moe.router.kind} if config.moe else set()
    assert kinds["skills"] == {*PARTS["skills"], "several"}
    assert kinds["optim"] == {"adamw", "adam", "adafactor"}
    assert kinds["router"] == {*PARTS["routers"]}
    assert routers == set(PARTS["token_routers"])
    assert experts == {kind_of(one) for one in models_in(TokenExperts)}


def test_the_expert_matrix_is_the_tasks_families() -> None:
    config = load_config("crossfit.yaml+router/expert.yaml")
    assert config.router.kind == "expert"
    lexical = configs_dir().parent / "data" / "lexical" / "TASKS.csv"
    families = {row["task"]: row["family"] for row in _rows(lexical)}
    rows = _rows(find_file(config.router.matrix))
    assert set(_partition(config)["train"]) <= {row["task"] for row in rows}
    assert config.skills.n_skills == len(rows[0]) - 1
    for row in rows:
        task = row.pop("task")
        assert [name for name, weight in row.items() if float(weight)] == [families[task]]


def test_the_expert_of_crossfit_knows_the_ontology_of_all_tasks() -> None:
    """The paper's baseline starts: all its tasks have a row, new ones that of their category."""
    config = load_config("crossfit_paper.yaml+router/expert.yaml")
    assert config.adapt.init == "expert_row"
    rows = _rows(find_file(config.router.matrix))
    tops = sorted({task.category.split("/")[0] for task in crossfit().values()})
    assert list(rows[0]) == ["task", *tops]
    for row in rows:
        task = row.pop("task")
        assert [top for top in tops if row[top] == "1"] == [crossfit()[task].category.split("/")[0]]


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
    tasks = [task for side in _partition(config).values() for task in side]
    assert len(read_expert_matrix(config.router.matrix, tasks, n_skills)) == len(tasks)
    assert "per_column" not in dump_config(config)


@pytest.mark.parametrize(
    ("files", "override", "message"),
    [
        ("", "skills.n_skills=per_column", "skills.n_skills 'per_column' needs an expert router"),
        ("+router/expert.yaml", "data.expert_matrix=null", "skills.n_skills 'per_column' needs an"),
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
    fused = load_config("crossfit.yaml+router/private.yaml+aggregation/fusion.yaml").adapt
    assert (fused.mode, fused.init) == ("all", "auto")


def test_the_page_lists_what_is_shipped() -> None:
    page = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w/*]+\.yaml)` \| (.*) \|$", page, flags=re.MULTILINE)
    listed: set[str] = set()
    for pattern, text in rows:
        room, star, _ = pattern.rpartition("/*")
        names = re.findall(r"`(\w+)`", text) if star else []
        listed |= {f"{room}/{name}.yaml" for name in names} or {pattern}
    assert listed == set(FILES)


def _partition(config: Config) -> dict[str, list[str]]:
    given = config.data.partition
    return json.loads(find_file(given).read_text("utf-8")) if isinstance(given, str) else given


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
