"""Recurrent layers of plain linear maps, against PyTorch's fused ones."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.utils.rnn import pack_padded_sequence

from mttl.babyai.recurrent import LSTMCell, MaskedGRU

I, D = 5, 4  # noqa: E741 - features in, and of the state


def twin_gru(ours):
    """PyTorch's GRU with the same weights."""
    gru = nn.GRU(I, D, batch_first=True).double()
    gru.load_state_dict({f"{name}_l0": value for name, value in ours.state_dict().items()})
    return gru


def sequences(lengths):
    inputs = torch.randn(len(lengths), max(lengths), I, dtype=torch.float64)
    valid = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return inputs, valid


def test_the_gru_equals_that_of_pytorch_on_packed_sequences():
    ours = MaskedGRU(I, D).double()
    lengths = [3, 1, 6, 4]
    inputs, valid = sequences(lengths)
    packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
    twin = twin_gru(ours)
    expected = twin(packed)[1][0]
    found = ours(inputs, valid)
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, twin.get_parameter(f"{name}_l0").grad)


def test_the_lstm_cell_equals_that_of_pytorch():
    ours, twin = LSTMCell(I, D).double(), nn.LSTMCell(I, D).double()
    twin.load_state_dict(ours.state_dict())
    inputs = torch.randn(3, I, dtype=torch.float64)
    state, cell = torch.randn(2, 3, D, dtype=torch.float64)
    for found, expected in zip(
        ours(ours.read(inputs), state, cell), twin(inputs, (state, cell)), strict=True
    ):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("ours", "twin"), [(MaskedGRU, nn.GRUCell), (LSTMCell, nn.LSTMCell)])
def test_weights_start_as_those_of_pytorch(ours, twin):
    # Of 12 800 and more uniform draws, the spread is within 1 % of PyTorch's with near certainty.
    found, expected = ours(40, 80), twin(40, 80)
    for name, parameter in found.named_parameters():
        reference = expected.get_parameter(name)
        assert parameter.shape == reference.shape
        assert parameter.abs().max() <= 1 / 80**0.5
        if parameter.ndim == 2:
            assert float(parameter.detach().std() / reference.detach().std()) == pytest.approx(
                1, abs=0.02
            )


def test_both_can_be_batched_over_parameters():
    gru = MaskedGRU(I, D).double()
    copies = {n: torch.randn(3, *p.shape, dtype=p.dtype) for n, p in gru.named_parameters()}
    inputs, valid = sequences([3, 2])
    found = vmap(lambda own: functional_call(gru, own, (inputs, valid)))(copies)
    for task in range(3):
        own = {name: value[task] for name, value in copies.items()}
        torch.testing.assert_close(found[task], functional_call(gru, own, (inputs, valid)))
