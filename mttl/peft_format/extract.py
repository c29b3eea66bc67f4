"""The difference of two models as a LoRA adapter of PEFT."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from mttl.aggregation.packed_weights import is_transposed
from mttl.io.errors import CheckpointError
from mttl.merging.check_written import changed_answer, check_written, read_model
from mttl.merging.differences import setting_differences, weight_differences
from mttl.merging.low_rank_factors import LowRank, factorise
from mttl.merging.weights_folder import LoadedNames, Weights, empty_model
from mttl.peft_format.peft_folder import of_base, task_type_of, write_peft
from mttl.peft_format.peft_lora import lora_adapter


class Extracted(NamedTuple):
    """The factors of every changed linear layer by its path, and changed tensors without any."""

    factors: dict[str, LowRank]
    lost: list[str]
    network: Any  # without values


@torch.no_grad()
def extract_lora(base: Path, model: Path, rank: int) -> Extracted:
    """Return the best approximation of a given rank to the change of each linear layer, by SVD.

    Raises:
        CheckpointError: If a folder cannot be read, the models do not fit, or no layer has changed.
    """
    network, loaded = empty_model(base), LoadedNames(base)
    start, tuned = Weights(base, loaded), Weights(model, loaded)
    found = weight_differences(start, tuned) + setting_differences(base, model)
    if found or network is None:
        problems = found or ["which is not a language model"]
        problems = [f"'{model}' differs from '{base}', {problem}" for problem in problems]
        raise CheckpointError("\n".join(problems))
    layers = {
        f"{path}.weight": (path, module)
        for path, module in network.named_modules()
        if isinstance(module, nn.Linear) or is_transposed(module)
    }
    factors, lost = {}, []
    for name in start:
        if name not in tuned or not start[name].is_floating_point():
            continue
        change = tuned[name].to(start.wide(name).dtype) - start.wide(name)
        if not change.any():
            continue
        if name not in layers:
            lost.append(name)
            continue
        path, module = layers[name]
        factors[path] = factorise(change.t() if is_transposed(module) else change, rank)
    if not factors:
        raise CheckpointError(f"no linear layer of '{model}' differs from '{base}'")
    width = max(part.rank for part in factors.values())
    return Extracted({path: part.padded(width) for path, part in factors.items()}, lost, network)


def write_extracted(folder: Path, base: Path, found: Extracted, *, probe: bool) -> None:
    """Write an adapter for PEFT, and check that it loads; ``probe`` also compares its answers."""
    transposed = any(map(is_transposed, found.network.modules()))
    config, tensors = lora_adapter(found.factors, transposed=transposed)
    config |= of_base(str(base), task_type_of(found.network))
    write_peft(folder, config, tensors)
    network, _ = read_model(base, meta=not probe)
    answers = {"adapter": changed_answer(network, found.factors)} if probe else {}
    check_written(folder, network, answers)
