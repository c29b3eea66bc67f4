"""The policy network of BabyAI 1.1: FiLM over a bag-of-words image, with an LSTM memory.

Exported policies have a copy of this file, so it imports nothing but torch.

::

    missions ─ words ─ GRU ──────────────┐ (one state per distinct mission)
                                         ▼
    images ─ tiles ─ 2 × conv ─ FiLM ─ FiLM ─ max over the view ─ LSTM cell ─┬─ actor ── logits
                                                                      ▲  │   └─ critic ─ value
                                                                      └──┘ memory

`torch.func.vmap` can batch it over the parameters of tasks, since it has no packed sequences,
running statistics or fused recurrent layers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Integer

N_ACTIONS, VIEW = 7, 7  # those of envs.interface
TILE_CHANNELS, TILE_VALUES = 3, 147  # type, colour and door state of a cell; values of each
# The best of the fixed group widths of Wu and He, arXiv:1803.08494.
CHANNELS_PER_GROUP = 16


class Policy(nn.Module):
    """Action logits and state values of one task's agent, for sequences of observations.

    ``norm`` follows convolutions: ``"group"`` normalises each frame, ``"batch"`` all frames of a
    call (also in evaluation, without running averages), ``"none"`` nothing. ``init`` is
    ``"kaiming"``, PyTorch's uniform distribution for linear and convolutional weights (He et al.,
    arXiv:1502.01852), or ``"babyai"``, rows of norm 1 in random directions and biases of 0 for
    linear layers. Token 0 is padding.

    References:
        Hui, Chevalier-Boisvert, Bahdanau and Bengio, *BabyAI 1.1*, 2020, arXiv:2007.12770 (there
        ``bow_endpool_res``). FiLM: Perez, Strub, de Vries, Dumoulin and Courville, AAAI 2018,
        arXiv:1709.07871.
    """

    def __init__(
        self,
        n_tokens: int,
        *,
        n_channels: int = 128,
        memory_size: int = 128,
        instruction_size: int = 128,
        word_size: int = 128,
        hidden_size: int = 64,
        n_film: int = 2,
        norm: str = "group",
        init: str = "kaiming",
    ) -> None:
        super().__init__()
        self.memory_size = memory_size
        self.tiles = TileEmbedding(n_channels)
        self.convolutions = nn.Sequential(
            _convolution(n_channels), _norm(norm, n_channels), nn.ReLU(),
            _convolution(n_channels), _norm(norm, n_channels), nn.ReLU(),
        )  # fmt: skip
        self.words = nn.Embedding(n_tokens, word_size)
        self.instruction = MaskedGRU(word_size, instruction_size)
        self.films = nn.ModuleList(FiLM(n_channels, instruction_size, norm) for _ in range(n_film))
        # Of every FiLM block, or none; see `mttl.babyai.position_experts`.
        self.experts = nn.ModuleList()
        self.memory = LSTMCell(n_channels, memory_size)
        self.actor = _head(memory_size, hidden_size, N_ACTIONS)
        self.critic = _head(memory_size, hidden_size, 1)
        if init == "babyai":
            self.apply(_unit_rows)

    def forward(
        self,
        images: Integer[Tensor, "S N 7 7 3"],
        missions: Integer[Tensor, "E M"],
        mission_index: Int[Tensor, "S N"],
        memory: Float[Tensor, "N 2*memory"],
        begins: Bool[Tensor, "S N"],
    ) -> tuple[Float[Tensor, "S N A"], Float[Tensor, "S N"], Float[Tensor, "N 2*memory"]]:
        """Run S steps of N agents.

        Args:
            images: View of each agent: type, colour and door state of its cells.
            missions: Distinct missions E of these steps as M tokens, padded with 0 at the end.
            mission_index: Index of each agent's mission at each step.
            memory: Memories of the agents before the first step.
            begins: Whether a step is the first of an episode, before which memory is set to 0.

        Returns:
            Logits of the actions; values, in units of the (scaled) reward; and the memories after
            the last step.
        """
        instructions = self.instruction(self.words(missions.long()), missions != 0)
        followed = instructions[mission_index.flatten()]  # (S N, D)
        x = self.convolutions(self.tiles(images.flatten(0, 1)))
        for number, film in enumerate(self.films):
            change = film(x, followed)
            x = x + (change + self.experts[number](x) if self.experts else change)
        seen = F.max_pool2d(x, VIEW).flatten(1).relu()
        gates = self.memory.read(seen.unflatten(0, images.shape[:2]))
        goes_on = (~begins).to(memory.dtype).unsqueeze(-1)
        state, cell = memory.chunk(2, dim=-1)
        states = []
        for gate, keep in zip(gates.unbind(0), goes_on.unbind(0), strict=True):
            state, cell = self.memory(gate, state * keep, cell * keep)
            states.append(state)
        embedding, memory = torch.stack(states), torch.cat([state, cell], dim=-1)
        return self.actor(embedding), self.critic(embedding).squeeze(-1), memory


class TileEmbedding(nn.Embedding):
    """A bag-of-words embedding: the sum of the vectors of a cell's three numbers."""

    def __init__(self, n_channels: int) -> None:
        super().__init__(TILE_CHANNELS * TILE_VALUES, n_channels)

    def forward(self, images: Integer[Tensor, "F 7 7 3"]) -> Float[Tensor, "F C 7 7"]:
        # One lookup per number, since a joint one needs three times the memory before the sum.
        numbers = images.long().unbind(-1)
        tables = self.weight.chunk(TILE_CHANNELS)
        first, second, third = (
            F.embedding(number, table) for number, table in zip(numbers, tables, strict=True)
        )
        return (first + second + third).permute(0, 3, 1, 2)


class FiLM(nn.Module):
    """Convolutions whose output is scaled and shifted by each frame's instruction."""

    def __init__(self, n_channels: int, instruction_size: int, norm: str) -> None:
        super().__init__()
        self.convolution_1 = _convolution(n_channels)
        self.norm_1 = _norm(norm, n_channels)
        self.convolution_2 = _convolution(n_channels)
        self.norm_2 = _norm(norm, n_channels)
        self.scale = nn.Linear(instruction_size, n_channels)
        self.shift = nn.Linear(instruction_size, n_channels)

    def forward(
        self, x: Float[Tensor, "F C 7 7"], instruction: Float[Tensor, "F D"]
    ) -> Float[Tensor, "F C 7 7"]:
        """Return ``relu(norm(scale * conv(relu(norm(conv(x)))) + shift))``."""
        x = self.convolution_2(self.norm_1(self.convolution_1(x)).relu())
        scale, shift = self.scale(instruction), self.shift(instruction)
        return self.norm_2(torch.addcmul(shift[..., None, None], x, scale[..., None, None])).relu()


class MaskedGRU(nn.Module):
    """A GRU whose state does not change at padding.

    Parameters and initialisation are those of the first layer of `torch.nn.GRU`.

    References:
        Cho et al., *Learning Phrase Representations using RNN Encoder-Decoder for Statistical
        Machine Translation*, EMNLP 2014, arXiv:1406.1078.
    """

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh = _gates(3, input_size, size)

    def forward(
        self, inputs: Float[Tensor, "E M I"], valid: Bool[Tensor, "E M"]
    ) -> Float[Tensor, "E D"]:
        """Return the last state of each sequence; zeros for sequences of padding."""
        parts = [2 * self.size, self.size]
        read = F.linear(inputs, self.weight_ih, self.bias_ih)  # all steps: (E, M, 3 D)
        state = read.new_zeros(read.shape[0], self.size)
        for step, real in zip(read.unbind(1), valid.unsqueeze(-1).unbind(1), strict=True):
            gates_in, new_in = step.split(parts, dim=-1)
            recurrent = F.linear(state, self.weight_hh, self.bias_hh)
            gates_state, new_state = recurrent.split(parts, dim=-1)
            reset, keep = torch.sigmoid(gates_in + gates_state).chunk(2, dim=-1)
            new = torch.tanh(new_in + reset * new_state)
            state = torch.where(real, torch.lerp(new, state, keep), state)
        return state


class LSTMCell(nn.Module):
    """One step of an LSTM, whose input contribution is computed for all steps at once by `read`.

    Parameters and initialisation are those of `torch.nn.LSTMCell`.

    References:
        Hochreiter and Schmidhuber, *Long Short-Term Memory*, Neural Computation 9(8), 1997. With
        the forget gate of Gers, Schmidhuber and Cummins, Neural Computation 12(10), 2000.
    """

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__()
        self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh = _gates(4, input_size, size)

    def read(self, inputs: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch 4*D"]:
        """Return the contribution of the inputs to the four gates."""
        return F.linear(inputs, self.weight_ih, self.bias_ih)

    def forward(
        self, read: Float[Tensor, "N 4*D"], state: Float[Tensor, "N D"], cell: Float[Tensor, "N D"]
    ) -> tuple[Float[Tensor, "N D"], Float[Tensor, "N D"]]:
        """Return the next state and cell."""
        gates = read + F.linear(state, self.weight_hh, self.bias_hh)
        enter, forget, candidate, leave = gates.chunk(4, dim=-1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
        return leave.sigmoid() * cell.tanh(), cell


def _gates(n_gates: int, input_size: int, size: int) -> list[nn.Parameter]:
    """Return input and recurrent weights and biases of stacked gates, initialised as in PyTorch."""
    bound = 1 / math.sqrt(size)
    rows = n_gates * size
    shapes = ((rows, input_size), (rows, size), (rows,), (rows,))
    return [nn.Parameter(torch.empty(shape).uniform_(-bound, bound)) for shape in shapes]


def _convolution(n_channels: int) -> nn.Conv2d:
    return nn.Conv2d(n_channels, n_channels, kernel_size=3, padding=1)


def _norm(norm: str, n_channels: int) -> nn.Module:
    n_per_group = math.gcd(CHANNELS_PER_GROUP, n_channels)
    return {
        "group": lambda: nn.GroupNorm(n_channels // n_per_group, n_channels),
        "batch": lambda: nn.BatchNorm2d(n_channels, track_running_stats=False),
        "none": nn.Identity,
    }[norm]()


def _head(size: int, hidden_size: int, n_outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, hidden_size), nn.Tanh(), nn.Linear(hidden_size, n_outputs))


def _unit_rows(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        with torch.no_grad():
            module.weight.copy_(F.normalize(torch.randn_like(module.weight), dim=1))
            module.bias.zero_()
