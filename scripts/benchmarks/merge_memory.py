"""Measure time and memory of merging models range by range, beside loading them whole.

    python scripts/benchmarks/merge_memory.py [--mib 512] [--models 2] [--json FILE]

Models of random weights are written first: a base, and others, each of the given size in four
shards, with half of it in one tensor. The floor loads all of them, adds their task vectors and
saves the result. The others are what scripts/merge_skills.py does. Peak memory is above the start.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _common import Step, parse_arguments, positive, report, run

if TYPE_CHECKING:  # the parent process needs none of it before its options are read
    from mttl.merging.recipe import Recipe

FLOOR = "whole models"
METHODS: dict[str, dict[str, Any]] = {
    "arithmetic": {"kind": "arithmetic"},
    "elastic": {"kind": "elastic"},
    "ties": {"kind": "ties"},
    "ties, over all": {"kind": "ties", "scope": "model"},
    "dare": {"kind": "dare"},
}
N_SHARDS, WIDTH = 4, 1024
MEBIBYTE = 2**20


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Time and memory of merging models.")
    parser.add_argument("--mib", type=positive, default=256, help="of a model (%(default)s)")
    parser.add_argument("--models", type=positive, default=2, help="beside the base (%(default)s)")
    settings = parse_arguments(parser, (FLOOR, *METHODS), argv, sizes=())
    with tempfile.TemporaryDirectory() as folder:
        names = ["base", *(f"model{number}" for number in range(settings.models))]
        for seed, name in enumerate(names):
            write_model(Path(folder) / name, settings.mib, seed)
        options = argparse.Namespace(**vars(settings), folder=Path(folder), names=names)
        found = run(build, options)
    columns = {"peak_mib": "peak memory, MiB above start"}
    title = f"merging {settings.models} models of {settings.mib} MiB into a base"
    report(found, settings, title=title, unit="ms", columns=columns)
    return 0


def write_model(folder: Path, mib: int, seed: int) -> None:
    """Write shards of float32, of which the first is one tensor of half the size."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    n_rows = mib * MEBIBYTE // 4 // WIDTH
    shares = [n_rows // 2, *[n_rows // 6] * (N_SHARDS - 1)]
    folder.mkdir()
    places = {}
    for number, rows in enumerate(shares):
        name = f"layers.{number}.weight"
        places[name] = f"model-{number + 1:05}-of-{N_SHARDS:05}.safetensors"
        values = torch.randn(rows, WIDTH, generator=generator)
        save_file({name: values}, folder / places[name], {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def build(variant: str, settings: argparse.Namespace) -> tuple[Step, dict[str, float]]:
    """Make the step of a variant: one merge into an empty folder."""
    from mttl.merging.run import merge_models

    out = settings.folder / variant.replace(" ", "_").replace(",", "")
    folders = [settings.folder / name for name in settings.names]

    def step() -> None:
        shutil.rmtree(out, ignore_errors=True)
        if variant == FLOOR:
            merge_whole(folders, out)
        else:
            merge_models(make_recipe(METHODS[variant], folders), out)

    return step, {}


def make_recipe(method: dict[str, Any], folders: list[Path]) -> "Recipe":
    """Return a recipe over all models; any tensors of their shapes can stand for information."""
    from mttl.merging.recipe import Recipe

    def entry(folder: Path) -> dict[str, str]:
        information = {"fisher": str(folders[0])} if method["kind"] == "elastic" else {}
        return {"model": str(folder), **information}

    base, *models = (entry(folder) for folder in folders)
    return Recipe.model_validate({"base": base, "models": models, "method": method})


def merge_whole(folders: list[Path], out: Path) -> None:
    """Merge as one would without the package: all models in memory."""
    from safetensors.torch import load_file, save_file

    from mttl.aggregation.arithmetic import add_task_vectors

    base, *models = (
        {
            name: value
            for path in sorted(folder.glob("*.safetensors"))
            for name, value in load_file(path).items()
        }
        for folder in folders
    )
    weights = [1.0] * len(models)
    merged = {
        name: add_task_vectors(value, [model[name] - value for model in models], weights)
        for name, value in base.items()
    }
    out.mkdir()
    save_file(merged, out / "model.safetensors")


if __name__ == "__main__":
    sys.exit(main())
