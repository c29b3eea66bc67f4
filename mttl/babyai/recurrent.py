"""Recurrent layers made of plain linear maps, which `torch.func.vmap` can batch over tasks.

PyTorch's own layers are fused operations that know one set of parameters only.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F


class MaskedGRU(nn.Module):
    """A GRU whose state stands still at padding: it ends as it was after the last real token.

    Parameters have the shapes, the order of gates and the initial distribution of the first layer
    of `torch.nn.GRU`.

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
        """Return the last state of each sequence; zeros where none of its steps is valid."""
        parts = [2 * self.size, self.size]
        read = F.linear(inputs, self.weight_ih, self.bias_ih)  # of all steps at once: (E, M, 3 D)
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
    """One step of an LSTM; what it reads is computed beforehand, for all steps at once.

    Parameters have the shapes, the order of gates and the initial distribution of
    `torch.nn.LSTMCell`.

    References:
        Hochreiter and Schmidhuber, *Long Short-Term Memory*, Neural Computation 9(8), 1997. With
        the forget gate of Gers, Schmidhuber and Cummins, Neural Computation 12(10), 2000.
    """

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__()
        self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh = _gates(4, input_size, size)

    def read(self, inputs: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch 4*D"]:
        """Return what the inputs contribute to the four gates."""
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
    """Return input and recurrent weights and biases of stacked gates, as PyTorch draws them."""
    bound = 1 / math.sqrt(size)
    rows = n_gates * size
    shapes = ((rows, input_size), (rows, size), (rows,), (rows,))
    return [nn.Parameter(torch.empty(shape).uniform_(-bound, bound)) for shape in shapes]
