"""Pretrain a tiny language model on a gym's text, to freeze it below skills as large ones are.

python scripts/pretrain_denoiser.py --out models/denoiser
python pl_train.py -c crossfit.yaml+backbone/denoiser.yaml

The model learns to restore text in which spans of characters were replaced by `_`: BART's text
infilling (Lewis et al., ACL 2020, arXiv:1910.13461). The text is that of the training rows of the
training tasks, inputs and outputs apart, so that nothing is learned of tasks or of rows to score.
"""

import argparse
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

import pl_train
from mttl.build.build_backbone import build_backbone
from mttl.checkpoint import read_inventory
from mttl.command import exit_with, make_console, make_parser
from mttl.config.backbone_schema import Backbone
from mttl.config.load import load_config, resolve_folder, resolve_path
from mttl.errors import ConfigError
from mttl.files import write_text
from mttl.gym.folder import Gym
from mttl.gym.partition import load_partition

TASK = "restore"
MASKED, LONGEST_SPAN, UNTOUCHED = 0.3, 3, 0.1
MOST_DEV = 200


def main(arguments: list[str] | None = None) -> int:
    """Build the rows, train, and save the model where transformers finds it."""
    options = parse(arguments)
    out = Path(options.out)
    if (out / "config.json").is_file():
        raise ConfigError(f"'{out}' holds a model already; choose another --out or delete it")
    work = out.with_name(f"{out.name}-run")
    if work.exists() and not (work / "partition.json").is_file():
        raise ConfigError(f"'{work}' is needed for the training; choose another --out")
    config = load_config(options.config, [])
    if not config.backbone.train:
        raise ConfigError(
            f"the backbone of '{options.config}' is frozen, and only the backbone is trained here; "
            "take a configuration with backbone.train: true, such as crossfit.yaml"
        )
    gym = Gym(resolve_folder(config.data.dir))
    tasks = load_partition(resolve_path(config.data.partition)).train
    texts = sorted(training_texts(gym, tasks, config.data.samples))
    generator = random.Random(options.seed)
    generator.shuffle(texts)
    n_dev = min(MOST_DEV, max(1, len(texts) // 10))
    dev, training = texts[:n_dev], texts[n_dev:]
    rows = [(corrupt(text, generator), text) for _ in range(options.copies) for text in training]
    resume = (work / "run" / "checkpoints" / "last.ckpt").is_file()
    if not resume:
        shutil.rmtree(work, ignore_errors=True)
    write_rows(work / "gym", "train", rows)
    for split in ("dev", "test"):
        write_rows(work / "gym", split, [(corrupt(text, generator), text) for text in dev])
    write_text(work / "gym" / "TASKS.csv", f"task,metric\n{TASK},EM\n")
    write_text(work / "partition.json", f'{{"train": ["{TASK}"], "dev": [], "test": []}}')
    settings = [
        *(f"data.dir={work / 'gym'}", f"data.partition={work / 'partition.json'}"),
        *("data.samples=[100]", "data.evaluate=[test]", f"run.dir={work}", "run.name=run"),
        *(f"run.seed={options.seed}", f"trainer.max_steps={options.steps}"),
        f"trainer.val_check_interval={options.steps}",
        # All that is learned goes into the backbone: the skill's change stays at zero.
        *("optim.lr=1e-12", f"optim.backbone_lr={options.lr}"),
    ]
    files = f"{options.config}+router/shared.yaml"
    given = ["-c", files, "-k", *settings, *(["--resume"] if resume else [])]
    status = pl_train.main(given)
    export(work / "run", config.backbone, out)
    make_console().print(f"The model is in {out}")
    return status


def export(run: Path, settings: Backbone, out: Path) -> None:
    """Save the trained backbone of a run, without skills, as a folder of transformers."""
    backbone = build_backbone(settings)
    parameters = dict(backbone.named_parameters())
    trained = read_inventory(run).backbone
    assert trained is not None  # it was trained
    with torch.no_grad():
        for name, value in trained.items():
            parameters[name].copy_(value)
    backbone.save_pretrained(out)


def training_texts(gym: Gym, tasks: Sequence[str], samples: Sequence[int]) -> set[str]:
    """Return the inputs and the outputs of all training rows."""
    rows = [row for task in tasks for sample in samples for row in gym.rows(task, "train", sample)]
    return {text for row in rows for text in (row.input, row.outputs[0]) if text}


def corrupt(text: str, generator: random.Random) -> str:
    """Replace spans by `_` until three tenths of the text are gone; one in ten stays whole."""
    if generator.random() < UNTOUCHED:
        return text
    characters: list[str] = list(text)
    left = round(MASKED * len(characters))
    while left > 0:
        length = min(left, generator.randint(1, LONGEST_SPAN), len(characters))
        start = generator.randrange(len(characters) - length + 1)
        characters[start : start + length] = ["_"]
        left -= length
    return "".join(characters)


def write_rows(gym: Path, split: str, rows: list[tuple[str, str]]) -> None:
    """Write one file of the task."""
    lines = "".join(f"{given}\t{wanted}\n" for given, wanted in rows)
    write_text(gym / TASK / f"{TASK}_{len(rows)}_100_{split}.tsv", lines)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("-c", "--config", default="crossfit.yaml", help="names the gym and the model (%(default)s)")
    add("--steps", type=int, default=2000, help="optimizer steps (%(default)s)")
    add("--lr", type=float, default=2e-3, help="learning rate (%(default)s)")
    add("--copies", type=int, default=4, help="corruptions of a text (%(default)s)")
    add("--seed", type=int, default=13)
    add("--out", default="models/denoiser", help="folder of the model (%(default)s)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_with(main)
