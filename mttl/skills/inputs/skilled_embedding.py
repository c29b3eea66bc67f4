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

    Raises:
        ValueError: If it generates without a cache of keys and values: nothing would say whether a
            prompt has been read already.
    """
    stack: Any = _reader(backbone)
    if stack is None:
        return {}
    attends = getattr(stack.config, "num_attention_heads", None) is not None
    if not has_encoder(backbone) and not attends:
        raise ValueError(
            f"a {type(stack).__name__} keeps no keys and values, in which a prompt that was read "
            "stands when text is generated; put skills on its layers instead (lora, ia3, bitfit), "
            "or take a backbone of attention alone"
        )
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
    stack: Any = _reader(backbone)
    stack.register_forward_pre_hook(_widen, with_kwargs=True)
    if has_encoder(backbone):
        backbone.get_decoder().register_forward_pre_hook(_show, with_kwargs=True)  # type: ignore[operator]
    else:
        stack.register_forward_hook(_cut, with_kwargs=True)


def has_encoder(backbone: nn.Module) -> bool:
    """Tell whether a decoder looks at what an encoder makes of the input."""
    return bool(getattr(getattr(backbone, "config", None), "is_encoder_decoder", False))


def _reader(backbone: nn.Module) -> nn.Module | None:
    """Return the stack that reads the text."""
    if has_encoder(backbone):
        return backbone.get_encoder()  # type: ignore[operator]
    return getattr(backbone, "base_model", None)


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
            "give these by name, and no cache of fixed length"
        )
    length: int = embeddings.inventory.length  # type: ignore[assignment]
    first = cache is None or not cache.get_seq_length()
    given = {**given, "input_ids": ids}
    if first:
        given |= {"input_ids": None, "inputs_embeds": embeddings.prompted(ids)}
    if mask is not None:
        given["attention_mask"] = torch.cat([mask.new_ones(len(mask), length), mask], 1)
    if positions is not None:
        positions = positions + length
        before = torch.arange(length, device=ids.device).expand(len(positions), length)
        given["position_ids"] = torch.cat([before, positions], 1) if first else positions
    return (), given


def _cut(stack: nn.Module, args: tuple[Any, ...], given: dict[str, Any], found: Any) -> Any:
    """Keep what belongs to the text."""
    embeddings: Any = stack.get_input_embeddings()  # type: ignore[operator]
    if given.get("inputs_embeds") is not None and isinstance(embeddings, SkilledEmbedding):
        found.last_hidden_state = found.last_hidden_state[:, embeddings.inventory.length :]
    return found


def _show(
    stack: nn.Module, args: tuple[Any, ...], given: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Show a decoder as much of the encoder as that returned."""
    states, mask = given.get("encoder_hidden_states"), given.get("encoder_attention_mask")
    if states is None or mask is None:
        return None
    missing = mask.new_ones(len(mask), states.shape[1] - mask.shape[1])
    return args, {**given, "encoder_attention_mask": torch.cat([missing, mask], 1)}
