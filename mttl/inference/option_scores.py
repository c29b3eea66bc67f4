"""How likely a model finds each of several answers to a prompt, the prompt read once.

| model | what is shared |
|---|---|
| encoder–decoder | the encoder's states: it runs once per prompt |
| decoder-only | keys and values of the prompt, in a cache |

All answers of a batch go through the model together; layers see the rows of an example one after
another, as under beam search. Where a prompt cannot be shared it is repeated: by models that route
tokens, whose experts see all tokens at once, that were compiled, that keep a state instead of keys
or take no positions; in training by decoder-only models; and by prompts in front of their text.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional
from transformers.modeling_outputs import BaseModelOutput

from mttl.data.collate import TrainCollator, pad, padded_inputs
from mttl.models.backbone import is_decoder_only
from mttl.models.generation import cache_argument
from mttl.models.teacher_forcing import forced_logits, run_at
from mttl.routing.context import Routing
from mttl.routing.token.masks import IGNORED
from mttl.skills.inputs.prompt import SkilledEmbedding
from mttl.skills.skilled_model import SkilledModel

# Answers that go through the model together, unless one prompt has more.
MOST_ROWS = 512

Ids = Sequence[int]


@torch.no_grad()
def option_scores(
    model: SkilledModel,
    task_ids: Int[Tensor, "B"],
    prompts: Sequence[Ids],
    options: Sequence[Sequence[Ids]],
    *,
    pad_id: int,
    per_token: bool,
) -> list[list[float]]:
    """Return the log-probability of every option of every prompt, or its mean over tokens.

    The model is in evaluation mode. Options are ids with their ends; each prompt has some.
    """
    found: list[list[float]] = []
    step = max(1, MOST_ROWS // max(map(len, options)))
    for start in range(0, len(prompts), step):
        part = slice(start, start + step)
        losses, counted = option_losses(
            model, task_ids[part], prompts[part], options[part], pad_id=pad_id
        )
        scores = -losses.sum(2)
        if per_token:
            scores = scores / counted.sum(2).clamp_min(1)
        pairs = zip(scores.tolist(), options[part], strict=True)
        found += [row[: len(own)] for row, own in pairs]
    return found


def option_losses(
    model: SkilledModel,
    task_ids: Int[Tensor, "B"],
    prompts: Sequence[Ids],
    options: Sequence[Sequence[Ids]],
    *,
    pad_id: int,
) -> tuple[Float[Tensor, "B n L"], Bool[Tensor, "B n L"]]:
    """Return the negative log-probability of each token of each option, and which tokens count.

    The arguments are those of `option_scores`; n is the largest number of options of a prompt.
    """
    n = max(map(len, options))
    filled = [ids for own in options for ids in (*own, *[own[0]] * (n - len(own)))]
    labels = pad(filled, IGNORED).to(task_ids.device)
    compute = _shared if _shares(model) else _repeated
    losses = compute(model, task_ids, prompts, labels, pad_id).view(len(prompts), n, -1)
    real = torch.tensor([[place < len(own) for place in range(n)] for own in options])
    counted = (labels != IGNORED).view_as(losses) & real.to(labels.device)[..., None]
    return losses * counted, counted


def _shares(model: SkilledModel) -> bool:
    backbone: Any = model.backbone
    if model.routes_tokens or backbone._compiled_call_impl is not None:
        return False
    if not is_decoder_only(backbone):
        return True
    prompted = any(isinstance(module, SkilledEmbedding) for module in backbone.modules())
    positions = "position_ids" in inspect.signature(backbone.forward).parameters
    stateful = getattr(backbone, "_is_stateful", False)
    return positions and not (prompted or stateful or torch.is_grad_enabled())


def _repeated(
    model: SkilledModel,
    task_ids: Int[Tensor, "B"],
    prompts: Sequence[Ids],
    labels: Int[Tensor, "Bn L"],
    pad_id: int,
) -> Float[Tensor, "Bn L"]:
    """Run the model on every prompt with every answer, as training does."""
    n = len(labels) // len(prompts)
    rows = [
        {"input_ids": prompts[place // n], "labels": own[own != IGNORED].tolist(), "task_id": task}
        for place, (own, task) in enumerate(
            zip(labels, task_ids.repeat_interleave(n).tolist(), strict=True)
        )
    ]
    collate = TrainCollator(pad_id, model.router.n_tasks, is_decoder_only(model.backbone))
    batch = {name: value.to(labels.device) for name, value in collate(rows).items()}
    with model.slot.use(model.route(batch["task_ids"], inputs=batch)):
        logits, targets, places = forced_logits(model.backbone, batch)
    return _placed(logits, targets.flatten()[places], labels)


def _shared(
    model: SkilledModel,
    task_ids: Int[Tensor, "B"],
    prompts: Sequence[Ids],
    labels: Int[Tensor, "Bn L"],
    pad_id: int,
) -> Float[Tensor, "Bn L"]:
    """Read every prompt once, then all its answers."""
    decoder_only = is_decoder_only(model.backbone)
    padded = padded_inputs(prompts, pad_id, left=decoder_only)
    inputs = {name: value.to(labels.device) for name, value in padded.items()}
    routing = model.route(
        task_ids,
        inputs=inputs,
        expansion=len(labels) // len(prompts),
        reuse_merged=not torch.is_grad_enabled(),
    )
    read = _after_a_cache if decoder_only else _after_an_encoder
    return read(model, routing, inputs, labels, pad_id)


def _after_an_encoder(
    model: SkilledModel, routing: Routing, inputs: dict[str, Tensor], labels: Tensor, pad_id: int
) -> Tensor:
    backbone: Any = model.backbone
    n, places = routing.expansion, _places(labels)
    with model.slot.use(routing):
        states = backbone.get_encoder()(**inputs).last_hidden_state
        logits, _ = run_at(
            backbone,
            places,
            encoder_outputs=BaseModelOutput(last_hidden_state=states.repeat_interleave(n, 0)),
            attention_mask=inputs["attention_mask"].repeat_interleave(n, 0),
            decoder_input_ids=backbone.prepare_decoder_input_ids_from_labels(labels=labels),
            use_cache=False,
        )
    return _placed(logits, labels.flatten()[places], labels)


def _after_a_cache(
    model: SkilledModel, routing: Routing, inputs: dict[str, Tensor], labels: Tensor, pad_id: int
) -> Tensor:
    backbone, mask = model.backbone, inputs["attention_mask"]
    n, length = routing.expansion, mask.shape[1]
    lasts = torch.arange(1, len(mask) + 1, device=mask.device) * length - 1
    with model.slot.use(routing):
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        logits, found = run_at(backbone, lasts, **inputs, position_ids=positions, use_cache=True)
        first = functional.cross_entropy(
            logits.float().repeat_interleave(n, 0), labels[:, 0], reduction="none"
        )
        if labels.shape[1] == 1:
            return first[:, None]
        cache = getattr(found, cache_argument(backbone))
        cache.batch_repeat_interleave(n)
        before, after = labels[:, :-1], labels[:, 1:]
        written = before != IGNORED
        step = torch.arange(before.shape[1], device=mask.device)
        places = _places(after)
        logits, _ = run_at(
            backbone,
            places,
            input_ids=before.masked_fill(~written, pad_id),
            attention_mask=torch.cat([mask.repeat_interleave(n, 0), written.to(mask)], 1),
            position_ids=mask.sum(1).repeat_interleave(n, 0)[:, None] + step,
            use_cache=True,
            **{cache_argument(backbone): cache},
        )
    return torch.cat([first[:, None], _placed(logits, after.flatten()[places], after)], 1)


def _places(labels: Int[Tensor, "Bn L"]) -> Int[Tensor, "N"]:
    return (labels != IGNORED).flatten().nonzero().flatten()


def _placed(
    logits: Float[Tensor, "N V"], targets: Int[Tensor, "N"], labels: Int[Tensor, "Bn L"]
) -> Float[Tensor, "Bn L"]:
    """Return the losses of targets where the labels that count stand, and 0 elsewhere."""
    losses = functional.cross_entropy(logits.float(), targets, reduction="none")
    blank = losses.new_zeros(labels.numel())
    return blank.index_copy(0, _places(labels), losses).view_as(labels)
