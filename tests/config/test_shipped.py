import csv
import json
from pathlib import Path

import pytest

from mttl.config.load import configs_dir, load_config, resolve_path

FILES = sorted(path.relative_to(configs_dir()).as_posix() for path in configs_dir().rglob("*.yaml"))
MAIN = [name for name in FILES if "/" not in name]
FRAGMENTS = [name for name in FILES if "/" in name]


@pytest.mark.parametrize("name", MAIN)
def test_main_files_validate_alone(name: str) -> None:
    config = load_config(name)
    assert resolve_path(config.data.partition).is_file()


@pytest.mark.parametrize("name", FRAGMENTS)
def test_fragments_validate_on_the_default(name: str) -> None:
    load_config(f"crossfit.yaml+{name}")


@pytest.mark.parametrize("name", FILES)
def test_every_file_says_what_it_is(name: str) -> None:
    assert (configs_dir() / name).read_text(encoding="utf-8").startswith("# ")


def test_every_kind_has_a_fragment() -> None:
    kinds: dict[str, set[str]] = {"router": set(), "skills": set(), "optim": set()}
    for section, found in kinds.items():
        for name in FRAGMENTS:
            if name.startswith(f"{section}/"):
                found.add(getattr(load_config(f"crossfit.yaml+{name}"), section).kind)
    assert kinds["skills"] == {"lora", "ia3", "dense"}
    assert kinds["optim"] == {"adamw", "adam", "adafactor"}
    assert kinds["router"] == {
        "polytropon", "shared", "private", "expert", "average", "task_moe", "hyperformer"
    }  # fmt: skip


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


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
