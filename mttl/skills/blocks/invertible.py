"""Invertible adapters of embeddings."""

from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mttl.aggregation.mix import active_dtype, mix_blocks
from mttl.plugins.part_settings import Positive
from mttl.skills.blocks.feed_forward_experts import (
    ActivationSetting,
    FeedForwardExperts,
    activation_of,
)
from mttl.skills.inputs.prompt import has_encoder, text_reader
from mttl.skills.inventory import NO_WEIGHTS, Inventory, Merged, Outputs, Weights, of_each
from mttl.skills.skilled_layer import SkilledLayer


class InvertibleInventory(Inventory):
    r"""K invertible adapters of the embedded text, by additive coupling (NICE).

    The features are halved, :math:`e = [e_1; e_2]`, and

    .. math:: o_1 = F(e_2) + e_1, \qquad o_2 = G(o_1) + e_2.

    F and G have a hidden layer. Mixtures average their parameters, so that `combine` has an exact
    inverse for every mixture. An encoder or a decoder-only model whose output layer shares its
    weight with the embeddings applies the inverse before that layer (AdapterHub: every model);
    heads of tasks read the hidden states without it. The second layers start at 0, so that fresh
    skills change nothing.

    Args:
        in_features: Entries of the vocabulary.
        out_features: Features O of an embedding; at least 4.
        reduction: Inputs of F, and of G, for each hidden unit.
        activation: Activation of F and G.

    References:
        Pfeiffer, Vulić, Gurevych and Ruder, *MAD-X: An Adapter-Based Framework for Multi-Task
        Cross-Lingual Transfer*, EMNLP 2020, arXiv:2005.00052. Coupling: Dinh, Krueger and Bengio,
        *NICE: Non-linear Independent Components Estimation*, arXiv:1410.8516.
    """

    lacks: ClassVar = NO_WEIGHTS
    section_defaults: ClassVar = {"targets": ["input"]}
    attachment_point = "embedded"
    reads = "output"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        reduction: Positive = 2.0,
        activation: ActivationSetting = "relu",
    ) -> None:
        super().__init__(in_features, out_features, n_skills)
        self.reduction, self.activation = reduction, activation_of(activation)
        self.sizes = [out_features // 2, out_features - out_features // 2]
        self.first, self.second = (
            FeedForwardExperts(n, int(n // reduction), out_features - n, n_skills, bias=True)
            for n in reversed(self.sizes)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for network in (self.first, self.second):
            network.reset_parameters()
            nn.init.zeros_(network.down)

    def merge(self, weights: Weights) -> Merged:
        """Return weight and bias of both layers of each example's F and G."""
        networks = self.first, self.second
        stacks: Any = [s for n in networks for s in (n.up, n.up_bias, n.down, n.down_bias)]
        return tuple(mix_blocks(stack, weights) for stack in stacks)

    def combine(self, x: Tensor, y: Outputs, merged: Merged) -> Outputs:
        """Return the adapted embeddings; the ids ``x`` are not read."""
        first, second = y.to(active_dtype(y)).split(self.sizes, dim=-1)
        first = first + self._network(second, merged[:4])
        return torch.cat([first, second + self._network(first, merged[4:])], dim=-1)

    def inverse(self, y: Outputs, merged: Merged) -> Outputs:
        """Return the embeddings that `combine` maps to ``y``."""
        first, second = y.to(active_dtype(y)).split(self.sizes, dim=-1)
        second = second - self._network(first, merged[4:])
        return torch.cat([first - self._network(second, merged[:4]), second], dim=-1)

    def _network(self, h: Float[Tensor, "B L I"], parts: Merged) -> Float[Tensor, "B L O"]:
        up, up_bias, down, down_bias = (part.to(h.dtype) for part in parts)
        hidden = self.activation(torch.baddbmm(up_bias.unsqueeze(1), h, up.mT))
        return torch.baddbmm(down_bias.unsqueeze(1), hidden, down.mT)


class InvertibleEmbedding(SkilledLayer):
    """The input embeddings with invertible skills."""

    def forward(self, ids: Int[Tensor, "R L"]) -> Float[Tensor, "R L D"]:
        embedded = self.base(ids)
        return self.changed(embedded, embedded, *self.merge())

    def inverse(self, y: Float[Tensor, "R L D"]) -> Float[Tensor, "R L D"]:
        """Return the embeddings that the skills of the current routing map to ``y``."""
        (routing, merged), skills = self.merge(), self.inventory
        assert isinstance(skills, InvertibleInventory)
        if routing.segments:
            parts = zip(routing.tokens(y).split(routing.segments), of_each(merged), strict=True)
            found = torch.cat([skills.inverse(own[None], one)[0] for own, one in parts])
        else:
            found = skills.inverse(routing.examples(y), merged)
        return found.view_as(y)


def put_inverse(backbone: Any) -> None:
    """Apply the inverse before the output layer if it shares its weight with the embeddings."""
    layer, output = text_reader(backbone).get_input_embeddings(), backbone.get_output_embeddings()
    if has_encoder(backbone) or output is None or output.weight is not layer.weight:
        return
    while isinstance(layer, InvertibleEmbedding):  # from the outside in
        # A partial function, since deep copies of the model copy its layers.
        output.register_forward_pre_hook(partial(_inverted, layer))
        layer = layer.base


def _inverted(
    layer: InvertibleEmbedding, _: nn.Module, given: tuple[Tensor, ...]
) -> tuple[Tensor, ...] | None:
    return (layer.inverse(given[0]), *given[1:]) if layer.slot.in_use else None
