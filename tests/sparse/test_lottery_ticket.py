"""The two phases against a plain implementation that masks gradients of whole tensors."""

import copy

import pytest
import torch
from torch import nn

from mttl.io.errors import CheckpointError
from mttl.sparse.composition import SparseComposition
from mttl.sparse.lottery_settings import LotterySettings
from mttl.sparse.lottery_ticket import LotteryTicket
from mttl.sparse.tuning import FullTuning


class Regression:
    """Rows of a linear problem; noise drawn by the seed."""

    n_rows = 11

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(self.n_rows, 6, generator=generator)
        self.y = torch.randn(self.n_rows, 4, generator=generator)

    def loss(self, model, rows, seed):
        noise = torch.randn(len(rows), 6, generator=torch.Generator().manual_seed(seed))
        return (model(self.x[rows] + 0.1 * noise) - self.y[rows]).square().mean()


def network() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 9), nn.Dropout(0.1), nn.LayerNorm(9), nn.Linear(9, 4))


MASKABLE = ["0.weight", "0.bias", "3.weight"]
SMALL = {"density": 0.2, "full_steps": 7, "sparse_steps": 5, "batch_size": 4, "lr": 1e-2}


def run(ticket: LotteryTicket, n_steps: int | None = None) -> None:
    while ticket.phase != "done" and n_steps != 0:
        ticket.advance()
        n_steps = None if n_steps is None else n_steps - 1


def rows_at(step: int) -> list[int]:
    """Return the rows of a step of a phase."""
    orders = [
        torch.randperm(11, generator=torch.Generator().manual_seed(13_000 + epoch))
        for epoch in range(4)
    ]
    return torch.cat(orders)[4 * step : 4 * step + 4].tolist()


def parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def by_hand(settings: LotterySettings, ours: list[dict[str, torch.Tensor]]):
    """Train whole tensors under masks, compare every step, and return the masks and the end."""
    model, problem, step = network(), Regression(), 0
    named, start = dict(model.named_parameters()), parameters(model)
    back, masks = start, {name: torch.ones_like(named[name]) for name in MASKABLE}
    n = sum(value.numel() for value in masks.values())
    torch.manual_seed(0)
    for turn in range(1, settings.rounds + 2):
        last = turn > settings.rounds
        n_steps = settings.sparse_steps if last else settings.full_steps
        optimizer = torch.optim.AdamW([named[x] for x in MASKABLE], lr=1e-2, weight_decay=0.0)
        for place in range(n_steps):
            loss = problem.loss(model.train(), rows_at(place), 13 * 1_000_003 + step)
            pull = sum((named[x] - start[x]).abs().sum() for x in MASKABLE)
            model.zero_grad()
            (loss + settings.l1 * pull / n).backward()
            for name, mask in masks.items():
                named[name].grad *= mask
            optimizer.param_groups[0]["lr"] = 1e-2 * (1 - place / n_steps)
            optimizer.step()
            step += 1
            if (turn, place + 1) == (1, settings.rewind):
                back = parameters(model)
            for name in start if last or place < n_steps - 1 else ():
                # The pull's gradient is added to, rather than summed into, the loss's, and copied
                # gradients are masked ones but for roundings, which Adam's division may enlarge.
                torch.testing.assert_close(
                    ours[step][name], named[name].detach(), atol=2e-6, rtol=1e-5
                )
        if last:
            return masks, parameters(model), start
        change = settings.criterion == "change"
        scores = {x: (named[x].detach() - change * start[x]).abs() * masks[x] for x in MASKABLE}
        kept = round(settings.density ** (turn / settings.rounds) * n)
        least = torch.cat([score.flatten() for score in scores.values()]).topk(kept).values.min()
        for name, mask in masks.items():
            mask *= scores[name] >= least
            outside = 0 if settings.form == "masked" else start[name] * (1 - mask)
            named[name].data.copy_(back[name] * mask + outside)


PRUNING = {"criterion": "magnitude", "form": "masked", "rounds": 3, "rewind": 2, "density": 0.3}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"l1": 0.5},
        PRUNING,
        PRUNING | {"rewind": 0},
        PRUNING | {"form": "added"},
        PRUNING | {"form": "added", "rewind": 0},
    ],
)
def test_every_step_is_that_of_masked_gradients(more):
    """Of two phases, and of three turns of training what is left."""
    settings = LotterySettings(**SMALL | more)
    ours, fresh = network(), network()
    ticket = LotteryTicket(ours, MASKABLE, Regression(), settings)
    torch.manual_seed(0)
    history = [parameters(ours)]
    while ticket.phase != "done":
        ticket.advance()
        history.append(parameters(ours))
    assert ticket.n_done == ticket.n_steps == 7 * settings.rounds + 5
    masks, end, start = by_hand(settings, history)
    assert sum(int(mask.sum()) for mask in masks.values()) == round(settings.density * 99)
    assert all(torch.equal(end[name], start[name]) for name in set(start) - set(MASKABLE))
    skill, composition = ticket.skill({"a": 1}), SparseComposition(fresh)
    composition.apply("it", skill)
    for name, value in fresh.named_parameters():
        torch.testing.assert_close(value.detach(), end[name], atol=2e-6, rtol=1e-5)
        if settings.form == "masked" and name in masks:
            assert torch.equal(value.detach() == 0, masks[name] == 0)
        elif name in masks:
            places = skill.changes[name].indices if name in skill.changes else torch.tensor([])
            assert places.tolist() == masks[name].flatten().nonzero().flatten().tolist()
    composition.clear()
    assert all(torch.equal(value, start[name]) for name, value in fresh.named_parameters())
    if not settings.rewind and settings.form == "added" and settings.rounds == 1:
        assert all(torch.equal(history[7][name], start[name]) for name in start)  # put back


@pytest.mark.parametrize("criterion", ["movement", "magnitude"])
def test_gradual_pruning_by_hand(criterion):
    """Scores are parameters under masks that let gradients straight through."""
    more = {"criterion": criterion, "form": "masked", "schedule": "cubic", "dense_steps": 2}
    settings = LotterySettings(**SMALL | more)
    ours, theirs, problem = network(), network(), Regression()
    ticket = LotteryTicket(ours, MASKABLE, problem, settings)
    start, named = parameters(theirs), dict(theirs.named_parameters())
    scores = {name: torch.zeros_like(named[name], requires_grad=True) for name in MASKABLE}
    n = sum(value.numel() for value in scores.values())
    came_back = 0
    torch.manual_seed(0)
    adam = torch.optim.AdamW([named[x] for x in MASKABLE], lr=1e-2, weight_decay=0.0)

    def chosen(density):
        known = {x: s.detach() for x, s in scores.items()}
        if criterion == "magnitude":
            known = {x: named[x].detach().abs() for x in MASKABLE}
        least = torch.cat([s.flatten() for s in known.values()]).topk(round(density * n)).values[-1]
        return {x: (s >= least).float() for x, s in known.items()}

    before = {x: torch.ones_like(named[x]) for x in MASKABLE}
    for place in range(7):
        rate = 1e-2 * (1 - place / 7)
        over = max(0, place - 2) / 5
        masks = chosen(0.2 + 0.8 * (1 - over) ** 3)
        came_back += sum(int((masks[x] > before[x]).sum()) for x in MASKABLE)
        before = masks
        used = {
            x: named[x] * (masks[x] + scores[x] - scores[x].detach()) if x in masks else value
            for x, value in named.items()
        }
        call = lambda x, used=used: torch.func.functional_call(theirs.train(), used, (x,))  # noqa: E731
        rows = rows_at(place)
        drawn = torch.get_rng_state()  # of dropout
        problem.loss(call, rows, 13 * 1_000_003 + place).backward()
        with torch.no_grad():
            for score in scores.values():
                score -= rate * score.grad
                score.grad = None
        adam.param_groups[0]["lr"] = rate
        adam.step()
        adam.zero_grad()
        torch.set_rng_state(drawn)
        ticket.advance()
        if place < 6:  # then weights outside are 0
            for x, value in ours.named_parameters():
                torch.testing.assert_close(value.detach(), named[x].detach())
    assert came_back or criterion == "magnitude"
    masks = chosen(0.2)
    for x, value in ours.named_parameters():
        expected = named[x].detach() * masks.get(x, 1)
        torch.testing.assert_close(value.detach(), expected)
        assert x not in masks or not torch.equal(expected, start[x] * masks[x])  # not put back
    run(ticket)
    assert all(torch.equal(dict(ours.named_parameters())[x] == 0, masks[x] == 0) for x in masks)


def test_two_skills_that_set_weights_to_0_are_not_added():
    skills = []
    for seed in (1, 2):
        settings = LotterySettings(**SMALL | PRUNING | {"seed": seed})
        ticket = LotteryTicket(network(), MASKABLE, Regression(), settings)
        run(ticket)
        skills.append(ticket.skill())
    composition = SparseComposition(network())
    composition.apply("one", skills[0])
    with pytest.raises(CheckpointError, match="'two' and 'one' both set weights to 0"):
        composition.apply("two", skills[1])
    composition.swap("one", "two", skills[1])
    assert composition.names == ("two",)


GRADUAL = {"criterion": "movement", "form": "masked", "schedule": "cubic"}


@pytest.mark.every(5)
@pytest.mark.parametrize(
    ("more", "stop"),
    [
        *((GRADUAL, stop) for stop in (1, 4, 7, 9)),
        *((PRUNING, stop) for stop in (1, 3, 8, 16, 21, 23)),
        *((PRUNING | {"form": "added"}, stop) for stop in (3, 16, 23)),
        *(
            ({"criterion": criterion, "gradient_clip_val": 0.5}, stop)
            for criterion in ("change", "magnitude", "movement", "fisher", "random")
            for stop in (3, 7, 9)
        ),
    ],
)
def test_a_run_that_was_stopped_ends_bit_for_bit_as_one_that_was_not(more, stop):
    settings = LotterySettings(**SMALL | more)
    whole, first, second = (
        LotteryTicket(network(), MASKABLE, Regression(), settings) for _ in range(3)
    )
    torch.manual_seed(4)
    run(whole)
    torch.manual_seed(4)
    run(first, min(stop, first.n_steps - 1))
    state = copy.deepcopy(first.state_dict())
    torch.manual_seed(99)
    second.load_state_dict(state)
    assert (second.phase, second.n_done, second.doing) == (first.phase, first.n_done, first.doing)
    run(second)
    for name, value in parameters(whole.model).items():
        assert torch.equal(value, parameters(second.model)[name]), name
    ours, theirs = whole.skill(), second.skill()
    for name, change in ours.changes.items():
        assert torch.equal(change.indices, theirs.changes[name].indices)
        assert torch.equal(change.values, theirs.changes[name].values)
        assert change.base == theirs.changes[name].base


def test_movement_is_minus_the_rate_times_gradient_times_weight_summed_over_steps():
    weight = nn.Parameter(torch.tensor([2.0, -1, 3]))
    tuning = FullTuning({"w": weight}, LotterySettings(criterion="movement"))
    expected = torch.zeros(3)
    for step in range(3):
        weight.grad = torch.randn(3)
        expected -= (0.1 + step) * weight.grad * weight.detach()
        tuning.before_step(0.1 + step)
        with torch.no_grad():
            weight += 1
    torch.testing.assert_close(tuning.scores()["w"], expected)


def test_fisher_information_is_read_by_example_and_trains_nothing():
    model = network()
    ticket = LotteryTicket(
        model, MASKABLE, Regression(), LotterySettings(**SMALL, criterion="fisher")
    )
    with pytest.raises(RuntimeError, match="there is no skill yet, because the second phase"):
        ticket.skill()
    start = parameters(model)
    sums = {name: torch.zeros_like(start[name]) for name in MASKABLE}
    twin, problem = network().eval(), Regression()
    for step in range(3):
        rows, seed = ticket._rows(), ticket._seed()
        ticket.advance()
        for row in rows:
            twin.zero_grad()
            problem.loss(twin, [row], seed).backward()
            for name, value in twin.named_parameters():
                if name in sums:
                    sums[name] += value.grad.square()
        assert ticket.step == step + 1
    assert all(torch.equal(value, start[name]) for name, value in parameters(model).items())
    for name, total in sums.items():
        torch.testing.assert_close(ticket._tuning.scores()[name], total)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"criterion": "luck"}, r"criterion \('luck'\) must be one of change, magnitude, movement"),
        ({"rounds": 2, "criterion": "random"}, r"rounds \(2\) must be 1 with random supports"),
        ({"rewind": 7, "full_steps": 7}, r"rewind \(7\) must be below full_steps \(7\)"),
        ({"rewind": 1, "l1": 0.1}, r"rewind \(1\) must be 0 with the criteria fisher and random"),
        ({"schedule": "cubic"}, "unless form is masked, rounds 1, rewind 0, and the crit"),
        ({"dense_steps": 2}, r"dense_steps \(2\) must .*, for the schedule cubic"),
    ],
)
def test_settings_without_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        LotterySettings(**settings)
