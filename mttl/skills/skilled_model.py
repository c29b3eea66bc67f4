"""The model: a backbone with skills and a router, called with task ids and inputs."""

import copy
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mttl.heads.task_heads import TaskHeads
from mttl.routing.context import Routing, RoutingSlot, check_task_ids
from mttl.routing.task.task_router import TaskRouter
from mttl.routing.token.masks import IGNORED, TokenMasks, token_masks
from mttl.routing.token.token_router import token_layers
from mttl.skills.first_pass import add_first_pass
from mttl.skills.inputs.prompt import has_encoder
from mttl.skills.skilled_layer import SkilledLayer, innermost, layers_of


class SkilledModel(nn.Module):
    """A backbone that runs with the skills of each example's task.

    The routing is computed once per forward pass, and the layers read it from the slot. The
    backbone has skilled layers (see `attach_skills`), layers that route tokens (see
    `mttl.moe.attach_experts`), or both. The router has no groups if only tokens are routed. With
    ``heads`` of all tasks, these answer from the last hidden states, and nothing is generated.

    Raises:
        ValueError: If the backbone has no such layer, or a layer's group, skills or heads do not
            fit the router.
    """

    def __init__(
        self,
        backbone: nn.Module,
        router: TaskRouter,
        slot: RoutingSlot,
        heads: TaskHeads | None = None,
    ) -> None:
        super().__init__()
        self.backbone, self.router, self.slot, self.heads = backbone, router, slot, heads
        layers, token_layers = self.skilled_layers(), self.token_layers()
        if not layers and not token_layers:
            raise ValueError(
                "the backbone has no layer with skills; call attach_skills or attach_experts first"
            )
        for name, layer in (layers | token_layers).items():
            _check_layer(name, layer, router)
        self.routes_tokens = bool(token_layers)
        # OPT's feed-forward layers receive the tokens of all rows in one list.
        lists = getattr(getattr(backbone, "config", None), "model_type", None) == "opt"
        if lists or any(layer.router.needs_token_ids for layer in token_layers.values()):
            self._note_ids()
        if router.weighs_tokens:
            add_first_pass(backbone, slot, layers)

    def with_router(self, router: TaskRouter) -> "SkilledModel":
        """Return a model with another router of the same sizes; all else is shared."""
        model = copy.copy(self)
        model._modules = {**self._modules, "router": router}
        return model

    def skilled_layers(self) -> dict[str, SkilledLayer]:
        """Return the skilled layers of the model's slot; see `layers_of`."""
        return layers_of(self.backbone, self.slot)

    def skill_facts(self) -> dict[str, Tensor]:
        """Return the statistics of the inventories (`Inventory.facts`), as means over layers."""
        found: dict[str, list[Tensor]] = {}
        for layer in self.skilled_layers().values():
            for name, value in layer.inventory.facts().items():
                found.setdefault(name, []).append(value.detach())
        return {name: torch.stack(values).mean() for name, values in found.items()}

    def token_layers(self) -> dict[str, Any]:
        """Return the layers that route tokens by their path in the backbone."""
        return token_layers(self.backbone)

    def forward(self, task_ids: Int[Tensor, "B"], **inputs: Any) -> Any:
        """Return the output of the backbone with the skills of each example's task."""
        with self.slot.use(self.route(task_ids, inputs=inputs)):
            return self.backbone(**inputs)

    def route(
        self,
        task_ids: Int[Tensor, "B"],
        *,
        inputs: Mapping[str, Any] | None = None,
        expansion: int = 1,
        reuse_merged: bool = False,
    ) -> Routing:
        """Return the routing of a batch.

        Unless weights are sampled, neighbouring rows of a task share one example. All examples have
        the same number of rows, the greatest common divisor of the numbers of neighbours.

        Masks and labels among the inputs determine padding for layers that route tokens, and the
        ends of prompts for routers that read them; ``segments`` has the number of tokens of each
        example if rows are packed. Further arguments are those of `Routing`.
        """
        if task_ids.device.type == "cpu":  # on an accelerator, reading them would synchronise
            check_task_ids(task_ids, self.router.n_tasks)
        masks, n_rows = None, 1
        segments = () if inputs is None else inputs.get("segments", ())
        if inputs is not None and self.routes_tokens:
            masks = token_masks(inputs, encoder_decoder=has_encoder(self.backbone))
        prompts = None
        if "prompts" in self.router.seen:
            prompts = pooled_prompts(self.backbone, inputs)
        # In generation, the cost of reading the ids once is negligible on an accelerator, too.
        readable = reuse_merged or task_ids.device.type == "cpu"
        drawn = self.router.draws and self.router.training
        # Token routers and routers that read the text depend on the example, and a compiled
        # backbone would be recompiled for a single example.
        compiled = self.backbone._compiled_call_impl is not None
        equal = not (drawn or self.routes_tokens or self.router.reads_text or compiled)
        if readable and equal and len(task_ids) > 1:
            counts = torch.unique_consecutive(task_ids, return_counts=True)[1]
            if not segments or len(counts) == 1:
                n_rows = math.gcd(*counts.tolist())
                task_ids = task_ids[::n_rows]
                n_rows = len(inputs["input_ids"]) if segments and inputs else n_rows
                segments = ()
        return Routing(
            task_ids,
            self.router.mix(task_ids, prompts),
            expansion=expansion,
            rows_per_example=n_rows,
            reuse_merged=reuse_merged,
            masks=masks,
            segments=segments,
            weigh=self.router.mix if self.router.weighs_tokens else None,
        )

    @torch.no_grad()
    def generate(self, task_ids: Int[Tensor, "B"], **inputs: Any) -> Any:
        """Return the output of the backbone's ``generate``; skills are merged once per call.

        Call ``eval()`` first: in training mode the router samples once per call, and dropout is on.
        Inputs are the arguments of the backbone's ``generate``.
        """
        settings: Any = inputs.get("generation_config") or self.backbone.generation_config
        n_beams, n_returned = (
            inputs.get(name) or getattr(settings, name, None) or 1
            for name in ("num_beams", "num_return_sequences")
        )
        routing = self.route(
            task_ids,
            inputs={
                name: inputs.get(name)
                for name in ("input_ids", "attention_mask", "decoder_attention_mask")
            },
            expansion=n_beams if n_beams > 1 else n_returned,
            reuse_merged=True,
        )
        if self.routes_tokens and n_beams == 1 and "input_ids" in inputs:
            ends = inputs.get("eos_token_id", settings.eos_token_id)
            # An encoder-decoder's output begins with one start token; others repeat the prompt.
            encoder_decoder = has_encoder(self.backbone)
            start = 1 if encoder_decoder else inputs["input_ids"].shape[1]
            watch = finished_rows(routing.masks, ends, start)
            inputs["stopping_criteria"] = [*inputs.get("stopping_criteria", ()), watch]
        with self.slot.use(routing):
            return self.backbone.generate(**inputs)  # type: ignore[operator]

    def _note_ids(self) -> None:
        """Record the ids that each stack reads in the routing, also in generation."""
        backbone: Any = self.backbone
        if has_encoder(backbone):
            stacks = {("encoder",): backbone.get_encoder(), ("decoder",): backbone.get_decoder()}
        else:
            stacks = {("encoder", "decoder", "model"): backbone}
        for names, module in stacks.items():
            # A partial function, since deep copies of the model copy its slot.
            module.register_forward_pre_hook(partial(_note, self.slot, names), with_kwargs=True)

    def enable_gradient_checkpointing(self) -> None:
        """Recompute activations in the backward pass, with the same routing, to save memory."""
        settings = {"use_reentrant": False, "context_fn": self.slot.checkpoint_contexts}
        # The method has a new name in transformers 5; both names exist until 6.
        enable = getattr(self.backbone, "activation_checkpointing_enable", None)
        enable = enable or self.backbone.gradient_checkpointing_enable
        enable(settings)  # type: ignore[operator]


def _check_layer(name: str, layer: Any, router: TaskRouter) -> None:
    """Raise ValueError if group, skills or heads of a layer do not fit the router."""
    if layer.group is not None and layer.group >= router.n_groups:
        raise ValueError(
            f"'{name}' has the group {layer.group}, but the router has {router.n_groups} groups"
        )
    found = router.n_skills, router.n_heads
    if isinstance(layer, SkilledLayer):
        wanted = layer.inventory.n_skills, layer.inventory.n_heads
    else:
        wanted = found if layer.group is None else (layer.router.n_experts, 1)
    if found != wanted:
        raise ValueError(
            f"'{name}' has {wanted[0]} skills or experts and {wanted[1]} heads, but the router has "
            f"{found[0]} and {found[1]}; they must be equal"
        )


def _note(
    slot: RoutingSlot, stacks: tuple[str, ...], _: nn.Module, args: Any, inputs: dict[str, Any]
) -> None:
    ids = inputs.get("input_ids", args[0] if args else None)
    if ids is not None and slot.in_use:
        for stack in stacks:
            slot.current.ids[stack] = ids


def finished_rows(
    masks: TokenMasks, ends: int | list[int] | None, start: int
) -> Callable[..., Bool[Tensor, "R"]]:
    """Return a stopping criterion that records which rows have ended in generation, and stops none.

    Ended rows continue as padding until all have ended, so token routers must mask them. (Beam
    search continues only beams that have not ended.)
    """

    def note(input_ids: Int[Tensor, "R L"], scores: Any, **settings: Any) -> Bool[Tensor, "R"]:
        generated = input_ids[:, start:]
        known = generated.new_tensor([] if ends is None else ends)
        masks.finished = torch.isin(generated, known).any(dim=1)
        return torch.zeros_like(masks.finished)

    return note


@torch.no_grad()
def pooled_text(
    backbone: nn.Module, ids: Int[Tensor, "B L"], mask: Bool[Tensor, "B L"] | None = None
) -> Float[Tensor, "B D"]:
    """Return the mean of the input embeddings of each row."""
    embedded = innermost(backbone.get_input_embeddings())(ids)  # type: ignore[operator]
    if mask is None:
        return embedded.mean(1)
    counted = mask.unsqueeze(-1).to(embedded.dtype)
    return (embedded * counted).sum(1) / counted.sum(1).clamp_min(1)


def pooled_prompts(backbone: nn.Module, inputs: Mapping[str, Any] | None) -> Float[Tensor, "B D"]:
    """Return the mean of the input embeddings of each prompt; ValueError without input ids.

    In a decoder-only model, the prompt is the part of the sequence whose ``labels`` are -100.
    """
    ids = inputs.get("input_ids") if inputs is not None else None
    if inputs is None or ids is None:
        raise ValueError("this router reads prompts: pass input_ids")
    attention, labels = inputs.get("attention_mask"), inputs.get("labels")
    mask = torch.ones_like(ids, dtype=torch.bool) if attention is None else attention.bool()
    if labels is not None and not has_encoder(backbone):
        mask = mask & (labels == IGNORED)
    return pooled_text(backbone, ids, mask)
