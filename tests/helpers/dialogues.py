"""Runs of dialogue tasks over each kind of backbone."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import mttl
from helpers.chat_templates import CHATML, save_tokenizer
from helpers.command import train
from helpers.gyms import TINY_LLAMA, TINY_T5, write_config
from helpers.raw import write_jsonl
from mttl.assembly.model import Built


def train_dialogues(
    folder: Path,
    tasks: str,
    records: Iterable[dict[str, Any]],
    kind: str = "t5",
    *,
    steps: int = 1,
    scale: float = 3.0,
    **data: Any,
) -> Built:
    """Train on tasks of ``talk.jsonl``, and load the run ``runs/talk``."""
    write_jsonl(folder / "talk.jsonl", records)
    (folder / "tasks.yaml").write_text(tasks)
    backbone: dict[str, Any] = {**(TINY_T5 if kind == "t5" else TINY_LLAMA)}
    backbone["initial_scale"] = {"*": 8.0 if kind == "chat" else scale}
    if kind == "chat":
        backbone["tokenizer"] = str(save_tokenizer(folder / "tokenizer", CHATML))
        data["template"] = "chat"
    data |= {"tasks": str(folder / "tasks.yaml"), "dir": None, "partition": "auto"}
    trainer: Mapping[str, Any] = {"max_steps": steps, "val_check_interval": steps}
    sections = {"data": data, "backbone": backbone, "trainer": trainer}
    return mttl.load(train(write_config(folder / "tiny.yaml", folder, **sections), "talk").path)
