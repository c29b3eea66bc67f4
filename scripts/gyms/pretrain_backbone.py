"""Pretrain a small language model on the text of gyms, to freeze it below skills as large ones are.

python scripts/gyms/pretrain_backbone.py --out models/backbone
mttl train -c crossfit.yaml -k backbone.name=models/backbone

The model learns to restore text in which spans of characters were replaced by `_`: BART's text
infilling (Lewis et al., ACL 2020, arXiv:1910.13461), with spans short and long, few and many, as in
UL2 (Tay et al., ICLR 2023, arXiv:2205.05131). The text is that of the training rows of all tasks,
inputs and outputs apart, so that nothing is learned of which belongs to which; what stands in a row
to validate or to score is left out. How much of that the model restores is scored at the end.
"""

import argparse
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mttl.io.errors import ConfigError
from mttl.io.files import new_folder, write_text
from mttl.runtime.command import exit_with, make_console
from mttl.tasks.folder import SPLITS, Gym
from mttl.tasks.rows import JSON_LINES, line_of

if TYPE_CHECKING:
    import torch
    from torch import nn

    from mttl.config.backbone_schema import Backbone

GYMS = ("data/lexical", "data/grid")
DTYPES = ("float16", "bfloat16", "float32")
# Share of a text that is replaced, and the longest span.
CORRUPTIONS = ((0.0, 1), (0.15, 3), (0.3, 3), (0.3, 6), (0.5, 6), (0.8, 12))
SCORED = (0.3, 3)
MOST_SCORED = 400


def main(arguments: list[str] | None = None) -> int:
    """Build the rows, train, and save the model where transformers finds it."""
    options = parse(arguments)
    out = Path(options.out)
    if (out / "config.json").is_file():
        raise ConfigError(f"'{out}' already contains a model; choose another --out or delete it")
    work = out.with_name(f"{out.name}-run")
    if work.exists() and not (work / "partition.json").is_file():
        raise ConfigError(f"'{work}' already exists; choose another --out")
    from mttl.config.load import load_config, resolve_folder
    from mttl.config.worlds import world_of

    config = load_config(options.config, [])
    if not config.backbone.train:
        raise ConfigError(
            f"the backbone of '{options.config}' is frozen, and only the backbone is trained here; "
            "take a configuration with backbone.train: true, such as "
            "crossfit.yaml+backbone/small_t5.yaml"
        )
    gyms = {Path(name).name: Gym(resolve_folder(name)) for name in options.gyms}
    import torch

    from mttl.assembly.build_backbone import build_backbone

    resume = (work / "run" / "checkpoints" / "last.ckpt").is_file()
    if not resume:
        shutil.rmtree(work, ignore_errors=True)
    write_rows(work, gyms, options.copies, random.Random(options.seed))
    backbone = build_backbone(config.backbone)
    settings = [
        *(f"data.dir={work / 'gym'}", f"data.partition={work / 'partition.json'}"),
        *("data.samples=[100]", "data.prefix=none", "data.validation=none"),
        *("data.evaluate=[test]", f"data.batch_size={options.batch_size}"),
        f"data.max_input_length={options.max_length}",
        f"data.max_output_length={options.max_length}",
        *(f"run.dir={work}", "run.name=run", f"run.seed={options.seed}"),
        *(f"trainer.max_steps={options.steps}", f"trainer.precision={options.precision}"),
        # All that is learned goes into the backbone: the one skill, on one layer, stays at zero.
        *("skills.rank=1", f"skills.targets=['{first_linear(backbone)}']", "optim.lr=1e-12"),
        f"optim.backbone_lr={options.lr}",
    ]
    files = f"{options.config}+router/shared.yaml"
    training = load_config(files, settings)
    world_of(training).run("training", training, resume=resume)
    export(work / "run", config.backbone, out, getattr(torch, options.dtype))
    make_console().print(f"The model is in {out}", markup=False)
    return 0


def export(run: Path, settings: "Backbone", out: Path, dtype: "torch.dtype") -> None:
    """Save the trained backbone of a run, without skills, as a folder of transformers."""
    import torch

    from mttl.assembly.build_backbone import build_backbone, build_tokenizer
    from mttl.checkpoints.saved_inventory import read_inventory

    backbone = build_backbone(settings)
    parameters = dict(backbone.named_parameters())
    trained = read_inventory(run).backbone
    assert trained is not None  # it was trained
    with torch.no_grad():
        for name, value in trained.items():
            parameters[name].copy_(value)
    with new_folder(out) as building:
        backbone.to(dtype).save_pretrained(building)  # pyright: ignore[reportArgumentType]
        build_tokenizer(settings).save_pretrained(building)


def first_linear(backbone: "nn.Module") -> str:
    """Return the name of a layer that bears a skill."""
    from torch import nn

    return next(name for name, layer in backbone.named_modules() if isinstance(layer, nn.Linear))


def texts_of(gym: Gym, splits: Sequence[str]) -> set[str]:
    """Return the inputs and the outputs in the files of all tasks and samples."""
    return {
        text
        for task in gym.tasks()
        for sample in gym.samples(task)
        for split in splits
        for row in gym.rows(task, split, sample)
        for text in (row.input, *row.outputs)
        if text
    }


def write_rows(work: Path, gyms: Mapping[str, Gym], copies: int, generator: random.Random) -> None:
    """Write a gym with a task of restoring per gym: what it trains on, and what is left out."""
    left_out = set().union(*(texts_of(gym, SPLITS[1:]) for gym in gyms.values()))
    for name, gym in gyms.items():
        training = sorted(texts_of(gym, SPLITS[:1]) - left_out)
        if not training:
            raise ConfigError(
                f"every training text in '{gym.directory}' is also in development or test rows, so "
                "none is left"
            )
        rows = [
            (corrupt(text, generator, *generator.choice(CORRUPTIONS)), text)
            for _ in range(copies)
            for text in training
        ]
        write_file(work / "gym", name, "train", rows)
        scored = sorted(texts_of(gym, ["dev"]))
        scored = generator.sample(scored, min(MOST_SCORED, len(scored)))
        for split in SPLITS[1:]:
            rows = [(corrupt(text, generator, *SCORED), text) for text in scored]
            write_file(work / "gym", name, split, rows)
    write_text(
        work / "gym" / "TASKS.csv", "task,metric\n" + "".join(f"{name},ACC\n" for name in gyms)
    )
    names = ", ".join(f'"{name}"' for name in gyms)
    write_text(work / "partition.json", f'{{"train": [{names}], "dev": [], "test": []}}')


def corrupt(text: str, generator: random.Random, share: float, longest: int) -> str:
    """Replace spans of up to ``longest`` characters by `_` until ``share`` of the text is gone."""
    characters: list[str] = list(text)
    left = round(share * len(characters))
    while left > 0:
        length = min(left, generator.randint(1, longest), len(characters))
        start = generator.randrange(len(characters) - length + 1)
        characters[start : start + length] = ["_"]
        left -= length
    return "".join(characters)


def write_file(gym: Path, task: str, split: str, rows: Sequence[tuple[str, str]]) -> None:
    """Write one file of a task."""
    lines = "".join(line_of(JSON_LINES, given, [wanted]) for given, wanted in rows)
    write_text(gym / task / f"{task}_{len(rows)}_100_{split}{JSON_LINES}", lines)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        *("-c", "--config"),
        default="crossfit.yaml+backbone/small_t5.yaml",
        help="names the model (%(default)s)",
    )
    add("--gyms", nargs="+", default=GYMS, metavar="DIR", help=f"whose text ({' '.join(GYMS)})")
    add("--copies", type=int, default=4, metavar="N", help="corruptions of a text (%(default)s)")
    add("--max-length", type=int, default=64, metavar="N", help="bytes of a text (%(default)s)")
    add("--steps", type=int, default=4000, help="optimizer steps (%(default)s)")
    add("--batch-size", type=int, default=64, help="texts per step (%(default)s)")
    add("--lr", type=float, default=2e-3, help="learning rate (%(default)s)")
    add("--precision", default="bf16-mixed", help="of products: trainer.precision (%(default)s)")
    add("--seed", type=int, default=13, help="of all draws (%(default)s)")
    add("--dtype", default="float16", choices=DTYPES, help="of the file (%(default)s)")
    add("--out", default="models/backbone", help="folder of the model (%(default)s)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_with(main)
