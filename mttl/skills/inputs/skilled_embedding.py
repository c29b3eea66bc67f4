"""Input embeddings of the backbone together with the prompts that stand in front of them.

Prompts live inside the stack that reads the text, an encoder or a decoder-only model without its
head: what it is called with is widened when it is called, and in a decoder-only model what comes
out is cut again. Ids, labels, masks and logits have the length of the text everywhere else, in
generation too. A decoder that looks at an encoder is shown the prompt there.

::

    ids, mask ──> [prompt; embedded text] ──> layers ──> encoder: all of it, to the decoder
                                                     └─> decoder-only: the text's, to the head
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mttl.skills.skilled_layer import SkilledLayer


class SkilledEmbedding(SkilledLayer):
    """The embeddings, their inventory of prompts, and its routing."""

    @property
    def weight(self) -> Tensor:
        """The vocabulary's vectors."""
        return self.base.weight  # type: ignore[return-value]

    def forward(self, ids: Int[Tensor, "R L"]) -> Float[Tensor, "R L D"]:
        """Return the embeddings of the text alone."""
        return self.base(ids)

    def prompted(self, ids: Int[Tensor, "R L"]) -> Float[Tensor, "R positions D"]:
        """Return the prompt of the current routing and the embedded text behind it.

        Args:
            ids: The text of each row.

        Raises:
            RuntimeError: If no routing is in use.
            ValueError: If the rows do not fit the examples, or hold several.
        """
        routing, (prompts,) = self.merge()
        if routing.segments:
            raise ValueError(
                "prompts of several examples cannot be told apart in a packed sequence; leave "
                "data.packed_length out"
            )
        embedded = self.base(ids)
        return torch.cat([routing.repeat(prompts, len(ids)).to(embedded.dtype), embedded], 1)


def input_embeddings(backbone: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return entries and features of the embeddings of the stack that reads the text, by path.

    Args:
        backbone: A model of transformers; any other has none.
    """
    stack = _reader(backbone)
    if stack is None:
        return {}
    found = stack.get_input_embeddings()
    return {
        path: (found.weight.shape[0], found.weight.shape[1])
        for path, module in backbone.named_modules()
        if module is found
    }


def put_prompts(backbone: nn.Module) -> None:
    """Let the stacks of a model widen what they are called with, where embeddings have prompts.

    Args:
        backbone: The model; hooks are put on its stacks.
    """
    stack = _reader(backbone)
    stack.register_forward_pre_hook(_widen, with_kwargs=True)
    if has_encoder(backbone):
        backbone.get_decoder().register_forward_pre_hook(_show, with_kwargs=True)  # type: ignore[operator]
    else:
        stack.register_forward_hook(_cut, with_kwargs=True)


def has_encoder(backbone: nn.Module) -> bool:
    """Tell whether a decoder looks at what an encoder makes of the input."""
    return bool(getattr(getattr(backbone, "config", None), "is_encoder_decoder", False))


def last_stack(backbone: Any) -> Any:
    """Return the stack whose states become logits, or None where none is known.

    A wrapper around it, which some models (OPT, decoders of BART) never call, is not it.

    Args:
        backbone: A model of transformers; any other has none.
    """
    if not hasattr(backbone, "get_decoder"):
        return None
    found = (backbone.get_decoder(), backbone.base_model, getattr(backbone, "model", None))
    return next((one for one in found if one is not backbone and hasattr(one, "config")), None)


def _reader(backbone: Any) -> Any:
    """Return the stack that reads the text."""
    stack = backbone.get_encoder() if has_encoder(backbone) else last_stack(backbone)
    return stack if hasattr(stack, "get_input_embeddings") else None


def _widen(
    stack: nn.Module, args: tuple[Any, ...], given: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Put prompts in front of the text, or count them as read where a cache holds them."""
    embeddings: Any = stack.get_input_embeddings()  # type: ignore[operator]
    if not isinstance(embeddings, SkilledEmbedding):
        return None  # the skills were taken off
    ids = given.get("input_ids", args[0] if args else None)
    mask, positions = given.get("attention_mask"), given.get("position_ids")
    cache = given.get("cache", given.get("past_key_values"))  # before transformers 5.24
    fixed = getattr(cache, "is_compileable", False)
    if ids is None or args[1:] or fixed or (mask is not None and mask.ndim != 2):
        raise ValueError(
            "prompts stand in front of input_ids, under an attention_mask of rows and positions; "
            "give these by name, and a cache of keys and values alone that grows, or none"
        )
    length: int = embeddings.inventory.length  # type: ignore[assignment]
    first = cache is None or not cache.get_seq_length()
    given = {**given, "input_ids": ids}
    order = None
    if mask is not None:
        # Padding on the left stays there: a window sees the prompt next to the text.
        order = _order(mask, length)
        given["attention_mask"] = _with_prompt(mask, mask.new_ones(len(mask), length), order)
    if first:
        wide = embeddings.prompted(ids)
        if order is not None:
            wide = wide.gather(1, order[..., None].expand_as(wide))
        given |= {"input_ids": None, "inputs_embeds": wide}
    if positions is not None:
        positions = positions + length
        if first:
            before = torch.arange(length, device=ids.device).expand(len(positions), length)
            positions = _with_prompt(positions, before, order)
        given["position_ids"] = positions
    return (), given


def _cut(stack: nn.Module, args: tuple[Any, ...], given: dict[str, Any], found: Any) -> Any:
    """Keep what belongs to the text."""
    embeddings: Any = stack.get_input_embeddings()  # type: ignore[operator]
    if given.get("inputs_embeds") is not None and isinstance(embeddings, SkilledEmbedding):
        length: int = embeddings.inventory.length  # type: ignore[assignment]
        states, mask = found.last_hidden_state, given.get("attention_mask")
        text = torch.arange(length, states.shape[1], device=states.device)[None]
        if mask is not None:
            text = torch.where(text - length < _padding(mask), text - length, text)
        text = text[..., None].expand(len(states), -1, states.shape[2])
        found.last_hidden_state = states.gather(1, text)
    return found


def _padding(mask: Tensor) -> Int[Tensor, "R 1"]:
    """Return how much padding each row has on the left; none where it is nothing else."""
    return mask.bool().int().argmax(1, keepdim=True)


def _order(mask: Int[Tensor, "R L"], length: int) -> Int[Tensor, "R positions"]:
    """Return where, in prompt and row, each position of a row with a prompt behind its padding is.

    Args:
        mask: Of the row.
        length: Of the prompt.
    """
    position = torch.arange(length + mask.shape[1], device=mask.device)[None]
    text = _padding(mask)
    inside = torch.where(position < text + length, position - text, position)
    return torch.where(position < text, position + length, inside)


def _with_prompt(text: Tensor, prompt: Tensor, order: Tensor | None) -> Tensor:
    wide = torch.cat([prompt, text], 1)
    return wide if order is None else wide.gather(1, order)


def _show(
    stack: nn.Module, args: tuple[Any, ...], given: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Show a decoder as much of the encoder as that returned."""
    states, mask = given.get("encoder_hidden_states"), given.get("encoder_attention_mask")
    if states is None or mask is None:
        return None
    missing = mask.new_ones(len(mask), states.shape[1] - mask.shape[1])
    wide = _with_prompt(mask, missing, _order(mask, missing.shape[1]))
    return args, {**given, "encoder_attention_mask": wide}
