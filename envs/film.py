"""A film of one episode, drawn by minigrid, with the mission below the picture."""

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont

from envs.files import written_whole
from envs.game import make_game
from envs.interface import N_ACTIONS
from envs.levels import find_level

SUFFIXES = (".gif", ".mp4")
FONT_SIZE, MARGIN = 14, 6
# How long the last frame of a GIF stays, in usual frames.
LAST_FRAME = 4


def film(
    level: str,
    seed: int,
    actions: Sequence[int],
    path: str | Path,
    *,
    tile: int = 24,
    frames_per_second: float = 4.0,
) -> None:
    """Play an episode again and film it: the beginning, then one frame after each action.

    Args:
        level: Name of the level.
        seed: Of the episode, as in a `Demonstration`.
        actions: S integers from 0 to 6; at most up to the end of the episode.
        path: Ends in ".gif" or ".mp4"; missing folders are made.
        tile: Side of a cell in pixels.
        frames_per_second: Speed.

    Raises:
        LevelError: If there is no such level.
        ImportError: If a .mp4 is wanted and imageio's plugin for it is missing.
        ValueError: If the path ends otherwise, a number is out of range, or the episode ends before
            the last action.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"cannot film to '{path}': it must end in {' or '.join(SUFFIXES)}")
    if path.suffix == ".mp4" and importlib.util.find_spec("imageio_ffmpeg") is None:
        raise ImportError(
            "a .mp4 needs imageio with ffmpeg: pip install 'imageio[ffmpeg]', or film to a .gif"
        )
    if tile < 4:
        raise ValueError(f"tile ({tile}) must be at least 4 pixels")
    if frames_per_second <= 0:
        raise ValueError(f"frames_per_second ({frames_per_second}) must be positive")
    mission, pictures = replay(level, seed, actions, tile)
    frames = [with_caption(picture, mission) for picture in pictures]
    with written_whole(path) as temporary:
        write = _write_gif if path.suffix == ".gif" else _write_mp4
        write(frames, temporary, frames_per_second)


def replay(
    level: str, seed: int, actions: Sequence[int], tile: int
) -> tuple[str, list[UInt8[np.ndarray, "height width 3"]]]:
    """Return the mission and S + 1 pictures of the episode, without caption.

    Raises:
        LevelError: If there is no such level.
        ValueError: If an action is not from 0 to 6, or the episode ends before the last one.
    """
    env = make_game(find_level(level))
    env.reset(seed=seed)
    pictures = [env.get_frame(tile_size=tile)]
    ended = False
    for step, action in enumerate(actions):
        if ended:
            raise ValueError(
                f"the episode of '{level}' with seed {seed} ends after {step} actions; "
                f"{len(actions)} are given"
            )
        if not 0 <= action < N_ACTIONS:
            raise ValueError(f"action {step} ({action}) must be from 0 to {N_ACTIONS - 1}")
        _, _, terminated, truncated, _ = env.step(int(action))
        ended = terminated or truncated
        pictures.append(env.get_frame(tile_size=tile))
    return env.mission, pictures


def with_caption(picture: UInt8[np.ndarray, "height width 3"], caption: str) -> Image.Image:
    """Return the picture with text below it, in as many lines as it takes."""
    height, width, _ = picture.shape
    font = ImageFont.load_default(FONT_SIZE)
    text = "\n".join(_lines(caption, font, width - 2 * MARGIN))
    draw = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    text_height = draw.multiline_textbbox((0, 0), text, font=font)[3]
    full_height = height + math.ceil(text_height) + 2 * MARGIN
    # The usual video formats want even sides.
    frame = Image.new("RGB", (width + width % 2, full_height + full_height % 2), "white")
    frame.paste(Image.fromarray(picture))
    ImageDraw.Draw(frame).multiline_text((MARGIN, height + MARGIN), text, "black", font)
    return frame


def _lines(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> list[str]:
    """Break text into lines no wider than asked, if their words allow it."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _write_gif(frames: Sequence[Image.Image], path: Path, frames_per_second: float) -> None:
    duration = 1000 / frames_per_second
    durations = [duration] * (len(frames) - 1) + [LAST_FRAME * duration]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0)


def _write_mp4(frames: Sequence[Image.Image], path: Path, frames_per_second: float) -> None:
    import imageio.v2 as imageio

    pictures: list[Any] = [np.asarray(frame) for frame in frames]
    imageio.mimwrite(path, pictures, format="FFMPEG", fps=frames_per_second, macro_block_size=2)
