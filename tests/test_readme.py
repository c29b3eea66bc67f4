"""The Python in the README and in docs/ runs as it is printed."""

import json
import re
import shutil
from pathlib import Path

import torch
from transformers import ByT5Tokenizer

from helpers.command import ROOT, python, train
from helpers.gyms import TINY_T5, write_config, write_gym
from helpers.new_tasks import train_source
from helpers.printed import commands, text
from helpers.raw import write_jsonl
from mttl.__main__ import main
from mttl.io import yaml12
from mttl.models.backbone import build_random
from mttl.runtime.command import run_command

PAGES = ("README.md", "docs/howto/adapt.md", "docs/howto/add_a_router.md")
# In one process: most of the time of each is spent on importing libraries.
ONE_AFTER_ANOTHER = f"""
import json, runpy, sys
for command in json.loads(sys.argv[1]):
    sys.argv[:] = command
    try:
        runpy.run_path("{ROOT}/" + command[0], run_name="__main__")
    except SystemExit as end:
        assert not end.code
"""
BLOCKS = [
    block
    for page in PAGES
    for block in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
]


def test_the_first_command_trains_and_its_run_answers_without_warnings(tmp_path: Path) -> None:
    """At a small size; nothing is said of libraries that quantise, which nobody asked for."""
    assert "python pl_train.py -c crossfit.yaml" in (ROOT / "README.md").read_text("utf-8")
    (tmp_path / "two.json").write_text('{"train": ["verb_past", "noun_plural"]}')
    small = ["data.partition=two.json", "data.max_rows=4", "data.max_eval_rows=2"]
    small += ["trainer.max_steps=1", "trainer.val_check_interval=1"]
    (tmp_path / "words.tsv").write_text("input\nwalk\n")
    ask = ["runs/crossfit", "--task", "verb_past", "--in", "words.tsv"]
    commands = [["pl_train.py", "-c", "crossfit.yaml", "-k", *small], ["pl_predict.py", *ask]]
    ended = python("-c", ONE_AFTER_ANOTHER, json.dumps(commands), cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout + ended.stderr
    assert not re.search("warning|torchao|bitsandbytes|triton|_pytree", said, re.IGNORECASE)
    assert "\ninput\tprediction\nwalk\t" in ended.stdout
    ended = python("-c", "import mttl; mttl.load('runs/crossfit')", cwd=tmp_path)
    assert ended.returncode == 0
    assert not re.search("torchao|bitsandbytes|triton|_pytree", ended.stderr)


def test_a_run_is_loaded_and_answers(tmp_path: Path, capsys) -> None:
    """The run and its task stand in for those of the main job."""
    config = write_config(tmp_path / "tiny.yaml", write_gym(tmp_path / "gym"))
    run = train(config, "crossfit", "trainer.max_steps=1", "trainer.val_check_interval=1")
    (block,) = [block for block in BLOCKS if "mttl.load(" in block]
    assert '"runs/crossfit"' in block
    assert "verb_past" in block
    capsys.readouterr()
    exec(block.replace("runs/crossfit", str(run.path)).replace("verb_past", "reverse"), {})
    assert capsys.readouterr().out.startswith("['")


def test_the_commands_for_custom_files_run(tmp_path: Path, monkeypatch, capsys) -> None:
    """From three small files; `mttl serve` would go on, so that its options alone are read."""
    monkeypatch.chdir(tmp_path)
    (tasks,) = re.findall(r"```yaml\n(.*?)```", text("README.md"), re.DOTALL)
    Path("tasks.yaml").write_text(tasks, encoding="utf-8")
    moods = [f"{i} was {['good', 'bad'][i % 2]},{['good', 'bad'][i % 2]}\n" for i in range(160)]
    for file in ("reviews.csv", "reviews_test.csv", "urgent.csv", "questions.csv"):
        head = "input,label\n" if file == "questions.csv" else "text,label\n"
        Path(file).write_text(head + "".join(moods), encoding="utf-8")
    write_jsonl(Path("articles.jsonl"), [{"body": f"b {i}", "title": f"t {i}"} for i in range(260)])
    build_random("t5", TINY_T5["config"]).save_pretrained("MODEL")
    ByT5Tokenizer().save_pretrained("MODEL")
    few = ["data.max_eval_rows=2", "data.batch_size=8", "skills.rank=2"]
    more = {
        "train": ["trainer.max_steps=1", *few],
        "adapt": ["adapt.max_steps=1", "adapt.batch_size=8", *few[:1]],
    }
    ours = [
        command for command in commands(text("README.md")) if re.search("mine|DATA", str(command))
    ]
    names = [Path(command.script).stem for command in ours]
    assert names == ["init", "train", "adapt", "predict", "serve", "export", "compare"]
    for name, command in zip(names, ours, strict=True):
        if name in ("serve", "compare"):
            continue
        if name == "init":
            Path("DATA").mkdir()
            for file in ("reviews.csv", "reviews_test.csv", "urgent.csv", "articles.jsonl"):
                shutil.copy(file, "DATA")
            capsys.readouterr()
        words = [name, *command.words, *(["-k"] if name == "adapt" else []), *more.get(name, [])]
        assert run_command(lambda words=words: main(words)) == 0, words
        if name == "init":
            proposed = yaml12.parse(capsys.readouterr().out)["tasks"]
            assert proposed["reviews"]["source"]["test"] == "DATA/reviews_test.csv"
            assert proposed["urgent"]["output"] == "{label}"
            assert proposed["articles"]["input"] == "{body}"
    predicted = Path("answers.csv").read_text(encoding="utf-8").splitlines()
    assert len(predicted) == len(moods) + 1
    assert (tmp_path / "adapters" / "mood" / "adapter_config.json").is_file()


def test_a_run_is_adapted(tmp_path: Path) -> None:
    run = train_source(tmp_path)
    (block,) = [block for block in BLOCKS if "mttl.adapt(" in block]
    block = block.replace("runs/crossfit", str(run)).replace("third_past", "first")
    names: dict = {}
    exec(block.replace("max_steps=100", "max_steps=2").replace("lr=1e-2", "max_steps=2"), names)
    assert [result.task for result in names["results"]] == ["first", "first"]
    assert len(names["answers"]) == 2


def test_the_parts_work_without_lightning_or_configurations() -> None:
    (block,) = [block for block in BLOCKS if "attach_skills" in block]
    names = {
        "backbone": build_random("t5", TINY_T5["config"]),
        "n_tasks": 3,
        "task_ids": torch.tensor([2, 0]),
        "inputs": {"input_ids": torch.ones(2, 5).long(), "labels": torch.ones(2, 3).long()},
    }
    exec(block, names)
    assert names["loss"].requires_grad
    trained = {name for name, value in names["model"].named_parameters() if value.requires_grad}
    assert trained
    assert all("inventory" in name or name.startswith("router") for name in trained)
