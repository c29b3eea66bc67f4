"""Films of episodes, drawn by minigrid, with mission and action below the picture."""

import importlib.util
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont

from envs.files import written_whole
from envs.game import make_game
from envs.levels import LevelError, find_level

ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle", "done")
# Font size in pixels for pictures of the width NARROW or less; it grows with the width.
FONT_SIZE, NARROW, MARGIN = 14, 360, 6
SIDE = 480  # largest side of a picture in pixels
BAR = 26  # height of the bars of skills
INK, FAINT = "#0072b2", "#dddddd"
# Duration of the last frame of a GIF, in frames.
LAST_FRAME = 4
FRAMES_PER_SECOND = 4.0


@dataclass(frozen=True)
class Episode:
    """An episode to film.

    Args:
        level: Name of the level.
        seed: Seed of the episode, as in a `Demonstration`.
        actions: Actions from 0 to 6, at most up to the end of the episode.
        shares: Use of each skill by the policy, drawn as bars.
        success: Whether the episode succeeded, for the last frame.
    """

    level: str
    seed: int
    actions: Sequence[int]
    shares: Sequence[float] = ()
    success: bool | None = None


def film(episodes: Sequence[Episode], path: str | Path) -> None:
    """Write a film of replayed episodes: the start, then one frame after each action.

    The caption has mission, step and action, and finally the success. Several episodes form a grid,
    with the names of their levels; shorter ones stop at their last frame. The suffix of the path is
    ".gif" or that of a video, such as ".mp4"; missing folders are created.

    Raises:
        LevelError: If there is no such level.
        ImportError: If imageio's plugin for videos is missing.
    """
    path = Path(path)
    if path.suffix != ".gif" and importlib.util.find_spec("imageio_ffmpeg") is None:
        raise ImportError(
            "a .mp4 needs imageio with ffmpeg: pip install 'imageio[ffmpeg]', or write a .gif"
        )
    n_columns = math.ceil(math.sqrt(len(episodes)))
    side = SIDE if n_columns == 1 else max(SIDE // 2, 2 * SIDE // n_columns)
    films = [_frames(episode, side, titled=n_columns > 1) for episode in episodes]
    frames = _grid(films, n_columns)
    with written_whole(path) as temporary:
        if path.suffix == ".gif":
            durations = [1000 / FRAMES_PER_SECOND] * len(frames)
            durations[-1] *= LAST_FRAME
            frames[0].save(
                temporary, save_all=True, append_images=frames[1:], duration=durations, loop=0
            )
        else:
            import imageio.v2 as imageio  # pyright: ignore[reportMissingImports]

            pictures: list[Any] = [np.asarray(frame) for frame in frames]
            options: dict[str, Any] = {"fps": FRAMES_PER_SECOND, "macro_block_size": 2}
            imageio.mimwrite(temporary, pictures, format="FFMPEG", **options)


def _frames(episode: Episode, side: int, *, titled: bool) -> list[Image.Image]:
    mission, pictures = replay(episode.level, episode.seed, episode.actions, side)
    n_steps = len(episode.actions)
    lines = [f"step 0 of {n_steps}"]
    for step, action in enumerate(episode.actions, start=1):
        lines.append(f"step {step} of {n_steps}: {ACTIONS[action]}")
    if episode.success is not None:
        lines[-1] += ", success" if episode.success else ", no success"
    title = [episode.level] if titled else []
    return [
        with_caption(picture, *title, mission, line, shares=episode.shares)
        for picture, line in zip(pictures, lines, strict=True)
    ]


def _grid(films: Sequence[list[Image.Image]], n_columns: int) -> list[Image.Image]:
    """Return the frames of films in a grid; shorter films repeat their last frame."""
    width, height = (max(frame.size[axis] for film in films for frame in film) for axis in (0, 1))
    n_rows = math.ceil(len(films) / n_columns)
    sheets = []
    for number in range(max(map(len, films))):
        sheet = Image.new("RGB", (n_columns * width, n_rows * height), "white")
        for place, frames in enumerate(films):
            row, column = divmod(place, n_columns)
            sheet.paste(frames[min(number, len(frames) - 1)], (column * width, row * height))
        sheets.append(sheet)
    return sheets


def replay(
    level: str, seed: int, actions: Sequence[int], side: int = SIDE
) -> tuple[str, list[UInt8[np.ndarray, "height width 3"]]]:
    """Return the mission and the S + 1 pictures of an episode, without captions.

    Raises:
        LevelError: If there is no such level, or minigrid cannot draw it.
    """
    env = make_game(find_level(level))
    env.reset(seed=seed)
    world = env.unwrapped
    if not hasattr(world, "get_frame"):
        raise LevelError(f"level '{level}' is not an environment of minigrid, which draws films")
    tile = max(8, side // max(world.width, world.height))
    pictures = [world.get_frame(tile_size=tile)]
    for action in actions:
        env.step(int(action))
        pictures.append(world.get_frame(tile_size=tile))
    return world.mission, pictures


def with_caption(
    picture: UInt8[np.ndarray, "height width 3"], *paragraphs: str, shares: Sequence[float] = ()
) -> Image.Image:
    """Return the picture with wrapped text below it.

    Shares of skills are drawn as bars at the bottom, relative to the largest.
    """
    height, width, _ = picture.shape
    font = ImageFont.load_default(max(FONT_SIZE, FONT_SIZE * width // NARROW))
    most = int((width - 2 * MARGIN) / font.getlength("n"))  # characters of a line
    text = "\n".join(textwrap.fill(paragraph, most) for paragraph in paragraphs)
    draw = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    text_height = math.ceil(draw.multiline_textbbox((0, 0), text, font=font)[3])
    full_height = height + text_height + 2 * MARGIN + (BAR + 2 * MARGIN if shares else 0)
    # Common video formats need even sides.
    frame = Image.new("RGB", (width + width % 2, full_height + full_height % 2), "white")
    frame.paste(Image.fromarray(picture))
    paper = ImageDraw.Draw(frame)
    paper.multiline_text((MARGIN, height + MARGIN), text, "black", font)
    foot, step = full_height - MARGIN, (width - 2 * MARGIN) / max(1, len(shares))
    for skill, share in enumerate(shares):
        left, right = MARGIN + skill * step, MARGIN + (skill + 0.9) * step
        paper.rectangle((left, foot - BAR, right, foot), FAINT)
        filled = BAR * max(0.0, share) / max(*shares, 1e-9)
        paper.rectangle((left, foot - filled, right, foot), INK)
    return frame
