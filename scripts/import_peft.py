"""Make a run of skills that PEFT trained, to route, adapt, merge and draw them as one's own.

python scripts/import_peft.py adapters/past adapters/plural --out runs/imported
python scripts/import_peft.py adapters --router polytropon --out runs/imported
python scripts/import_peft.py adapters/poly --tasks verb_past,noun_plural --out runs/imported

Several LoRA adapters of one model become the skills of an inventory, one each, padded to the
largest rank; every adapter is a task that uses its skill alone. One Poly adapter becomes the
inventory that it is. The result is a folder for `load_run`, pl_finetune.py and the other scripts.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from mttl.build.build_backbone import build_tokenizer, places_of
from mttl.build.build_imported import Imported, build_imported
from mttl.checkpoint import save_inventory
from mttl.command import exit_with, make_console, make_parser, positive
from mttl.config.backbone_schema import Pretrained
from mttl.data.prompt_form import PromptForm
from mttl.errors import CheckpointError, ConfigError
from mttl.files import new_folder
from mttl.interchange.lora_import import read_lora, stack_adapters
from mttl.interchange.peft_folder import CONFIG, PeftFolder, read_peft
from mttl.interchange.poly import read_poly
from mttl.models.backbone import is_decoder_only
from mttl.training.report import attachment_table, write_routing


def main(arguments: list[str] | None = None) -> int:
    """Import; return the exit status."""
    options = parse(arguments)
    out = Path(options.out)
    if out.exists():
        raise ConfigError(f"--out '{out}' exists already; name a new folder, or remove it")
    if options.system is not None and options.template != "chat":
        raise ConfigError("--system is a part of chats: give --template chat, or leave it out")
    folders = [read_peft(path) for name in options.adapters for path in adapters_in(Path(name))]
    backbone = Pretrained(
        kind="pretrained", name=base_model(folders, options.backbone), tokenizer=options.tokenizer
    )
    names = options.tasks.split(",") if options.tasks else None
    if folders[0].config["peft_type"] == "POLY":
        imported = import_poly(folders, backbone, names, options)
    else:
        imported = import_loras(folders, backbone, names, options)
    data = {
        "prefix": "name" if options.prefix else "none",
        "descriptions": False,
        "template": options.template,
        "system": options.system,
        "max_input_length": options.max_input_length,
        "max_output_length": options.max_output_length,
    }
    # Whether the form fits is known before anything is written.
    decoder_only = is_decoder_only(imported.model.backbone)
    PromptForm(**data).encoder(build_tokenizer(backbone), decoder_only=decoder_only)
    with new_folder(out) as temporary:
        save_inventory(
            temporary / "skills",
            imported.model,
            imported.tasks,
            backbone_name=backbone.name,
            backbone_trained=False,
            settings=imported.settings | {"data": data},
            places=places_of(backbone),
        )
        write_routing(
            temporary / "plots" / "routing.npz",
            imported.model.router,
            imported.attachment.groups,
            imported.tasks,
        )
    console = make_console()
    console.print(attachment_table(imported.attachment, imported.model))
    console.print(f"The run is in {out}", markup=False)
    return 0


def import_poly(
    folders: Sequence[PeftFolder],
    backbone: Pretrained,
    names: list[str] | None,
    options: argparse.Namespace,
) -> Imported:
    """Return the model of a Poly adapter."""
    if len(folders) != 1:
        raise ConfigError("a Poly adapter is a whole inventory: import it alone")
    for option in ("router", "mix"):
        if getattr(options, option) is not None:
            raise ConfigError(f"--{option} is for LoRA adapters: a Poly adapter has its own")
    layers = read_poly(folders[0])
    first = next(iter(layers.values()))
    tasks = named(names, [f"task{number}" for number in range(len(first.logits))])
    return build_imported(
        backbone,
        {path: (layer.down, layer.up) for path, layer in layers.items()},
        tasks,
        scale=1 / first.down.shape[2],
        mix="factors",
        router="polytropon",
        logits={path: layer.logits for path, layer in layers.items()},
    )


def import_loras(
    folders: Sequence[PeftFolder],
    backbone: Pretrained,
    names: list[str] | None,
    options: argparse.Namespace,
) -> Imported:
    """Return the model of several LoRA adapters."""
    adapters = [read_lora(folder) for folder in folders]
    tasks = named(names, [folder.path.resolve().name for folder in folders])
    try:
        layers = stack_adapters(adapters)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    return build_imported(
        backbone,
        layers,
        tasks,
        scale=1.0,
        mix=options.mix or "outputs",
        router=options.router or "private",
    )


def adapters_in(folder: Path) -> list[Path]:
    """Return the folders of adapters in a folder of several, or the folder itself."""
    inside = sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))
    return [folder] if (folder / CONFIG).exists() else inside or [folder]


def base_model(folders: Sequence[PeftFolder], given: str | None) -> str:
    """Return the name of the model below the adapters."""
    if given is not None:
        return given
    bases = {folder.config.get("base_model_name_or_path") for folder in folders}
    if len(bases) > 1:
        found = ", ".join(f"'{base}'" for base in sorted(map(str, bases)))
        raise ConfigError(
            f"the adapters name different base models: {found}. Skills of one inventory need the "
            "same; if these are one model under several names, say which (--backbone)"
        )
    (base,) = bases
    if not base:
        raise ConfigError("the adapter does not name its base model; give it (--backbone)")
    return base


def named(given: list[str] | None, own: list[str]) -> list[str]:
    """Return the names of the tasks."""
    names = own if given is None else given
    if len(names) != len(own):
        raise ConfigError(f"--tasks names {len(names)} tasks; there are {len(own)}")
    if len(set(names)) < len(names) or not all(names):
        raise ConfigError(
            f"the tasks need names that differ, not {', '.join(names)}; give them (--tasks a,b)"
        )
    return names


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("adapters", nargs="+", metavar="DIR", help="folders of PEFT, or a folder of them")
    add("--out", required=True, metavar="RUN", help="where to write; a new folder")
    add("--backbone", metavar="NAME", help="the base model (as the adapters say)")
    add("--tokenizer", metavar="NAME", help="another one than the base model's")
    add("--tasks", metavar="A,B", help="names of the tasks (those of the folders)")
    add(
        "--router",
        choices=("private", "polytropon"),
        help="LoRA: who uses which skills; polytropon can be trained (private)",
    )
    add(
        "--mix",
        choices=("outputs", "deltas", "factors"),
        help="LoRA: how skills combine where a task uses several (outputs)",
    )
    add("--prefix", action="store_true", help="inputs begin with [task], as the lexical gym's do")
    add("--template", choices=("plain", "chat"), default="plain", help="how inputs are asked")
    add("--system", metavar="TEXT", help="system text of the chats")
    add("--max-input-length", type=positive, default=512, metavar="N")
    add("--max-output-length", type=positive, default=64, metavar="N")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_with(main)
