"""The command that records demonstrations."""

import pytest

from envs.demonstration_file import load_demonstrations
from mttl.commands import babyai_record as SCRIPT


def test_levels_are_recorded_to_one_file(tmp_path, capsys, refused) -> None:
    out = tmp_path / "record.npz"
    given = ["--levels", "GoToObj", "PickupLoc", "--episodes", "3", "--out", str(out)]
    assert SCRIPT.main(given) == 0
    record = load_demonstrations(out)
    assert [one.level for one in record] == ["GoToObj"] * 3 + ["PickupLoc"] * 3
    printed = capsys.readouterr().out
    assert f"6 demonstrations of {sum(len(one.actions) for one in record)} steps" in printed
    before = out.read_bytes()
    assert "record.npz' exists already" in refused(SCRIPT.main, *given)
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--out": "record.zip"}, "record.zip' must end in .npz"),
        ({"--levels": "GoToMars"}, "unknown level 'GoToMars'"),
        ({"--levels": "KeyInBox"}, "bot cannot play level 'KeyInBox'"),
        ({"--episodes": "0"}, "'0' must be a whole number of at least 1"),
        ({"--workers": "-1"}, "'-1' must be a whole number of at least 0"),
    ],
)
def test_mistakes_are_told_and_leave_no_file(
    tmp_path, refused, monkeypatch, change, message
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"--levels": "GoToObj", "--episodes": "2", "--out": "record.npz", **change}
    assert message in refused(SCRIPT.main, *(part for each in options.items() for part in each))
    assert not list(tmp_path.iterdir())
