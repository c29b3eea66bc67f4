"""Counts which experts the tokens of some rows choose in a trained model, and writes it."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric.utilities import move_data_to_device
from torch import Tensor

from mttl.analysis.token_counts import TokenCounts
from mttl.analysis.token_record import write_token_record
from mttl.checkpoints.whole_tensors import is_first
from mttl.models.teacher_forcing import forced_inputs
from mttl.routing.token.masks import TokenRecord
from mttl.training.text_to_text import TextToTextModule


def write_token_routing(
    path: Path, module: TextToTextModule, batches: Iterable[Mapping[str, Any]]
) -> None:
    """Write ``token_routing.npz``: what tokens of some rows choose, their right answers given."""
    counts = count_tokens(module, batches)
    if not is_first():
        return
    tokenizer: Any = module.tokenizer
    write_token_record(
        path,
        counts,
        layers=tuple(module.model.token_layers()),
        tasks=module.tasks,
        text_of=lambda token: str(tokenizer.convert_ids_to_tokens(token)),
    )


@torch.no_grad()
def count_tokens(module: TextToTextModule, batches: Iterable[Mapping[str, Any]]) -> TokenCounts:
    """Return which experts tokens choose, by layer, task, token and preceding token."""
    module.eval()
    layers = module.model.token_layers()
    numbers = {name: number for number, name in enumerate(layers)}
    backbone: Any = module.model.backbone
    counts = TokenCounts(
        len(layers),
        len(module.tasks),
        max(layer.router.n_experts for layer in layers.values()),
        backbone.get_input_embeddings().weight.shape[0],
    )
    for batch in batches:
        moved = move_data_to_device(batch, module.device)
        routing = module.nll(moved)[2]
        if not batch["rows"]:
            continue
        inputs = forced_inputs(backbone, moved)
        for record in routing.records:
            decoder = record.stack == "decoder" and "decoder_input_ids" in inputs
            ids = inputs["decoder_input_ids" if decoder else "input_ids"]
            before = torch.full_like(ids[:, :1], counts.n_tokens)
            previous = torch.cat([before, ids[:, :-1]], dim=1)
            counts.add(
                numbers[record.layer],
                _array(record.experts),
                _array(moved["task_ids"][_rows(record)]),
                _array(ids.reshape(-1)[record.tokens]),
                _array(previous.reshape(-1)[record.tokens]),
                int(record.dropped()),
            )
    return counts


def _rows(record: TokenRecord) -> Tensor:
    return record.tokens // record.positions


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.cpu().numpy().astype(np.int64)
