"""One command trains every kind and prints one table."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from helpers.command import ROOT, load_recipe

OTHER_GYMS = ("router/expert_grid", "router/expert_crossfit", "router/metadata_grid")
SCRIPT = load_recipe(ROOT / "scripts" / "train_all_kinds.py")


def test_every_shipped_router_and_skill_is_in_the_table() -> None:
    """LoRA is the default's kind: the routers' rows show it. Tokens are in the comparison.

    The matrices of `expert_grid` and `expert_crossfit` and the factors of `metadata_grid` are of
    other gyms' tasks.
    """
    shipped = {
        f"{room}/{path.stem}"
        for room in ("router", "skills")
        for path in (ROOT / "configs" / room).glob("*.yaml")
        if not path.stem.startswith("token_")
    }
    assert set(SCRIPT.FRAGMENTS) == shipped - {"skills/lora", *OTHER_GYMS}


def test_a_finished_run_is_read_and_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "router-shared"
    (folder / "skills").mkdir(parents=True)
    save_file({"a": torch.zeros(7)}, folder / "skills" / "skills.safetensors")
    (folder / "minutes.json").write_text(json.dumps(1.25))
    (folder / "results.csv").write_text(
        "task,split,sample,seed,metric,score,n\n"
        "one,dev,100,13,EM,0.1,5\nmean,dev,all,13,mean,0.25,5\nmean,test,all,13,mean,0.5,5\n"
    )
    assert SCRIPT.main(["--fragments", "router/shared", "--out", str(tmp_path)]) == 0
    assert "| `router/shared` | 7 | 25.0 | 50.0 | 1.2 |" in capsys.readouterr().out
    assert "router/shared" in (tmp_path / "table.md").read_text()
    assert not (tmp_path / "router-shared.log").exists()


def test_an_unknown_fragment_costs_no_training(tmp_path: Path) -> None:
    with pytest.raises(SCRIPT.MttlError, match="router/shard"):
        SCRIPT.main(["--fragments", "router/shard", "--out", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []
