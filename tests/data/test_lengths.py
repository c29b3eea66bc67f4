"""Maximum lengths from the data, within the model's positions, and the limit on cut rows."""

import numpy as np
import pytest

from helpers.raw import write_jsonl
from mttl.config.data_schema import Data
from mttl.data.lengths import MOST_ROWS, with_lengths
from mttl.io.errors import ConfigError
from mttl.tasks.folder import Gym

N = 200
FIT = {"fit_lengths": True, "max_cut": 0.05, "prefix": "none", "max_input_length": 4096}


def lengths(tmp_path, tokenizer, inputs, answers, positions, *, decoder_only, **settings):
    """Return the lengths for a task whose texts have the given numbers of characters."""
    for split in ("train", "dev", "test"):
        rows = [
            {"input": "a" * n, "outputs": ["b" * m]} for n, m in zip(inputs, answers, strict=True)
        ]
        write_jsonl(tmp_path / f"one/one_all_100_{split}.jsonl", rows)
    data = with_lengths(
        *(Data(dir=str(tmp_path), **{**FIT, **settings}), Gym(tmp_path), ["one"], tokenizer),
        decoder_only=decoder_only,
        n_positions=positions,
    )
    assert not data.fit_lengths
    return data.max_input_length, data.max_output_length


@pytest.mark.parametrize(
    ("positions", "decoder_only", "settings", "expected"),
    [
        (None, False, {}, (200, 16)),  # the 99th percentiles are 198 and 11 bytes, and an end token
        (None, False, {"max_input_length": 196}, (196, 16)),  # a given limit holds
        (None, False, {"fit_lengths": False}, (4096, 64)),
        (196, False, {}, (196, 16)),
        (212, True, {}, (196, 16)),  # both share the positions
        (100, True, {"max_cut": 1.0}, (84, 16)),
        (100, True, {"max_cut": None}, (84, 16)),
        (20, True, {"max_cut": 1.0}, (10, 10)),
    ],
)
def test_lengths(tmp_path, byte_tokenizer, positions, decoder_only, settings, expected):
    inputs, answers = range(1, N + 1), [11] * (N - 1) + [40]
    given = {"decoder_only": decoder_only, **settings}
    assert lengths(tmp_path, byte_tokenizer, inputs, answers, positions, **given) == expected


@pytest.mark.parametrize(("share", "refused"), [(0.05, False), (0.06, True)])
def test_too_many_cut_rows_are_refused(tmp_path, byte_tokenizer, share, refused):
    n_long = round(share * N)
    inputs = [300] * n_long + [20] * (N - n_long)
    given = (tmp_path, byte_tokenizer, inputs, [3] * N, 100)
    if not refused:
        assert lengths(*given, decoder_only=False) == (100, 8)
        return
    message = r"6 % of the rows of 'one' would be cut: inputs may have 100 tokens, answers 8, and"
    with pytest.raises(ConfigError, match=message + r" 99 % of .* 301 and 4\. .* data.max_cut=1"):
        lengths(*given, decoder_only=False)


def test_long_files_are_measured_in_part(tmp_path, byte_tokenizer, monkeypatch):
    monkeypatch.setattr("mttl.data.lengths.MOST_ROWS", 5)
    assert MOST_ROWS > 5
    inputs = np.full(N, 9)
    inputs[1] = 99  # not among five rows that are evenly spaced
    found = lengths(tmp_path, byte_tokenizer, inputs, [3] * N, None, decoder_only=False)
    assert found == (16, 8)
