"""Merging of models by a recipe, tensor by tensor, into a new folder.

::

    base shard 1 ─┐ one tensor                 ┌─> out/shard 1 (same names, types and order)
    model A ──────┼─> τ_A, τ_B, f … ─> rule ───┤
    model B ──────┘                            └─> …

One tensor of each model is in memory at a time. The other files of the base (configuration,
tokenizer, index of shards) are copied.
"""

import fnmatch
import logging
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, GenerationConfig

from mttl.assembly.build_backbone import build_tokenizer
from mttl.inference.model_card import PromptExport
from mttl.io import yaml12
from mttl.io.errors import CheckpointError, ConfigError, raised_as
from mttl.io.files import new_folder
from mttl.merging.check_written import check_written, logits, read_model
from mttl.merging.differences import fisher_differences, setting_differences, weight_differences
from mttl.merging.mixture import Change, DenseChange, MixtureChange, Parts
from mttl.merging.recipe import Ingredient, Recipe
from mttl.merging.weights_folder import LoadedNames, Weights
from mttl.models.backbone import load_tokenizer
from mttl.models.generation import end_also_at, search_settings

_log = logging.getLogger(__name__)
_ABOUT = "Merged by the recipe in `merge.yaml`."
COPIED = ("*.json", "*.txt", "*.model", "*.jinja", "*.spm")


def merge_models(
    recipe: Recipe,
    out: str | Path,
    *,
    on_tensor: Callable[[int, int], object] = lambda done, total: None,
    probe: bool = False,
) -> None:
    """Merge models and write the result atomically; equal recipes give equal bytes.

    The new folder has the model, ``merge.yaml``, and, for tasks of runs, their prompt formats.
    ``on_tensor`` gets the numbers of written tensors and of all tensors. ``probe`` loads the result
    and compares its answers, in the memory of two models.

    Raises:
        CheckpointError: If a file cannot be read or models do not fit; the message lists the
            differing tensors and settings of all models, and nothing is written.
        ConfigError: If the folder already exists.
    """
    out = Path(out)
    if out.exists():
        raise ConfigError(f"'{out}' already exists; choose another folder, or delete it")
    parts = open_parts(recipe)
    total = sum(len(file.keys()) for file in parts.base.files.values())
    done = 0
    kept: dict[str, Tensor] = {}

    def merged(file: Any, stored: str) -> Tensor:
        nonlocal done
        value, tensor = file.get_tensor(stored), parts.base.names.get(stored)
        if tensor is not None and value.is_floating_point():
            with torch.no_grad():
                wide = value.to(torch.promote_types(value.dtype, torch.float32))
                value = parts.merged(tensor, wide).to(value.dtype)
            if not value.isfinite().all():
                kind = str(value.dtype).removeprefix("torch.")
                raise ValueError(
                    f"'{tensor}' would have values that are NaN or too large for {kind}"
                )
        if probe:
            kept[stored] = value
        done += 1
        on_tensor(done, total)
        return value

    prompt_export = merged_prompt_export(recipe, parts)
    causes = ValueError, NotImplementedError
    with new_folder(out) as folder:
        with raised_as(CheckpointError, "the models cannot be merged", *causes):
            for path, file in parts.base.files.items():
                _write_like(path, folder / path.name, file, partial(merged, file))
        for path in chain.from_iterable(map(parts.base.path.glob, COPIED)):
            shutil.copyfile(path, folder / path.name)
        settings = recipe.model_dump(mode="json", exclude_none=True, exclude={"out"})
        (folder / "merge.yaml").write_text(yaml12.dump(settings), "utf-8")
        if prompt_export is not None:
            named = {"place": str(out), "base": recipe.base.model}
            prompt_export.write(folder, "model", about=_ABOUT, **named)
        _check(folder, parts.base, kept)


def _write_like(template: Path, out: Path, file: Any, merged: Callable[[str], Tensor]) -> None:
    """Write a file with the header of another, tensor by tensor."""
    with template.open("rb") as source, out.open("wb") as written:
        length = source.read(8)
        written.write(length + source.read(int.from_bytes(length, "little")))
        for name in file.offset_keys():
            values = merged(name).detach().contiguous().flatten()
            written.write(values.view(torch.uint8).numpy().data)


def _check(folder: Path, base: Weights, tensors: dict[str, Tensor]) -> None:
    """Check that transformers loads the merge as computed; warn if it cannot load the base."""
    try:
        meant, _ = read_model(base.path, meta=not tensors, tensors=tensors)
        answers = {"merge": logits(meant)} if tensors else {}
    except Exception as error:  # transformers raises various errors for unreadable folders
        _log.warning("the merge is not checked: transformers cannot load the base: %s", error)
        return
    check_written(folder, meant, answers, like=base.path)


def merged_prompt_export(recipe: Recipe, parts: Parts) -> PromptExport | None:
    """Return the prompt formats of the added tasks of runs; None if there are none.

    Tokenizer and search are those of the first run, as is the format of a task of two runs.
    """
    added = {
        str(model.task): change.settings
        for model, change in reversed([*zip(recipe.models, parts.changes, strict=True)])
        if isinstance(change, MixtureChange) and model.role == "expert"
    }
    if not added:
        return None
    first, path = [*added.values()][-1], parts.base.path
    try:
        named = first.backbone.tokenizer is not None
        tokenizer = build_tokenizer(first.backbone) if named else load_tokenizer(str(path))
    except ConfigError as error:
        _log.warning("the merged model has no prompt formats: %s", error)
        return None
    config = AutoConfig.from_pretrained(path)
    generation = GenerationConfig.from_model_config(config)
    if (path / "generation_config.json").is_file():
        generation = GenerationConfig.from_pretrained(path)
    decoder_only = not config.is_encoder_decoder
    if first.data.template == "chat":
        end_also_at(generation, first.data.encoder(tokenizer, decoder_only=decoder_only).stops)
    return PromptExport(
        tokenizer=tokenizer,
        forms={task: settings.data for task, settings in reversed(added.items())},
        decoder_only=decoder_only,
        generation=generation,
        search=search_settings(first.generation, first.data.max_output_length, generation),
        dtype=getattr(first.backbone, "dtype", "float32"),
    )


def open_parts(recipe: Recipe) -> Parts:
    """Return the opened files of a recipe; CheckpointError if they do not fit together."""
    path = Path(recipe.base.model)
    base = Weights(path, LoadedNames(path))  # raises errors of the base first
    problems: list[str] = []
    changes: list[Change] = []
    for model in recipe.models:
        try:
            changes.append(_open(model, base, problems))
        except CheckpointError as error:
            problems.append(str(error))
    for model in recipe.models:
        for pattern in model.weight if isinstance(model.weight, dict) else ():
            if not fnmatch.filter(base, pattern):
                problems.append(f"weight: '{pattern}' fits no tensor of '{path}'")
    if problems:
        raise CheckpointError("\n".join(problems))

    def measured(path: str | None) -> Weights | None:
        try:
            return None if path is None else Weights(Path(path))
        except CheckpointError as error:
            problems.append(str(error))
            return None

    base_fisher = measured(recipe.base.fisher)
    contrast = measured(getattr(recipe.method, "fisher", None))
    fishers = [measured(model.fisher) for model in recipe.models]
    present = [fisher for fisher in (base_fisher, contrast, *fishers) if fisher is not None]
    changed = _changed(base, changes, present)
    for fisher in present:
        found = fisher_differences(base, fisher, changed)
        problems += [f"'{fisher.path}', {problem}" for problem in found]
    if problems:
        raise CheckpointError(
            f"Fisher information does not fit '{base.path}':\n" + "\n".join(problems)
        )
    return Parts(recipe, base, changes, base_fisher, fishers, contrast)


def _open(model: Ingredient, base: Weights, problems: list[str]) -> Change:
    if model.run is not None:
        return MixtureChange(model.run, str(model.task), base)
    folder = Path(str(model.model))
    weights = Weights(folder, base.loaded)
    found = weight_differences(base, weights) + setting_differences(base.path, folder)
    problems += [f"'{folder}' differs from '{base.path}', {problem}" for problem in found]
    return DenseChange(weights)


def _changed(base: Weights, changes: Sequence[Change], measured: Sequence[Weights]) -> list[str]:
    """Return the changed tensors that a Fisher file lacks."""
    found = []
    for name in base:
        if not base[name].is_floating_point():
            continue
        lacking = any(name not in fisher for fisher in measured)
        touching = [one for one in changes if lacking and one.touches(name)]
        if any(change.read(name, base.wide(name)).any() for change in touching):
            found.append(name)
    return found
