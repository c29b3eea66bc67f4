import logging
import re
from itertools import combinations
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from mttl.data import prepare as module
from mttl.data.prompt_form import PromptForm, task_code
from mttl.io.errors import TaskError
from mttl.tasks.folder import Gym
from mttl.tasks.head_form import HeadForm
from mttl.tasks.rows import line_of

DEFAULTS = {"max_input_length": 64, "max_output_length": 16}


def prepare(gym, tokenizer, tasks=("a", "b"), split="train", samples=(100, 13), **settings):
    own = {name: settings.pop(name) for name in ("max_rows", "cache_dir") if name in settings}
    own["decoder_only"] = settings.pop("decoder_only", False)
    form = PromptForm(**{**DEFAULTS, **settings})
    return module.prepare(gym, tasks, split, samples, tokenizer, form=form, **own)


@pytest.fixture
def gym(make_gym):
    return make_gym({"a": 2, "b": 3}, table="task,metric,description\na,EM,Do a.\nb,EM,Do b.\n")


@pytest.fixture
def tokenised(monkeypatch):
    """Count how often texts are really tokenised."""
    calls = []
    original = module._build
    monkeypatch.setattr(module, "_build", lambda *a: (calls.append(1), original(*a))[1])
    return calls


def test_columns_and_order(gym, byte_tokenizer):
    data = prepare(gym, byte_tokenizer)
    names = ["row", "task_id", "sample", "input", "prefix_length", "columns", "references"]
    assert data.column_names == [*names, "input_ids", "labels", "word_starts", "second"]
    assert data[2]["input"][data[2]["prefix_length"] :] == "a train 13 0"
    assert data["row"][:] == list(range(10))
    assert data["task_id"][:] == [0] * 4 + [1] * 6
    assert data["sample"][:] == [100, 100, 13, 13, 100, 100, 100, 13, 13, 13]
    assert data[2]["input"] == "[a] a train 13 0"
    assert data[2]["references"] == ["answer 0", "other 0"]
    assert data[2]["input_ids"] == byte_tokenizer("[a] a train 13 0")["input_ids"]
    # The first output is the target.
    assert data[2]["labels"] == byte_tokenizer("answer 0")["input_ids"]


def test_prefix_and_descriptions(gym, byte_tokenizer):
    for prefix, descriptions, expected in (
        ("none", False, "a train 100 0"),
        ("name", True, "[a] Do a. a train 100 0"),
        ("none", True, "Do a. a train 100 0"),
        ("code", False, f"[{task_code('a')}] a train 100 0"),
    ):
        data = prepare(gym, byte_tokenizer, prefix=prefix, descriptions=descriptions)
        assert data[0]["input"] == expected
    gym.table.write_text("task,metric,description\na,EM,Do a.\nb,EM,\n")
    with pytest.raises(TaskError, match=r"TASKS.csv' has no description of 'b'; add it as"):
        prepare(Gym(gym.directory), byte_tokenizer, descriptions=True)


def test_equal_test_files_are_read_once_and_others_all(gym, byte_tokenizer):
    data = prepare(gym, byte_tokenizer, split="test")
    assert data["sample"][:] == [100] * 6
    with gym.file("b", "test", 13).open("a") as file:
        file.write("more\trows\n")
    data = prepare(gym, byte_tokenizer, split="test")
    assert data["sample"][:] == [100] * 6 + [13] * 4


def test_what_is_cut_is_told_from_the_cache_too(gym, byte_tokenizer, caplog, tmp_path):
    caplog.set_level(logging.INFO)
    short = {"tasks": ["a"], "samples": [100], "max_input_length": 10, "cache_dir": tmp_path / "c"}
    told = "2 of 2 inputs are longer than data.max_input_length: 16 tokens were cut at their end"
    for _ in range(2):
        caplog.clear()
        prepare(gym, byte_tokenizer, **short)
        assert told in caplog.messages
    data = prepare(gym, byte_tokenizer, **short, truncate="start")
    assert data[0]["input_ids"] == byte_tokenizer("[a] 100 0")["input_ids"]
    caplog.clear()
    prepare(gym, byte_tokenizer)
    assert "longer than" not in caplog.text


def test_the_second_call_reads_the_cache(gym, byte_tokenizer, tmp_path, tokenised):
    cache = tmp_path / "cache"
    first = prepare(gym, byte_tokenizer, cache_dir=cache)
    second = prepare(Gym(gym.directory), ByT5Tokenizer(), cache_dir=cache)
    assert len(tokenised) == 1
    assert first.to_dict() == second.to_dict() == prepare(gym, byte_tokenizer).to_dict()
    assert second.features == first.features == prepare(gym, byte_tokenizer).features


@pytest.mark.parametrize(
    "change",
    [
        *({"decoder_only": True}, {"max_input_length": 63}, {"max_output_length": 15}),
        *({"prefix": "none"}, {"prefix": "code"}, {"descriptions": True}, {"max_rows": 1}),
        *({"tasks": ("b", "a")}, {"samples": (100,)}, {"samples": (13, 100)}),
        *({"split": "dev"}, {"split": "train+dev"}),
    ],
    ids=str,
)
def test_another_setting_is_another_cache(gym, byte_tokenizer, tmp_path, tokenised, change):
    prepare(gym, byte_tokenizer, cache_dir=tmp_path / "cache")
    changed = prepare(gym, byte_tokenizer, cache_dir=tmp_path / "cache", **change)
    assert len(tokenised) == 2
    assert changed.to_dict() == prepare(gym, byte_tokenizer, **change).to_dict()


def test_a_changed_file_or_description_is_seen(gym, byte_tokenizer, tmp_path, tokenised):
    cache = tmp_path / "cache"
    prepare(gym, byte_tokenizer, cache_dir=cache, descriptions=True)
    path: Path = gym.file("b", "train", 13)
    text = path.read_text()
    path.write_text(text.replace("answer 2", "answer 9"))
    data = prepare(gym, byte_tokenizer, cache_dir=cache, descriptions=True)
    assert data[-1]["references"][0] == "answer 9"
    table = gym.directory / "TASKS.csv"
    table.write_text(table.read_text().replace("Do b.", "Now do b."))
    data = prepare(Gym(gym.directory), byte_tokenizer, cache_dir=cache, descriptions=True)
    assert data[-1]["input"].startswith("[b] Now do b. ")
    assert len(tokenised) == 3


SEVERAL_LINES = "if x:\n\treturn [1,\r\n\n  2]"


def test_texts_of_several_lines_are_learned_as_they_are(gym, byte_tokenizer, caplog):
    path = gym.file("a", "train", 100)
    path.unlink()
    line = line_of(".jsonl", SEVERAL_LINES, [SEVERAL_LINES, "other"])
    path.with_suffix(".jsonl").write_text(line, newline="")
    options = {"tasks": ["a"], "samples": [100], "prefix": "none", "max_output_length": 64}
    data = prepare(Gym(gym.directory), byte_tokenizer, **options)
    assert data["input"][:] == [SEVERAL_LINES]
    assert data["references"][:] == [[SEVERAL_LINES, "other"]]
    for name in ("input_ids", "labels"):
        assert byte_tokenizer.decode(data[0][name], skip_special_tokens=True) == SEVERAL_LINES
    assert "in answers, so they are trained without. Set backbone.tokenizer to" not in caplog.text


def test_a_tokenizer_that_loses_line_breaks_is_told(gym, caplog):
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="?")
    path = gym.file("a", "train", 100)
    path.unlink()
    path.with_suffix(".jsonl").write_text(line_of(".jsonl", "a", ["a\nb"]))
    prepare(Gym(gym.directory), tokenizer, tasks=["a"], samples=[100])
    assert "the tokenizer does not preserve line breaks in answers, so they" in caplog.text


def test_a_code_never_changes_and_tells_nothing_of_the_parts_of_a_name() -> None:
    """Names that share a part share no more letters than any two names."""
    assert task_code("de_date_long") == "ojhoss"
    codes = {f"{one}_{two}": task_code(f"{one}_{two}") for one in "abcdefghij" for two in "qrstuvw"}
    assert all(re.fullmatch("[a-z]{6}", code) for code in codes.values())
    same = {True: [], False: []}
    for (one, first), (other, second) in combinations(codes.items(), 2):
        related = one[0] == other[0] or one[2] == other[2]
        same[related] += [a == b for a, b in zip(first, second, strict=True)]
    for found in same.values():
        assert sum(found) / len(found) == pytest.approx(1 / 26, abs=0.01)


@pytest.mark.parametrize("kind", ["text", "label"])
def test_tasks_without_generation_need_no_end_token(gym, kind):
    """As of BERT's tokenizers."""
    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "[MASK]": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **special)
    heads = dict.fromkeys("ab", HeadForm(kind=kind))
    rows = prepare(gym, tokenizer, task_heads=heads, prefix="name")
    texts = [row["input"] for row in rows]
    assert all(text.startswith("[a]") or text.startswith("[b]") for text in texts) is (
        kind != "text"
    )
    assert all(rows["input_ids"])
