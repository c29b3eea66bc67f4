"""Whether skills work on a backbone: found out by running it, not by its name."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from mttl.data.collate import TrainCollator, padded_inputs
from mttl.errors import ConfigError
from mttl.models.backbone import is_decoder_only
from mttl.models.teacher_forcing import forced_inputs
from mttl.routing.context import Routing, RoutingSlot
from mttl.skills.inputs.skilled_attention import SkilledAttention
from mttl.skills.skilled_layer import SkilledLayer

# What rounding may change, as a share of the largest logit.
TOLERANCES = {torch.float64: 1e-4, torch.float32: 1e-4}
HALF_TOLERANCE = 3e-2
PROMPTS, N_ANSWER = (4, 7), 3  # tokens of the prompts of both rows, and of each answer

ADVICE = (
    "Choose other skills.targets, a kind for linear layers (lora, ia3, bitfit), or another backbone"
)

# Logits of the rows of a batch, as in training and as in generation.
Both = tuple[Tensor, Tensor]


class AttachmentProbe:
    """Compares a backbone with skills to itself without: on two short rows.

    Parameters, buffers, modes and random states stay as they are. Weights that are elsewhere (on
    the meta device) are not asked, nor is a backbone that does not run here without skills.

    Args:
        backbone: The model, without skills as yet.
    """

    def __init__(self, backbone: PreTrainedModel) -> None:
        self.backbone = backbone
        self.plain: tuple[Both, Both] | None = None
        self.pad_id = getattr(backbone.config, "pad_token_id", None) or 0
        n_ids = int(backbone.get_input_embeddings().weight.shape[0])  # type: ignore[union-attr]
        # Special tokens, the first ones as a rule, have a meaning of their own for some models.
        ids = [3 + index % max(1, n_ids - 3) for index in range(sum(PROMPTS) + N_ANSWER)]
        self.texts = [ids[first:][: n + N_ANSWER] for first, n in enumerate(PROMPTS)]
        if any(value.is_meta for value in backbone.parameters()):
            return
        try:
            with _unchanged(backbone):
                self.plain = self._run(2), self._run(1)
        except Exception:  # the backbone needs another device, say: skills are not to blame
            return

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
        layers = {
            path: module
            for path, module in self.backbone.named_modules()
            if isinstance(module, SkilledLayer)
        }
        n_groups = 1 + max(layer.group for layer in layers.values())
        first = next(iter(layers.values())).inventory
        draw = torch.Generator().manual_seed(0)
        mixing = torch.rand(n_groups, 2, first.n_heads, first.n_skills, generator=draw).softmax(-1)
        mixing = mixing.to(next(self.backbone.parameters()).device)
        try:
            with _unchanged(self.backbone):
                fault = self._fresh(layers, slot, mixing) if promised else None
                with _perturbed(layers, draw) as leaves:
                    fault = fault or self._without_effect(layers, slot, mixing, leaves)
                    fault = fault or self._not_apart(slot, mixing)
        except MemoryError:
            raise
        except Exception as error:  # models answer what is new to them with errors of all sorts
            known = isinstance(error, ConfigError | RuntimeError | ValueError)
            cause = str(error) if known else f"{type(error).__name__}, {error}"
            raise ConfigError(self._message(kinds, cause)) from error
        if fault is not None:
            raise ConfigError(self._message(kinds, fault))

    def _message(self, kinds: str, fault: str) -> str:
        found = f"skills.kind ({kinds}) does not work on a {type(self.backbone).__name__}: {fault}"
        return found if "skills.targets" in fault else f"{found.rstrip('.')}. {ADVICE}"

    def _fresh(
        self, layers: dict[str, SkilledLayer], slot: RoutingSlot, mixing: Tensor
    ) -> str | None:
        """Compare new skills with none."""
        assert self.plain is not None
        others = [layer for layer in layers.values() if not layer.inventory.neutral]
        if not all(isinstance(layer, SkilledAttention) for layer in others):
            return None
        with torch.no_grad(), slot.use(_Watched(mixing, {id(layer) for layer in others})):
            found = self._forced(2)
        plain = self.plain[0][0]
        if _apart(found, plain) <= _rounding(plain):
            return None
        return "new skills change what it computes, since it has parts that are lost under them"

    def _without_effect(
        self,
        layers: dict[str, SkilledLayer],
        slot: RoutingSlot,
        mixing: Tensor,
        leaves: dict[int, Tensor],
    ) -> str | None:
        """Look for layers whose skills have no gradient."""
        routing = _Watched(mixing)
        with torch.enable_grad(), slot.use(routing):
            logits = self._forced(2)
            towards = torch.arange(logits.numel(), device=logits.device).sin().view(logits.shape)
            own = [value for value in leaves.values() if value.requires_grad]
            loss = (logits.float() * towards).sum()
            graded = loss.requires_grad
            found = (
                torch.autograd.grad(loss, own, allow_unused=True) if graded else [None] * len(own)
            )
        live = {
            id(value)
            for value, gradient in zip(own, found, strict=True)
            if gradient is not None and bool(gradient.any())
        }
        reached: dict[str, bool] = {}
        for path, layer in layers.items():
            skills = [value for value in layer.inventory.parameters() if value.requires_grad]
            works = id(layer) in routing.called and any(id(value) in live for value in skills)
            # Of the experts of a block, a batch reaches some.
            name = re.sub(r"^(.*[._]\d+\..*[._])\d+(?=\.)", r"\1*", path)
            reached[name] = reached.get(name, False) or works
        idle = [name for name, works in reached.items() if not works]
        if not idle:
            return None
        more = f" and {len(idle) - 1} more" if len(idle) > 1 else ""
        fault = f"skills at '{idle[0]}'{more} have no effect on its output"
        used = [name for name, works in reached.items() if works]
        if not used:
            return fault
        used = list(dict.fromkeys(re.sub(r"^.*\d\.|^.*\.(?=.*\.)", "", name) for name in used))
        return f"{fault}. Name others in skills.targets, such as {', '.join(used[:3])}"

    @torch.no_grad()
    def _not_apart(self, slot: RoutingSlot, mixing: Tensor) -> str | None:
        """Compare a row in a batch with the row alone."""
        assert self.plain is not None
        with slot.use(Routing(torch.arange(2), mixing)):
            batch = self._run(2)
        with slot.use(Routing(torch.arange(1), mixing[:, :1])):
            alone = self._run(1)
        names = "in training", "in generation, with a cache"
        for name, ours, theirs, *plain in zip(names, batch, alone, *self.plain, strict=True):
            most = max(_rounding(theirs), 4 * _apart(*plain))
            if not _apart(ours, theirs) <= most:
                return f"a row in a padded batch gets other answers than alone ({name})"
        return None

    def _run(self, n_rows: int) -> Both:
        return self._forced(n_rows), self._generated(n_rows)

    def _forced(self, n_rows: int) -> Float[Tensor, "R L V"]:
        """Return the logits of the first rows, as in training."""
        decoder_only, texts = is_decoder_only(self.backbone), self.texts[:n_rows]
        rows = [
            {"input_ids": text[:-N_ANSWER], "labels": text[-N_ANSWER:], "task_id": 0}
            for text in texts
        ]
        batch = TrainCollator(self.pad_id, 1, decoder_only)(rows)
        inputs = forced_inputs(self.backbone, batch)
        device = next(self.backbone.parameters()).device
        inputs = {name: value.to(device) for name, value in inputs.items()}
        return self.backbone(**inputs, use_cache=False).logits

    def _generated(self, n_rows: int) -> Float[Tensor, "R N V"]:
        """Return the logits of the answers; one row alone is generated without a cache."""
        decoder_only, texts = is_decoder_only(self.backbone), self.texts[:n_rows]
        prompts = [text[:-N_ANSWER] for text in texts]
        inputs = padded_inputs(prompts, self.pad_id, left=decoder_only)
        start = inputs["input_ids"].shape[1] if decoder_only else 1
        device = next(self.backbone.parameters()).device
        found: Any = self.backbone.generate(  # type: ignore[operator]
            **{name: value.to(device) for name, value in inputs.items()},
            max_new_tokens=N_ANSWER,
            min_new_tokens=N_ANSWER,
            do_sample=False,
            num_beams=1,
            num_return_sequences=1,
            use_cache=n_rows > 1,
            pad_token_id=self.pad_id,
            output_logits=True,
            return_dict_in_generate=True,
            prefix_allowed_tokens_fn=lambda row, ids: [texts[row][-N_ANSWER:][len(ids) - start]],
        )
        return torch.stack(found.logits, 1)


class _Watched(Routing):
    """Knows which layers were called; some see prefixes of no keys."""

    def __init__(self, mixing: Float[Tensor, "G B H K"], empty: set[int] | None = None) -> None:
        super().__init__(torch.arange(mixing.shape[1]), mixing)
        self.empty = empty or set()
        self.called: set[int] = set()

    def merged(self, key: int, merge: Any) -> Any:
        self.called.add(key)
        found = merge()
        return tuple(part[..., :0] for part in found) if key in self.empty else found


@contextmanager
def _unchanged(backbone: nn.Module) -> Iterator[None]:
    """Evaluate, and leave modes and random states as they were."""
    modes = [(module, module.training) for module in backbone.modules()]
    backbone.eval()
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def _perturbed(
    layers: dict[str, SkilledLayer], draw: torch.Generator
) -> Iterator[dict[int, Tensor]]:
    """Put other values in the place of the skills' parameters, and these back in the end."""
    others: dict[int, nn.Parameter] = {}
    kept: list[tuple[dict[str, Any], str, nn.Parameter]] = []
    try:
        for module in (m for layer in layers.values() for m in layer.inventory.modules()):
            for name, value in module._parameters.items():
                if value is None:
                    continue
                if id(value) not in others:
                    noise = torch.randn(value.shape, generator=draw).to(value)
                    noise *= 0.3 / max(value.shape[-1:] or (1,)) ** 0.5
                    other = nn.Parameter(value.detach() + noise, value.requires_grad)
                    others[id(value)] = other
                kept.append((module._parameters, name, value))
                module._parameters[name] = others[id(value)]
        yield {id(value): value for value in others.values()}
    finally:
        for parameters, name, value in kept:
            parameters[name] = value


def _rounding(logits: Tensor) -> float:
    return TOLERANCES.get(logits.dtype, HALF_TOLERANCE) * float(logits.abs().max())


def _apart(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of the first rows, where both have positions."""
    rows, length = min(len(one), len(other)), min(one.shape[1], other.shape[1])
    found = one[:rows, :length].float() - other[:rows, :length].float()
    return float(found.abs().max())
