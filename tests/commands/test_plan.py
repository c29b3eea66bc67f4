"""The command that plans memory, and the configurations that it ships with."""

import json
import re
from pathlib import Path

import pytest

from helpers.command import ROOT
from helpers.gyms import TINY_T5, write_config, write_gym
from mttl.commands import plan


def test_parts_are_printed_with_what_fits(tmp_path: Path, capsys) -> None:
    config = write_config(tmp_path / "tiny.yaml", write_gym(tmp_path / "gym"))
    settings = ["-k", "data.global_batch_size=8", "trainer.strategy=ddp"]
    given = ["-c", str(config), *settings, "--processes", "4", "--gpu-memory", "24"]
    assert plan.main(given) == 0
    printed = capsys.readouterr().out
    assert "Memory in GiB per process (4 in total), 2" in printed
    for part in ("skills (float32)", "optimizer", "gradient buckets", "activations"):
        assert part in printed
    assert "24 GiB: fits" in printed


def test_backbones_are_compared_without_a_gym(tmp_path: Path, capsys) -> None:
    from transformers import AutoConfig

    for name, size in (("small", 16), ("large", 64)):
        sizes = {**TINY_T5["config"], "d_model": size, "decoder_start_token_id": 0}
        AutoConfig.for_model("t5", **sizes).save_pretrained(tmp_path / name)
    config = write_config(tmp_path / "tiny.yaml", tmp_path / "no_gym")
    folders = [str(tmp_path / "small"), str(tmp_path / "large")]
    given = ["-c", str(config), "--tasks", "3", "--processes", "2", "--gpu-memory", "1"]
    assert plan.main([*given, "--backbones", *folders]) == 0
    printed = capsys.readouterr().out
    assert "| backbone | ddp | ddp, nf4 | fsdp2 on 2 |" in printed
    assert re.search(r"\| small \| 0\.\d\d → 1 \|", printed)
    assert "| large |" in printed


def test_shipped_sizes_have_the_published_numbers_of_parameters() -> None:
    import torch
    from transformers import AutoConfig

    from mttl.models.backbone import read_architecture

    # Millions of parameters, as their authors say.
    published = {
        "t5_small": 60.5,
        "t5_11b": 11307,
        "llama_1b": 1236,
        "bart_large": 406.3,
        "llama_7b": 6738,
    }
    for name, millions in published.items():
        kind, settings = read_architecture(str(ROOT / "configs" / "sizes" / name))
        with torch.device("meta"):
            model = kind.from_config(settings)
        found = sum(parameter.numel() for parameter in model.parameters()) / 1e6
        assert found == pytest.approx(millions, rel=0.002), name
    for path in sorted((ROOT / "configs" / "sizes").glob("*/config.json")):
        assert (
            AutoConfig.from_pretrained(path.parent).model_type
            == json.loads(path.read_text(encoding="utf-8"))["model_type"]
        )
