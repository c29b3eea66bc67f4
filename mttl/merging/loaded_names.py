"""The names in the loaded model of the tensors in a model's files."""

from collections.abc import Collection
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
)
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key


class LoadedNames:
    """Maps names in files, such as ``h.0.attn.c_attn.weight``, to names in the loaded model.

    Args:
        folder: Folder of a model. Where it describes no language model, names stay as they are.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._model = None if folder is None else empty_model(folder)
        self._known = {} if self._model is None else self._model.state_dict()
        self._parts: set[str] = set()
        self._buffers = {} if self._model is None else dict(self._model.named_buffers())

    def rename(self, stored: Collection[str]) -> dict[str, str]:
        """Return names in the model by those in files, but for what transformers ignores."""
        if self._model is None:
            return {name: name for name in stored}
        changes = get_model_conversion_mapping(self._model)
        renamings = [one for one in changes if isinstance(one, WeightRenaming)]
        converters = [one for one in changes if isinstance(one, WeightConverter)]
        prefix, found = self._model.base_model_prefix, {}
        for name in stored:
            new, merged = rename_source_key(name, renamings, converters, prefix, self._known)
            if new not in self._known or merged is not None:
                new, _ = rename_source_key(name, [], [], prefix, self._known)
            if merged is not None:  # of one tensor of the loaded model; these stay apart
                self._parts.add(new)
            found[name] = new
        extra = {new for new in found.values() if self.is_extra(new)}
        report: Any = SimpleNamespace(missing_keys=set(), unexpected_keys=extra)
        self._model._adjust_missing_and_unexpected_keys(report)
        ignored = extra - report.unexpected_keys
        return {name: new for name, new in found.items() if new not in ignored}

    def tied(self) -> dict[str, str]:
        """Return the first name of every tensor by all its names in the model."""
        if self._model is None:
            return {}
        first: dict[int, str] = {}
        named = (self._model.named_parameters, self._model.named_buffers)
        tensors = chain.from_iterable(one(remove_duplicate=False) for one in named)
        return {name: first.setdefault(id(value), name) for name, value in tensors}

    def is_extra(self, name: str) -> bool:
        """Return whether the model has no place for a tensor of its files."""
        known = name in self._known or name in self._parts
        return self._model is not None and not known

    def is_buffer(self, name: str) -> bool:
        """Return whether a tensor is one that is not trained."""
        return name in self._buffers


def empty_model(folder: Path) -> Any:
    """Return the language model that a folder describes, without memory; None where it is none."""
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        kinds: list[Any] = [AutoModelForCausalLM, AutoModelForMaskedLM]
        if config.is_encoder_decoder:
            kinds = [AutoModelForSeq2SeqLM]
        elif "MaskedLM" in str(config.architectures):
            kinds.reverse()
        kind = next(kind for kind in kinds if type(config) in kind._model_mapping)
        with torch.device("meta"):
            return kind.from_config(config, trust_remote_code=False)
    except Exception:  # transformers answers what it does not know with errors of all sorts
        return None
