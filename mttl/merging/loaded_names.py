"""Under which names transformers has the tensors of a model's files once it has loaded them."""

from collections.abc import Collection
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
)
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key


class LoadedNames:
    """Maps names in files, such as ``h.0.attn.c_attn.weight``, to names in the loaded model.

    Args:
        folder: Folder of a model; names stay as they are where its ``config.json`` describes none.
    """

    def __init__(self, folder: Path) -> None:
        self._model = _empty_model(folder)
        self._tied: dict[str, str] = {}
        self.known: Collection[str] = ()
        self.buffers: Collection[str] = ()
        if self._model is not None:
            self.known = self._model.state_dict()
            self.buffers = dict(self._model.named_buffers())
            named = (self._model.named_parameters, self._model.named_buffers)
            first: dict[int, str] = {}
            for name, value in chain(*(of(remove_duplicate=False) for of in named)):
                self._tied[name] = first.setdefault(id(value), name)

    def rename(self, stored: Collection[str]) -> dict[str, str]:
        """Return the names in the model by those in files, without what the model leaves out.

        Args:
            stored: All names in the files.
        """
        if self._model is None:
            return {name: name for name in stored}
        changes = get_model_conversion_mapping(self._model)
        renamings = [one for one in changes if isinstance(one, WeightRenaming)]
        converters = [one for one in changes if isinstance(one, WeightConverter)]
        found = {}
        for name in stored:
            prefix, state = self._model.base_model_prefix, self.known
            new, converted = rename_source_key(name, renamings, converters, prefix, state)
            if new not in state or converted is not None:  # what is made of several stays apart
                new, _ = rename_source_key(name, [], [], prefix, state)
            found[name] = new
        report: Any = SimpleNamespace(missing_keys=set(), unexpected_keys={*found.values()})
        report.unexpected_keys -= {*self.known}
        extra = {*report.unexpected_keys}
        self._model._adjust_missing_and_unexpected_keys(report)
        ignored = extra - report.unexpected_keys
        return {name: new for name, new in found.items() if new not in ignored}

    def shared(self, name: str) -> str:
        """Return the first name of a tensor that the model ties; else the name."""
        return self._tied.get(name, name)


def _empty_model(folder: Path) -> Any:
    if not (folder / "config.json").is_file():
        return None
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        kinds: list[Any] = [AutoModelForCausalLM, AutoModelForMaskedLM, AutoModel]
        if config.is_encoder_decoder:
            kinds.insert(0, AutoModelForSeq2SeqLM)
        elif "MaskedLM" in str(config.architectures):
            kinds.remove(AutoModelForCausalLM)
        kind = next(kind for kind in kinds if type(config) in kind._model_mapping)
        with torch.device("meta"):
            return kind.from_config(config, trust_remote_code=False)
    except Exception:  # transformers answers what is no model of its own with errors of all sorts
        return None
