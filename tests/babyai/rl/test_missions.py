import torch
from hypothesis import given
from hypothesis import strategies as st

from mttl.babyai.rl.missions import distinct_missions, without_padding


def random_missions(*sizes, n_tokens, seed):
    """Missions of different lengths, padded with 0."""
    generator = torch.Generator().manual_seed(seed)
    missions = torch.randint(1, n_tokens + 1, sizes, generator=generator)
    lengths = torch.randint(0, sizes[-1] + 1, sizes[:-1], generator=generator)
    return (missions * (torch.arange(sizes[-1]) < lengths[..., None])).to(torch.uint8)


@given(
    sizes=st.tuples(*(st.integers(1, n) for n in (5, 3, 4, 6))),
    n_tokens=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
def test_the_distinct_missions_are_a_set_and_lead_back_to_every_frame(sizes, n_tokens, seed):
    missions = random_missions(*sizes, n_tokens=n_tokens, seed=seed)
    found, index = distinct_missions(missions)
    missions = without_padding(missions)
    tasks = torch.arange(sizes[1])[:, None]
    assert torch.equal(found[tasks, index], missions)
    sets = [{tuple(row) for row in missions[:, t].flatten(0, 1).tolist()} for t in range(sizes[1])]
    assert found.shape[1] == max(map(len, sets))
    for task, distinct in enumerate(sets):
        rows = [tuple(row) for row in found[task].tolist()]
        assert set(rows) == distinct
        assert set(rows[: len(distinct)]) == distinct  # before the repetitions
        assert index[:, task].max() < len(distinct)


@given(sizes=st.tuples(*(st.integers(1, n) for n in (4, 3, 6))), seed=st.integers(0, 2**31))
def test_only_what_pads_every_mission_is_dropped(sizes, seed):
    missions = random_missions(*sizes, n_tokens=3, seed=seed)
    found = without_padding(missions)
    length = found.shape[-1]
    assert torch.equal(found, missions[..., :length])
    assert not missions[..., length:].any()
    assert length == 1 or missions[..., length - 1].any()
