"""A film shows an episode, step by step, above its mission."""

import importlib
import sys
from pathlib import Path
from typing import Any

import minigrid  # noqa: F401  (registers the levels)
import numpy as np
import pytest
from PIL import Image, ImageSequence

from envs.film import ACTIONS as NAMES
from envs.film import SIDE, Episode, film, replay, with_caption

LEVEL, SEED, ACTIONS = "GoToLocal", 3, [0, 2, 2, 1, 5]


def frames_of(path: Path) -> tuple[list[np.ndarray], list[int]]:
    """Return the frames of a GIF and how long each stays, in milliseconds."""
    with Image.open(path) as gif:
        shown = [
            (np.asarray(frame.convert("RGB")), frame.info["duration"])
            for frame in ImageSequence.Iterator(gif)
        ]
    return [frame for frame, _ in shown], [duration for _, duration in shown]


def check_frames(
    frames: list[np.ndarray], actions: list[int], lines: list[str], most: float, **more: Any
) -> None:
    """Compare frames with the pictures of an episode, up to a mean difference."""
    mission, pictures = replay(LEVEL, SEED, actions)
    assert SIDE - pictures[0].shape[0] in range(9)  # large enough to read
    for frame, picture, line in zip(frames, pictures, lines, strict=True):
        expected = np.asarray(with_caption(picture, mission, line, **more))
        assert frame.shape == expected.shape
        assert np.abs(frame.astype(int) - expected).mean() < most


@pytest.mark.slow
def test_a_gif_has_a_frame_for_every_step_with_what_is_done_below(tmp_path: Path) -> None:
    path = tmp_path / "new" / "episode.gif"
    turns = [0, 0, 1, 0]
    shares = [0.5, 0.25, 0.0]
    film([Episode(LEVEL, SEED, turns, shares, success=False)], path)
    frames, durations = frames_of(path)
    assert durations == [250, 250, 250, 250, 1000]
    lines = ["step 0 of 4", "step 1 of 4: turn left", "step 2 of 4: turn left"]
    lines += ["step 3 of 4: turn right", "step 4 of 4: turn left, no success"]
    # A GIF has 256 colours; those of minigrid, with their shades, are more.
    check_frames(frames, turns, lines, most=2, shares=shares)
    assert [file.name for file in path.parent.iterdir()] == ["episode.gif"]


@pytest.mark.slow
def test_levels_stand_in_a_grid_and_those_that_ended_wait(tmp_path: Path) -> None:
    short = Episode("GoToObjS4", 0, [0], success=True)
    long = Episode(LEVEL, SEED, ACTIONS)
    film([short, long, short], tmp_path / "grid.gif")
    frames, _ = frames_of(tmp_path / "grid.gif")
    assert len(frames) == len(ACTIONS) + 1
    height, width, _ = frames[0].shape
    corner = np.s_[: height // 2, : width // 2]
    np.testing.assert_allclose(frames[2][corner].astype(int), frames[-1][corner], atol=40)
    assert (frames[1][corner] != frames[0][corner]).any()
    assert (frames[0][height // 2 :, width // 2 :] == 255).all()  # there is no fourth


def test_the_caption_stands_below_and_is_broken_where_it_is_too_long() -> None:
    picture = np.full((41, 121, 3), 7, np.uint8)
    long = "pick up a red ball after you put a grey box next to the purple key"
    heights = []
    for caption in ("go", long):
        frame = np.asarray(with_caption(picture, caption))
        height, width, _ = frame.shape
        np.testing.assert_array_equal(frame[:41, :121], picture)
        assert height % 2 == width % 2 == 0
        below = frame[41:]
        assert below.min() < 80  # letters
        # Nothing is cut off: there is white paper on all four sides.
        for edge in (below[:2], below[-2:], below[:, :2], below[:, 121 - 2 :]):
            assert (edge == 255).all()
        heights.append(height)
    assert heights[1] > heights[0] + 3 * 14
    # Bars are as high as skills are used.
    picture = np.zeros((30, 60, 3), np.uint8)
    frame = np.asarray(with_caption(picture, "go", shares=[1.0, 0.5, 0.0]))
    blue = (frame == (0, 114, 178)).all(-1)
    heights = [int(part.any(1).sum()) for part in np.array_split(blue[:, 6:54], 3, axis=1)]
    assert heights[0] == pytest.approx(2 * heights[1], abs=2)
    assert heights[2] <= 1


def test_what_cannot_be_filmed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ImportError, match=r"pip install 'imageio\[ffmpeg\]', or write a .gif"):
        film([Episode(LEVEL, SEED, ACTIONS)], tmp_path / "episode.mp4")
    assert not list(tmp_path.iterdir())


def test_an_mp4_has_the_same_frames(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    imageio: Any = importlib.import_module("imageio.v2")
    film([Episode(LEVEL, SEED, ACTIONS)], tmp_path / "episode.mp4")
    with imageio.get_reader(tmp_path / "episode.mp4") as video:
        frames = [np.asarray(frame) for frame in video]
    lines = [f"step {n} of 5: {NAMES[action]}" for n, action in enumerate(ACTIONS, start=1)]
    # The codec loses detail: coloured objects are small.
    check_frames(frames, ACTIONS, ["step 0 of 5", *lines], most=8)
