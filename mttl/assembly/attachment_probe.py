"""Test by forward passes whether skills work on a backbone."""

import logging
import re
from collections import Counter
from collections.abc import Collection
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from mttl.data.collate import TrainCollator, padded_inputs
from mttl.io.errors import ConfigError
from mttl.models.backbone import is_decoder_only, is_encoder
from mttl.models.teacher_forcing import forced_inputs
from mttl.routing.context import Routing, RoutingSlot
from mttl.skills.inputs.prefix import SkilledAttention
from mttl.skills.skilled_layer import SkilledLayer, layers_of
from mttl.training.packing_check import apart, evaluating

_log = logging.getLogger(__name__)
PROMPTS, N_ANSWER = (4, 7), 3  # prompt tokens of both rows, and answer tokens
PASSES = ("in training", "in generation, with a cache")  # a single row is generated without cache


class AttachmentProbe:
    """Compares a backbone with and without skills on two short rows.

    Parameters, buffers, modes and random states are not changed. Weights on the meta device are not
    tested, nor is a backbone that fails here without skills. A warning is logged if padding changes
    the backbone's answers.
    """

    def __init__(self, backbone: PreTrainedModel) -> None:
        self.backbone, self.name = backbone, type(backbone).__name__
        self.plain: list[Tensor] | None = None
        self.own = [0.0] * len(PASSES)  # effect of padding without skills
        if any(value.is_meta for value in backbone.parameters()):
            return
        try:
            with evaluating(backbone), torch.no_grad():
                self.plain, alone = self._run(2), self._run(1)
        except Exception as error:  # for example, it needs another device
            _log.warning(
                "skills not checked: a forward pass of this %s failed: %s", self.name, error
            )
            return
        self.own = [apart(*rows) for rows in zip(self.plain, alone, strict=True)]
        if max(self.own) > 1:
            _log.warning(
                "padding changes the answers of this %s, even without skills (%s); use rows of one "
                "length, or a batch size of 1",
                *(self.name, PASSES[self.own.index(max(self.own))]),
            )

    def check(self, slot: RoutingSlot, kinds: str, promised: bool) -> None:
        """Raise a `ConfigError` if skills do not work where they are attached.

        | required property | test |
        |---|---|
        | new skills change nothing | logits are compared; prefixes in the softmax are omitted |
        | every attachment point has an effect | logits have gradients at its skills |
        | rows are independent | a short row in a padded batch, with a cache, equals the row alone |
        """
        if self.plain is None:
            return
        layers = layers_of(self.backbone, slot)
        skills = dict.fromkeys(v for m in layers.values() for v in m.inventory.parameters())
        kept = [(value.detach().clone(), value.requires_grad) for value in skills]
        try:
            with evaluating(self.backbone):
                fault = self._fault(layers, slot, promised, [*skills])
        except MemoryError:
            raise
        except Exception as error:  # models raise errors of any type
            fault = f"{error} ({type(error).__name__})"
        finally:
            for value, (before, trained) in zip(skills, kept, strict=True):
                value.data.copy_(before)
                value.requires_grad_(trained)
        if fault:
            raise ConfigError(
                f"skills.kind ({kinds}) does not work on a {self.name}: {fault}. Choose other "
                "skills.targets, a kind for linear layers (lora, ia3, bitfit), or another backbone"
            )

    def _fault(
        self, layers: dict[str, SkilledLayer], slot: RoutingSlot, promised: bool, skills: list[Any]
    ) -> str:
        """Return the property that fails, or an empty text; skills are modified."""
        one, draw = next(iter(layers.values())).inventory, torch.Generator().manual_seed(0)
        shape = 1 + max(layer.group for layer in layers.values()), 2, one.n_heads, one.n_skills
        mixing = torch.rand(shape, generator=draw).softmax(-1).to(self.backbone.device)
        every = [one for one in self.backbone.modules() if isinstance(one, SkilledLayer)]
        loud = [layer for layer in every if not layer.inventory.neutral]
        promised = promised and all(layer.slot is slot for layer in loud)
        if promised and all(isinstance(layer, SkilledAttention) for layer in loud):
            with torch.no_grad(), slot.use(_Watched(mixing, {id(layer) for layer in loud})):
                fresh = self._run(2)
            if not max(map(apart, fresh, self.plain or ())) <= 1:
                return "new skills change the model's output"

        for value in skills:
            noise = torch.randn(value.shape, generator=draw).to(value)
            value.requires_grad_(True).data += noise * 0.3 / max(value.shape[-1:] or (1,)) ** 0.5
        with torch.enable_grad(), slot.use(watched := _Watched(mixing)):
            both = self._run(2)
        with torch.no_grad(), slot.use(_Watched(mixing[:, :1])):
            alone = self._run(1)
        logits = both[0].float()
        # The merged tensors of a layer, and its own skills, which some layers use directly.
        held = Counter(v for layer in layers.values() for v in layer.inventory.parameters())
        own = {
            path: [
                *watched.found.get(id(layer), ()),
                *(value for value in layer.inventory.parameters() if held[value] == 1),
            ]
            for path, layer in layers.items()
        }
        parts = [part for found in own.values() for part in found]
        towards = torch.arange(logits.numel(), device=logits.device).sin().view(logits.shape)
        found = torch.autograd.grad((logits * towards).sum(), parts, allow_unused=True)
        gradients = zip(parts, found, strict=True)
        live = {id(part) for part, value in gradients if value is not None and value.any()}
        works: dict[str, bool] = {}
        for path, used_by in own.items():  # a batch reaches only some experts of a block
            name = re.sub(r"^(.*[._]\d+\..*[._])\d+(?=\.)", r"\1*", path)
            works[name] = works.get(name, False) or not live.isdisjoint(map(id, used_by))
        idle, used = ([name for name in works if works[name] is wanted] for wanted in (False, True))
        if idle:
            instead = f"; those at '{used[0]}' and {len(used) - 1} more have one" if used else ""
            return f"skills at '{idle[0]}' and {len(idle) - 1} more have no effect{instead}"
        for passed, ours, theirs, most in zip(PASSES, both, alone, self.own, strict=False):
            if not apart(ours.detach(), theirs) <= max(1, 4 * most):
                return f"padding changes the answers ({passed})"
        return ""

    def _run(self, n_rows: int) -> list[Float[Tensor, "R L V"]]:
        """Return logits of the first rows by teacher forcing, and by generation if possible."""
        model: Any = self.backbone
        decoder_only, pad_id = is_decoder_only(model), getattr(model.config, "pad_token_id", 0) or 0
        n_ids = len(model.get_input_embeddings().weight)
        # The first ids are usually special tokens, which have a meaning for some models.
        texts = [
            [3 + index % max(1, n_ids - 3) for index in range(first, first + n_prompt + N_ANSWER)]
            for first, n_prompt in enumerate(PROMPTS[:n_rows])
        ]
        if is_encoder(model):
            inputs = padded_inputs(texts, pad_id)
            return [model(**{name: value.to(model.device) for name, value in inputs.items()})[0]]
        rows = [{"input_ids": t[:-N_ANSWER], "labels": t[-N_ANSWER:], "task_id": 0} for t in texts]
        forced = forced_inputs(model, TrainCollator(pad_id, decoder_only)(rows))
        asked = padded_inputs([t[:-N_ANSWER] for t in texts], pad_id, left=decoder_only)
        start = asked["input_ids"].shape[1] if decoder_only else 1
        found = model.generate(
            **{name: value.to(model.device) for name, value in asked.items()},
            **{"max_new_tokens": N_ANSWER, "min_new_tokens": N_ANSWER, "use_cache": n_rows > 1},
            **{"do_sample": False, "num_beams": 1, "num_return_sequences": 1},
            **{"output_logits": True, "return_dict_in_generate": True, "pad_token_id": pad_id},
            prefix_allowed_tokens_fn=lambda row, ids: [texts[row][-N_ANSWER:][len(ids) - start]],
        )
        forced = {name: value.to(model.device) for name, value in forced.items()}
        return [model(**forced, use_cache=False).logits, torch.stack(found.logits, 1)]


class _Watched(Routing):
    """Records the merged tensors of layers; layers in ``empty`` receive empty prefixes."""

    def __init__(self, mixing: Float[Tensor, "G B H K"], empty: Collection[int] = ()) -> None:
        super().__init__(torch.arange(mixing.shape[1]), mixing)
        self.empty = empty
        self.found: dict[int, list[Tensor]] = {}

    def merged(self, key: int, merge: Any) -> Any:
        found = merge()
        parts = [part for part in found if isinstance(part, Tensor) and part.requires_grad]
        self.found.setdefault(key, []).extend(parts)
        return tuple(part[..., :0] for part in found) if key in self.empty else found
