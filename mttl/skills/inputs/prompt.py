"""Prompts: vectors before the embedded text.

Hooks of the stack that reads the text (an encoder, or a decoder-only model without its head) insert
prompts into its inputs, and remove them from the outputs of a decoder-only model. So ids, labels,
masks and logits have the length of the text elsewhere, also in generation. Cross-attention of a
decoder reads the encoder's states of the prompt.
"""

from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mttl.aggregation.mix import mix_blocks
from mttl.plugins.part_settings import Positive, PositiveInt
from mttl.skills.inventory import NO_WEIGHTS, ONE_TEXT, Inventory, Merged, Weights
from mttl.skills.skilled_layer import SkilledLayer


class PromptInventory(Inventory):
    r"""Vectors before the embedded text: :math:`[\sum_k w_k P_k; E]`, P vectors each.

    Every layer reads P more positions, so that a fresh prompt already changes the output. Entries
    start uniformly in :math:`\pm` ``spread``, 0.5 in the paper; its initialisations from
    vocabulary and labels are not available.

    Args:
        in_features: Entries of the vocabulary.
        out_features: Features of an embedding.
        length: Number of vectors of a prompt.
        spread: Largest initial entry of a prompt; about the scale of the backbone's embeddings.

    References:
        Lester, Al-Rfou and Constant, *The Power of Scale for Parameter-Efficient Prompt Tuning*,
        EMNLP 2021, arXiv:2104.08691.
    """

    lacks: ClassVar = {
        **NO_WEIGHTS,
        "packs": ONE_TEXT,
        "stacks": "two prompts cannot be stacked; use another kind of skill",
        "routes_tokens": "it adds positions, which token routers do not support; remove the "
        "section moe, or use skills that change layers (lora, ia3, adapter …)",
    }
    section_defaults: ClassVar = {"targets": ["input"]}
    attachment_point = "embedding"
    adapter_format = "PROMPT_TUNING"
    neutral = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        length: PositiveInt = 20,
        spread: Positive = 0.5,
        n_heads: int = 1,
    ) -> None:
        super().__init__(in_features, out_features, n_skills, n_heads)
        self.length, self.spread = length, spread
        self.prompts = nn.Parameter(torch.empty(n_skills, out_features, length))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.prompts, -self.spread, self.spread)

    def merge(self, weights: Weights) -> Merged:
        """Return the prompt of each example, shape (B, P, O)."""
        return (mix_blocks(self.prompts, weights).mT,)


class SkilledEmbedding(SkilledLayer):
    """The input embeddings with prompts before them."""

    def forward(self, ids: Int[Tensor, "R L"]) -> Float[Tensor, "R L D"]:
        return self.base(ids)

    def prompted(self, ids: Int[Tensor, "R L"]) -> tuple[Tensor, Tensor]:
        """Return the prompt of the current routing and the embedded text."""
        routing, (prompts,) = self.merge()
        embedded = self.base(ids)
        return routing.repeat(prompts, len(ids)).to(embedded.dtype), embedded


def input_embeddings(backbone: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return entries and features of the text-reading stack's embeddings, by path."""
    stack = text_reader(backbone)
    if stack is None:
        return {}
    found = stack.get_input_embeddings()
    return {
        path: (found.weight.shape[0], found.weight.shape[1])
        for path, module in backbone.named_modules()
        if module is found
    }


def put_prompts(backbone: nn.Module) -> None:
    """Register hooks that insert the prompts of the embeddings into the inputs of the stacks."""
    stack = text_reader(backbone)
    stack.register_forward_pre_hook(_widen, with_kwargs=True)
    if has_encoder(backbone):
        backbone.get_decoder().register_forward_pre_hook(_show, with_kwargs=True)  # type: ignore[operator]
    else:
        stack.register_forward_hook(_cut, with_kwargs=True)


def has_encoder(backbone: nn.Module) -> bool:
    """Return whether the model is an encoder-decoder."""
    return bool(getattr(getattr(backbone, "config", None), "is_encoder_decoder", False))


def last_stack(backbone: Any) -> Any:
    """Return the stack whose states become logits, or None if none is known.

    Wrappers that some models (OPT, decoders of BART) never call are skipped.
    """
    if not hasattr(backbone, "get_decoder"):
        return None
    found = (backbone.get_decoder(), backbone.base_model, getattr(backbone, "model", None))
    return next((one for one in found if one is not backbone and hasattr(one, "config")), None)


def text_reader(backbone: Any) -> Any:
    """Return the stack that reads the text, or None if none is known."""
    stack = backbone.get_encoder() if has_encoder(backbone) else last_stack(backbone)
    return stack if hasattr(stack, "get_input_embeddings") else None


def _widen(
    stack: nn.Module, args: tuple[Any, ...], given: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Insert prompts before the text, or only extend mask and positions if a cache has them."""
    embeddings: Any = stack.get_input_embeddings()  # type: ignore[operator]
    if not isinstance(embeddings, SkilledEmbedding):
        return None  # the skills were removed
    ids = given.get("input_ids", args[0] if args else None)
    mask, positions = given.get("attention_mask"), given.get("position_ids")
    cache = given.get("cache", given.get("past_key_values"))  # before transformers 5.24
    fixed = getattr(cache, "is_compileable", False)
    if ids is None or args[1:] or fixed or (mask is not None and mask.ndim != 2):
        raise ValueError(
            "prompts need input_ids by name, an attention_mask of shape (rows, positions) or none, "
            "and a dynamic cache of keys and values or none"
        )
    length: int = embeddings.inventory.length  # type: ignore[assignment]
    first = cache is None or not cache.get_seq_length()
    given = {**given, "input_ids": ids}
    if mask is not None:
        given["attention_mask"] = _inside(mask.new_ones(len(mask), length), mask, mask)
    if first:
        wide = _inside(*embeddings.prompted(ids), mask)
        given |= {"input_ids": None, "inputs_embeds": wide}
    if positions is not None:
        before = torch.arange(length, device=ids.device).expand(len(positions), length)
        positions = positions + length
        given["position_ids"] = _inside(before, positions, mask) if first else positions
    return (), given


def _cut(stack: nn.Module, args: tuple[Any, ...], given: dict[str, Any], found: Any) -> Any:
    embeddings: Any = stack.get_input_embeddings()  # type: ignore[operator]
    if given.get("inputs_embeds") is not None and isinstance(embeddings, SkilledEmbedding):
        length: int = embeddings.inventory.length  # type: ignore[assignment]
        states, mask = found.last_hidden_state, given.get("attention_mask")
        text = torch.arange(states.shape[1] - length, device=states.device)[None, :, None]
        padding = 0 if mask is None else mask.bool().int().argmax(1)[:, None, None]
        text = text + length * (text >= padding)
        found.last_hidden_state = torch.take_along_dim(states, text, 1)
    return found


def _inside(prompt: Tensor, text: Tensor, mask: Tensor | None) -> Tensor:
    """Insert prompts between left padding and text, so that windowed attention reaches them."""
    wide = torch.cat([prompt, text], 1)
    if mask is None:
        return wide
    start, length = mask.bool().int().argmax(1, keepdim=True), prompt.shape[1]
    position = torch.arange(wide.shape[1], device=mask.device)[None]
    source = torch.where(position < start + length, position - start, position)
    source = torch.where(position < start, position + length, source)
    return torch.take_along_dim(wide, source.view(*source.shape, *[1] * (wide.ndim - 2)), 1)


def _show(
    stack: nn.Module, args: tuple[Any, ...], given: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Extend the decoder's cross-attention mask by the positions of the prompt."""
    states, mask = given.get("encoder_hidden_states"), given.get("encoder_attention_mask")
    if states is None or mask is None:
        return None
    missing = mask.new_ones(len(mask), states.shape[1] - mask.shape[1])
    return args, {**given, "encoder_attention_mask": _inside(missing, mask, mask)}
