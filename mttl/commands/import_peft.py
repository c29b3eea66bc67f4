"""Import adapters of PEFT as a run, to route, adapt, merge and plot them.

mttl import adapters/past adapters/plural --out runs/imported
mttl import adapters --router polytropon --out runs/imported
mttl import adapters/poly --tasks verb_past,noun_plural --out runs/imported

Several LoRA adapters of one model become the skills of an inventory, padded to the largest rank;
each adapter is a task that uses one skill. A Poly adapter is imported as an inventory with its
router, and a MixLoRA adapter with its experts. The result is a run for `mttl.load`, mttl adapt and
the other commands.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mttl.commands.options import POSITIVE, CommandParser, command
from mttl.io.errors import CheckpointError, ConfigError, raised_as, some
from mttl.runtime.command import make_console, say

if TYPE_CHECKING:
    from mttl.peft_format.peft_folder import PeftFolder

    # Stacked factors, task names, sections, and further arguments of `build_imported`.
    Import = tuple[dict[str, Any], list[str], dict[str, Any], dict[str, Any]]


def _declare(parser: CommandParser) -> None:
    add = parser.read.add_argument
    help = "adapter folders of PEFT, or a folder that contains them"
    add("adapters", nargs="+", metavar="DIR", help=help)
    add("--backbone", metavar="NAME", help="base model (as named in the adapters)")
    add("--tokenizer", metavar="NAME", help="tokenizer (the base model's)")
    add("--tasks", metavar="A,B", help="names of the tasks (names of the folders)")
    add = parser.work.add_argument
    help = "LoRA: router; private: one skill per adapter; polytropon: trainable (private)"
    add("--router", choices=("private", "polytropon"), help=help)
    add("--mix", choices=("outputs", "deltas", "factors"), help="LoRA: what is averaged (outputs)")
    add = parser.group("input format").add_argument
    add("--prefix", action="store_true", help="add the prefix [task] to every input")
    add("--template", choices=("plain", "chat"), default="plain", help="format (%(default)s)")
    add("--system", metavar="TEXT", help="system text of the chats")
    for name, default in (("input", 512), ("output", 64)):
        help = f"maximum tokens of an {name} (%(default)s)"
        add(f"--max-{name}-length", **POSITIVE, default=default, help=help)
    parser.add_out(metavar="RUN")


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Import the adapters."""
    if options.system is not None and options.template != "chat":
        raise ConfigError("--system needs --template chat; add it or remove --system")
    for name in options.adapters:
        if not Path(name).is_dir():
            raise CheckpointError(f"the folder '{name}' does not exist; name an adapter of PEFT")
    from mttl.assembly.build_imported import build_imported, save_imported
    from mttl.assembly.saved_settings import ModelSettings
    from mttl.config.backbone_schema import Pretrained
    from mttl.data.prompt_form import PromptForm
    from mttl.library.member_sources import adapters_in, without_base
    from mttl.peft_format.peft_folder import MIXLORA, read_peft
    from mttl.training.report import attachment_table

    folders = [read_peft(path) for name in options.adapters for path in adapters_in(Path(name))]
    base = base_model(folders, options.backbone)
    folders = [without_base(folder, base) for folder in folders]
    backbone = Pretrained(kind="pretrained", name=base, tokenizer=options.tokenizer)
    form = PromptForm(
        prefix="name" if options.prefix else "none",
        template=options.template,
        system=options.system,
        max_input_length=options.max_input_length,
        max_output_length=options.max_output_length,
    )
    kinds = {"POLY": import_poly, MIXLORA: import_mixlora}
    read = kinds.get(str(folders[0].config.get("peft_type")), import_loras)
    if read is not import_loras:
        given = ("--router", options.router), ("--mix", options.mix)
        wrong = [f"{name} does not work with it" for name, value in given if value is not None]
        if wrong := wrong + ["it must be imported without others"] * (len(folders) > 1):
            raise ConfigError(f"'{folders[0].path}' has a router of its own: {', '.join(wrong)}")
    layers, tasks, sections, further = read(folders, options)
    settings = ModelSettings(backbone=backbone, data=form, **sections)
    imported = build_imported(settings, layers, tasks, **further)
    written = settings.model_dump(mode="json", include={"backbone", "data", *sections})
    save_imported(options.out, imported, written)
    make_console().print(attachment_table(imported.attachment, imported.model, is_trained=False))
    say(f"The run is in {options.out}")


def import_poly(folders: "Sequence[PeftFolder]", options: argparse.Namespace) -> "Import":
    """Return the contents of a Poly adapter."""
    from mttl.assembly.build_imported import imported_skills
    from mttl.config.skills_schema import router_section
    from mttl.peft_format.poly import read_poly

    poly = read_poly(folders[0])
    first = next(iter(poly.values()))
    tasks = named(options, [f"task{number}" for number in range(len(first.logits))])
    layers = {path: (layer.down, layer.up) for path, layer in poly.items()}
    n_heads, rank = first.logits.shape[1], first.down.shape[2]
    skills = imported_skills(layers, n_heads=n_heads, scale=1 / rank, mix="factors")
    sections = {"skills": skills, "router": router_section("polytropon")}
    return layers, tasks, sections, {"logits": {path: layer.logits for path, layer in poly.items()}}


def import_mixlora(folders: "Sequence[PeftFolder]", options: argparse.Namespace) -> "Import":
    """Return the contents of a MixLoRA adapter."""
    from mttl.assembly.build_imported import imported_skills
    from mttl.config.moe_schema import MoE
    from mttl.config.skills_schema import NoSkills, router_section
    from mttl.peft_format.mixlora import read_mixlora

    config, layers, experts = read_mixlora(folders[0].path)
    with raised_as(CheckpointError, f"'{folders[0].path}' lacks the setting", KeyError):
        own = config | config.get("expert_lora", {})
        kind = {"kind": "lora_block", "rank": own["r"], "alpha": own["lora_alpha"]}
        top_k = {"top_k": config.get("top_k", 2), "jitter": config.get("jitter_noise", 0.0)}
        moe = {
            "router": {"kind": "top_k", "normalise": True, **top_k},
            "experts": {**kind, "dropout": own["lora_dropout"]},
            "n_experts": config["num_experts"],
            "targets": [*experts],
        }
        sections: dict[str, Any] = {"moe": MoE.model_validate(moe), "skills": NoSkills(kind="none")}
        sections["router"] = router_section("shared" if layers else "none")
        if layers:
            scale = {"alpha": float(config["lora_alpha"]), "dropout": config["lora_dropout"]}
            sections["skills"] = imported_skills(layers, mix="factors", **scale)
    tasks = named(options, [folders[0].path.resolve().name])
    return layers, tasks, sections, {"experts": experts, "activation": config.get("act_fn")}


def import_loras(folders: "Sequence[PeftFolder]", options: argparse.Namespace) -> "Import":
    """Return the contents of several LoRA adapters."""
    from mttl.assembly.build_imported import imported_skills
    from mttl.config.skills_schema import router_section
    from mttl.library.stacking import stack_members
    from mttl.peft_format.peft_lora import common_settings, read_lora

    common = common_settings(folders)
    adapters = [read_lora(folder, scaled=common is None) for folder in folders]
    tasks = named(options, [folder.path.resolve().name for folder in folders])
    layers = stack_members(adapters)
    private, mix = options.router != "polytropon", options.mix or "outputs"
    sections = {
        "skills": imported_skills(layers, mix=mix, per_task=private, **common or {"scale": 1.0}),
        "router": router_section("private" if private else "polytropon"),
    }
    return layers, tasks, sections, {}


def base_model(folders: "Sequence[PeftFolder]", given: str | None) -> str:
    """Return the name of the adapters' base model."""
    if given is not None:
        return given
    bases = {folder.path: folder.config.get("base_model_name_or_path") for folder in folders}
    if len({*bases.values()}) > 1:
        named = some([f"{base!r} ('{path}')" for path, base in bases.items()])
        raise ConfigError(
            f"the adapters name different base models: {named}; if these names mean one model, "
            "name it with --backbone"
        )
    if base := bases.popitem()[1]:
        return base
    raise ConfigError("the adapter does not name its base model; name it with --backbone")


def named(options: argparse.Namespace, own: list[str]) -> list[str]:
    """Return the names of the tasks after checking them."""
    names = options.tasks.split(",") if options.tasks else own
    if len(names) != len(own):
        raise ConfigError(f"--tasks has {len(names)} names for {len(own)} tasks")
    if len(set(names)) < len(names) or not all(names):
        raise ConfigError(f"task names must be distinct, not {', '.join(names)}; set --tasks a,b")
    return names
