"""What of a notebook's output is kept."""

from helpers.command import ROOT, load_recipe

SCRIPT = load_recipe(ROOT / "scripts" / "docs" / "write_tutorials.py")
TERMINAL = (
    "\x1b[3mScores\x1b[0m\r\n┏━━━━━━━━━━━━┓\r\n│ verb │ 84.4 │\r\n"
    "\x1b[2Ktraining \x1b[90m━━━━━━━━━━━━━━\x1b[0m 1/300\r\x1b[2Ktraining ━━━━━━━━━━━━━━ 2/300\r"
    "\x1b[2K\r\nLoading weights: 100%|███| 60/60\r\nThe run is in runs/x\r\n"
)


def test_bars_and_colours_are_left_out() -> None:
    kept = "Scores\n┏━━━━━━━━━━━━┓\n│ verb │ 84.4 │\nThe run is in runs/x\n"
    assert SCRIPT.printed(TERMINAL) == kept


def test_a_cell_keeps_what_it_printed_and_no_warnings() -> None:
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": "one\n"},
        {"output_type": "stream", "name": "stderr", "text": "a library warns\n"},
        {"output_type": "stream", "name": "stdout", "text": "two\n"},
    ]
    cell = {"cell_type": "code", "metadata": {"time": 3}, "outputs": outputs, "source": "a\nb"}
    book = SCRIPT.cleaned({"cells": [cell], "metadata": {}})
    (kept,) = book["cells"]
    assert kept["metadata"] == {}
    assert kept["source"] == ["a\n", "b"]  # as in the files, so that a change shows by lines
    assert [output["text"] for output in kept["outputs"]] == [["one\n", "two\n"]]
