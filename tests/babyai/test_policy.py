"""The policy network, against the same network made of PyTorch's own layers."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from helpers.backbones import fill
from helpers.compare import relative_error
from mttl.babyai.policy import LSTMCell, MaskedGRU, Policy

S, N, E, M, TOKENS = 5, 3, 4, 6, 11
SMALL = {"n_channels": 8, "memory_size": 6, "instruction_size": 5, "word_size": 4, "hidden_size": 7}


def small_policy(**settings):
    policy = Policy(TOKENS, **(SMALL | settings)).double()
    fill(policy)
    return policy


def observations(dtype=torch.uint8, seed=0):
    """Images with values over the whole range, missions of all lengths, and episodes that end."""
    draw = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 147, (S, N, 7, 7, 3), generator=draw).to(dtype)
    missions = torch.randint(1, TOKENS, (E, M), generator=draw)
    for row, length in enumerate((6, 1, 3, 5)):
        missions[row, length:] = 0
    index = torch.randint(0, E, (S, N), generator=draw)
    memory = torch.randn(N, 2 * SMALL["memory_size"], generator=draw, dtype=torch.float64)
    begins = torch.rand(S, N, generator=draw) < 0.3
    return images, missions, index, memory, begins


class Reference(nn.Module):
    """One step at a time, with `nn.GRU`, `nn.LSTMCell` and a matrix of 0 and 1 for the tiles."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        sizes = policy.instruction.weight_ih.shape[1], policy.instruction.weight_hh.shape[1]
        self.gru = nn.GRU(*sizes, batch_first=True)
        self.lstm = nn.LSTMCell(policy.memory.weight_ih.shape[1], policy.memory_size)
        self.double()
        own = policy.instruction.state_dict()
        self.gru.load_state_dict({f"{name}_l0": value for name, value in own.items()})
        self.lstm.load_state_dict(policy.memory.state_dict())
        self.policy = policy

    def forward(self, images, missions, index, memory, begins):
        p = self.policy
        lengths = (missions != 0).sum(1)
        words = F.embedding(missions, p.words.weight)
        packed = pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
        instructions = self.gru(packed)[1][0]
        state, cell = memory.chunk(2, dim=1)
        logits, values = [], []
        for step in range(len(images)):
            one_hot = F.one_hot(images[step].long(), 147).double().flatten(-2)  # (N, 7, 7, 441)
            x = (one_hot @ p.tiles.weight).movedim(-1, 1)
            x = p.convolutions(x)
            followed = instructions[index[step]]
            for film in p.films:
                y = film.convolution_2(F.relu(film.norm_1(film.convolution_1(x))))
                scale, shift = film.scale(followed), film.shift(followed)
                y = y * scale[:, :, None, None] + shift[:, :, None, None]
                x = F.relu(film.norm_2(y)) + x
            seen = F.relu(nn.MaxPool2d(7, stride=2)(x)).flatten(1)
            keep = (~begins[step]).double()[:, None]
            state, cell = self.lstm(seen, (state * keep, cell * keep))
            logits.append(p.actor(state))
            values.append(p.critic(state)[:, 0])
        return torch.stack(logits), torch.stack(values), torch.cat([state, cell], dim=1)


def test_it_has_the_size_of_the_published_network():
    """1.27 million with a vocabulary of 100 words; the sum is written out layer by layer."""
    policy = Policy(100)
    convolutions = 6 * (128 * 128 * 9 + 128) + 6 * 2 * 128
    film = 4 * (128 * 128 + 128)
    gru, lstm = (gates * (2 * 128 * 128 + 2 * 128) for gates in (3, 4))
    heads = 2 * (128 * 64 + 64) + (64 * 7 + 7) + (64 + 1)
    expected = 3 * 147 * 128 + 100 * 128 + convolutions + film + gru + lstm + heads
    assert sum(parameter.numel() for parameter in policy.parameters()) == expected == 1_270_536


# Batch statistics of one step are not those of five: that norm has a test of its own.
@pytest.mark.parametrize("norm", ["group", "none"])
@pytest.mark.parametrize("n_film", [1, 2])
def test_equals_the_reference(norm, n_film):
    policy = small_policy(norm=norm, n_film=n_film)
    reference = Reference(policy)
    found, expected = policy(*observations()), reference(*observations())
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    images, missions, *rest = observations()
    padded = F.pad(missions, (0, 3, 0, 2))  # longer, and two rows without a word
    torch.testing.assert_close(policy(images, padded, *rest)[0], expected[0])
    assert found[0].shape == (S, N, 7)
    assert found[1].shape == (S, N)
    gradients = []
    recurrent = (policy.memory, policy.instruction), (reference.lstm, reference.gru)
    for outputs, layers in zip((found, expected), recurrent, strict=True):
        own = [parameter for layer in layers for parameter in layer.parameters()]
        loss = sum(output.square().sum() for output in outputs)
        gradients.append(torch.autograd.grad(loss, [policy.tiles.weight, *own]))
    for one, other in zip(*gradients, strict=True):
        assert relative_error(one, other) < 1e-10  # float64, sums in another order


@pytest.mark.parametrize(("ours", "twin"), [(MaskedGRU, nn.GRUCell), (LSTMCell, nn.LSTMCell)])
def test_recurrent_weights_start_as_those_of_pytorch(ours, twin):
    # Of 12 800 and more uniform draws, the spread is within 1 % of PyTorch's with near certainty.
    found, expected = ours(40, 80), twin(40, 80)
    for name, parameter in found.named_parameters():
        reference = expected.get_parameter(name)
        assert parameter.shape == reference.shape
        assert parameter.abs().max() <= 1 / 80**0.5
        if parameter.ndim == 2:
            ratio = float(parameter.detach().std() / reference.detach().std())
            assert ratio == pytest.approx(1, abs=0.02)


def test_batch_norm_takes_the_statistics_of_all_frames_in_evaluation_too():
    policy = small_policy(norm="batch").eval()
    norm = policy.convolutions[1]
    x = 3 + 2 * torch.randn(20, 8, 7, 7, dtype=torch.float64)
    mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), keepdim=True, correction=0)
    scaled = norm.weight[:, None, None] * (x - mean) / (variance + norm.eps).sqrt()
    torch.testing.assert_close(norm(x), scaled + norm.bias[:, None, None])
    images, *rest = observations()
    others = [policy(image, *rest)[0][:, :2] for image in (images, images.roll(1, dims=2))]
    assert not torch.equal(*others)
    assert not [*policy.named_buffers()]


def test_it_can_be_batched_over_parameters():
    policy = small_policy(norm="batch")
    copies = {
        name: torch.stack([value, value * 1.1 + 0.01])
        for name, value in policy.state_dict().items()
    }
    inputs = [torch.stack(pair) for pair in zip(observations(), observations(seed=1), strict=True)]
    found = vmap(lambda own, *args: functional_call(policy, own, args))(copies, *inputs)
    for task in range(2):
        own = {name: value[task] for name, value in copies.items()}
        expected = functional_call(policy, own, tuple(value[task] for value in inputs))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one[task], other)


def test_babyai_draws_rows_of_unit_length():
    policy = Policy(TOKENS, **SMALL, init="babyai")
    linears = [module for module in policy.modules() if isinstance(module, nn.Linear)]
    assert len(linears) == 8
    for linear in linears:
        torch.testing.assert_close(linear.weight.norm(dim=1), torch.ones(linear.out_features))
        assert not linear.bias.any()
    # As in BabyAI's code, only linear layers: the recurrent and convolutional ones stay.
    assert policy.memory.bias_hh.all()
    assert policy.convolutions[0].bias.all()
