"""Write a run's skills as an adapter of PEFT.

python scripts/export_peft.py runs/crossfit --task verb_past --out adapters/verb_past
python scripts/export_peft.py runs/crossfit --task verb_past --rank 8 --out adapters/small
python scripts/export_peft.py runs/crossfit --inventory --out adapters/poly

A task's mixture, the average of all skills or a single skill becomes a LoRA adapter; the whole
inventory with its router becomes a Poly adapter. A backbone that the run has trained itself is
written into OUT/base_model, and the adapter names it.
"""

import argparse
from pathlib import Path

from mttl.build.build_backbone import place_of
from mttl.build.model import Built, load_run
from mttl.checkpoint import read_inventory
from mttl.command import exit_with, make_console, make_parser
from mttl.errors import ConfigError
from mttl.files import new_folder
from mttl.interchange.lora_export import lora_adapter, mixture_adapter, skill_mixing
from mttl.interchange.peft_folder import write_peft
from mttl.interchange.poly import poly_checkpoint
from mttl.merging.fold import average_mixing, strip, task_mixing
from mttl.merging.low_rank_factors import LowRank, relative_error
from mttl.models.backbone import is_decoder_only


def main(arguments: list[str] | None = None) -> int:
    """Export; return the exit status."""
    options = parse(arguments)
    out = Path(options.out)
    if out.exists():
        raise ConfigError(f"--out '{out}' exists already; name a new folder, or remove it")
    if options.rank is not None and options.inventory:
        raise ConfigError("--rank is for a single mixture: leave it out with --inventory")
    saved = read_inventory(options.run)
    built = load_run(options.run, backbone=options.backbone)
    model = built.model
    own_base = saved.backbone is not None
    base = str((out / "base_model").resolve()) if own_base else options.backbone
    base = base or place_of(saved.meta["settings"]["backbone"]["name"])
    names = {
        "base": base,
        "task_type": "CAUSAL_LM" if is_decoder_only(model.backbone) else "SEQ_2_SEQ_LM",
    }
    console = make_console()
    if options.inventory:
        config, tensors = poly_checkpoint(model, **names)
        console.print(f"A Poly adapter of {config['n_skills']} skills for the tasks, by id:")
        for task_id, task in enumerate(built.tasks):
            console.print(f"  {task_id} {task}", markup=False)
    else:
        adapter = mixture_adapter(model, mixing_of(built, options), options.rank)
        config, tensors = lora_adapter(model, adapter, **names)
        console.print(f"A LoRA adapter of rank {config['r']}, {accuracy(adapter)}", markup=False)
    with new_folder(out) as temporary:
        write_peft(temporary, config, tensors)
        if own_base:
            bare = strip(model).backbone
            bare.save_pretrained(temporary / "base_model")  # type: ignore[operator]
            built.tokenizer.save_pretrained(temporary / "base_model")
    console.print(f"The adapter is in {out}", markup=False)
    return 0


def accuracy(adapter: dict[str, LowRank]) -> str:
    """Say what was cut off: over all layers, and where most."""
    error = relative_error(list(adapter.values()))
    if not error:
        return "exact"
    errors = {path: relative_error([part]) for path, part in adapter.items()}
    worst = max(errors, key=errors.__getitem__)
    largest = f"largest {errors[worst]:.2e}, of {worst}"
    return f"relative error of the weight changes {error:.2e} ({largest})"


def mixing_of(built: Built, options: argparse.Namespace):
    """Return the mixing weights that the options name."""
    router = built.model.router
    if options.average:
        return average_mixing(router)
    if options.skill is not None:
        return skill_mixing(built.model, options.skill)
    return task_mixing(router, int(built.task_ids([options.task])))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("run", metavar="RUN", help="the folder of a run that has ended")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--task", metavar="NAME", help="the mixture of a task of the run")
    which.add_argument("--average", action="store_true", help="all skills alike")
    which.add_argument("--skill", type=int, metavar="K", help="one skill alone, from 0")
    which.add_argument("--inventory", action="store_true", help="all skills and the router")
    parser.add_argument(
        "--rank",
        type=int,
        metavar="R",
        help="largest rank; what exceeds it is cut off by SVD (what an exact copy takes)",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="where to write; a new folder")
    parser.add_argument("--backbone", metavar="DIR", help="where the pretrained backbone is now")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_with(main)
