"""Whether skills work on a backbone: found out by running it, not by its name."""

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from mttl.data.collate import TrainCollator, padded_inputs
from mttl.errors import ConfigError
from mttl.models.backbone import is_decoder_only
from mttl.models.teacher_forcing import forced_inputs
from mttl.routing.context import Routing, RoutingSlot
from mttl.skills.inputs.skilled_attention import SkilledAttention
from mttl.skills.skilled_layer import SkilledLayer
from mttl.training.packing_check import apart, evaluating

_log = logging.getLogger(__name__)
PROMPTS, N_ANSWER = (4, 7), 3  # tokens of the prompts of both rows, and of each answer
# The logits of rows are computed twice; one row alone is generated without a cache.
WAYS = ("in training", "in generation, with a cache")


class AttachmentProbe:
    """Compares a backbone with skills to itself without: on two short rows.

    Parameters, buffers, modes and random states stay as they are. Weights that are elsewhere (on
    the meta device) are not asked, nor is a backbone that does not run here without skills. One
    whose own rows are not apart is warned of.

    Args:
        backbone: The model, without skills as yet.
    """

    def __init__(self, backbone: PreTrainedModel) -> None:
        self.backbone, self.name = backbone, type(backbone).__name__
        self.plain: tuple[list[Tensor], list[Tensor]] | None = None
        self.pad_id = getattr(backbone.config, "pad_token_id", None) or 0
        n_ids = int(backbone.get_input_embeddings().weight.shape[0])  # type: ignore[union-attr]
        # Special tokens, the first ones as a rule, have a meaning of their own for some models.
        ids = [3 + index % max(1, n_ids - 3) for index in range(sum(PROMPTS) + N_ANSWER)]
        self.texts = [ids[first:][: n + N_ANSWER] for first, n in enumerate(PROMPTS)]
        if any(value.is_meta for value in backbone.parameters()):
            return
        try:
            with evaluating(backbone), torch.no_grad():
                self.plain = self._run(2), self._run(1)
        except Exception as error:  # it needs another device, say: skills are not to blame
            _log.warning(
                "skills are not tried out: this %s does not run here: %s", self.name, error
            )
            return
        for way, *rows in zip(WAYS, *self.plain, strict=True):
            if apart(*rows) > 1:
                _log.warning(
                    "a row in a padded batch gets other answers than alone from this %s, without "
                    "skills too (%s): answer rows of one length, or one at a time, or take another",
                    *(self.name, way),
                )

    def check(self, slot: RoutingSlot, kinds: str, promised: bool) -> None:
        """Refuse skills that do not work where they were put.

        | property | how it is found out |
        |---|---|
        | new skills change nothing | logits are compared; prefixes in the softmax are left out |
        | every place has an effect | logits have gradients at its skills, away from their start |
        | rows are apart | a short row in a padded batch, with a cache, equals the row alone |

        Args:
            slot: What the layers read.
            kinds: Of the skills, for the message.
            promised: Whether new skills are known to change nothing.

        Raises:
            ConfigError: If one of these does not hold.
        """
        if self.plain is None:
            return
        named = self.backbone.named_modules()
        layers = {path: module for path, module in named if isinstance(module, SkilledLayer)}
        skills = {value for layer in layers.values() for value in layer.inventory.parameters()}
        kept = [(value, value.detach().clone()) for value in skills]
        try:
            with evaluating(self.backbone):
                fault = next(self._faults(layers, slot, promised), None)
        except MemoryError:
            raise
        except Exception as error:  # models answer what is new to them with errors of all sorts
            fault = f"{error} ({type(error).__name__})"
        finally:
            for value, before in kept:
                value.data.copy_(before)
        if fault is not None:
            raise ConfigError(
                f"skills.kind ({kinds}) does not work on a {self.name}: {fault}. Choose other "
                "skills.targets, a kind for linear layers (lora, ia3, bitfit), or another backbone"
            )

    def _faults(
        self, layers: Mapping[str, SkilledLayer], slot: RoutingSlot, promised: bool
    ) -> Iterator[str]:
        """Give what does not hold; the skills are others afterwards."""
        assert self.plain is not None
        both, alone = self.plain
        one, draw = next(iter(layers.values())).inventory, torch.Generator().manual_seed(0)
        shape = 1 + max(layer.group for layer in layers.values()), 2, one.n_heads, one.n_skills
        mixing = torch.rand(shape, generator=draw).softmax(-1).to(both[0].device)
        loud = [layer for layer in layers.values() if not layer.inventory.neutral]
        if promised and all(isinstance(layer, SkilledAttention) for layer in loud):
            with torch.no_grad(), slot.use(_Watched(mixing, {id(layer) for layer in loud})):
                if not apart(self._forced(2), both[0]) <= 1:
                    yield "new skills change what it computes, as parts of it are lost under them"

        for value in dict.fromkeys(v for m in layers.values() for v in m.inventory.parameters()):
            noise = torch.randn(value.shape, generator=draw).to(value)
            value.data += noise * 0.3 / max(value.shape[-1:] or (1,)) ** 0.5
        with torch.enable_grad(), slot.use(watched := _Watched(mixing)):
            logits = self._forced(2).float()
            parts = [part for found in watched.found.values() for part in found]
            towards = torch.arange(logits.numel(), device=logits.device).sin().view(logits.shape)
            loss = (logits * towards).sum() + sum(0 * part.sum() for part in parts)
            gradients = torch.autograd.grad(loss, parts)
        live = {id(part) for part, found in zip(parts, gradients, strict=True) if found.any()}
        works: dict[str, bool] = {}
        for path, layer in layers.items():
            # Of the experts of a block, a batch reaches some.
            name = re.sub(r"^(.*[._]\d+\..*[._])\d+(?=\.)", r"\1*", path)
            works[name] = works.get(name, False) or any(
                id(part) in live for part in watched.found.get(id(layer), ())
            )
        if idle := [name for name in works if not works[name]]:
            used = [name for name in works if works[name]]
            instead = f"; those at '{used[0]}' and {len(used) - 1} more have one" if used else ""
            yield (
                f"skills at '{idle[0]}' and {len(idle) - 1} more have no effect on its "
                f"output{instead}"
            )

        with torch.no_grad():
            with slot.use(_Watched(mixing)):
                rows = self._run(2)
            with slot.use(_Watched(mixing[:, :1])):
                row = self._run(1)
        for way, ours, theirs, *plain in zip(WAYS, rows, row, both, alone, strict=True):
            if not apart(ours, theirs) <= max(1, 4 * apart(*plain)):
                yield f"a row in a padded batch gets other answers than alone ({way})"

    def _run(self, n_rows: int) -> list[Tensor]:
        return [self._forced(n_rows), self._generated(n_rows)]

    def _forced(self, n_rows: int) -> Float[Tensor, "R L V"]:
        """Return the logits of the first rows, as in training."""
        rows = [
            {"input_ids": text[:-N_ANSWER], "labels": text[-N_ANSWER:], "task_id": 0}
            for text in self.texts[:n_rows]
        ]
        batch = TrainCollator(self.pad_id, 1, is_decoder_only(self.backbone))(rows)
        inputs = forced_inputs(self.backbone, batch)
        device = next(self.backbone.parameters()).device
        inputs = {name: value.to(device) for name, value in inputs.items()}
        return self.backbone(**inputs, use_cache=False).logits

    def _generated(self, n_rows: int) -> Float[Tensor, "R N V"]:
        """Return the logits of the answers, which are fixed."""
        decoder_only, texts = is_decoder_only(self.backbone), self.texts[:n_rows]
        prompts = [text[:-N_ANSWER] for text in texts]
        inputs = padded_inputs(prompts, self.pad_id, left=decoder_only)
        start = inputs["input_ids"].shape[1] if decoder_only else 1
        device = next(self.backbone.parameters()).device
        found: Any = self.backbone.generate(  # type: ignore[operator]
            **{name: value.to(device) for name, value in inputs.items()},
            **{"max_new_tokens": N_ANSWER, "min_new_tokens": N_ANSWER, "use_cache": n_rows > 1},
            **{"do_sample": False, "num_beams": 1, "num_return_sequences": 1},
            **{"output_logits": True, "return_dict_in_generate": True, "pad_token_id": self.pad_id},
            prefix_allowed_tokens_fn=lambda row, ids: [texts[row][-N_ANSWER:][len(ids) - start]],
        )
        return torch.stack(found.logits, 1)


class _Watched(Routing):
    """Keeps what layers merged for it; some see prefixes of no keys."""

    def __init__(self, mixing: Float[Tensor, "G B H K"], empty: Collection[int] = ()) -> None:
        super().__init__(torch.arange(mixing.shape[1]), mixing)
        self.empty = empty
        self.found: dict[int, list[Tensor]] = {}

    def merged(self, key: int, merge: Any) -> Any:
        found = merge()
        parts = [part for part in found if isinstance(part, Tensor) and part.requires_grad]
        self.found.setdefault(key, []).extend(parts)
        return tuple(part[..., :0] for part in found) if key in self.empty else found
