import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.skills import mixing
from mttl.aggregation import mix_blocks, mix_deltas, mix_factors, mix_outputs

sizes = st.fixed_dictionaries(
    {
        "n_examples": st.integers(1, 4),
        "n_positions": st.integers(1, 4),
        "n_skills": st.integers(1, 5),
        "n_heads": st.integers(1, 4),
        "in_block": st.integers(1, 3),
        "out_block": st.integers(1, 3),
        "rank": st.integers(1, 3),
        "seed": st.integers(0, 1000),
    }
)


def tensors(
    *, n_examples, n_positions, n_skills, n_heads, in_block, out_block, rank, seed, dtype=None
):
    """Random input, factors and weights; float64, so that only mistakes differ."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype or torch.float64)

    n_in, n_out = n_heads * in_block, n_heads * out_block
    return (
        draw(n_examples, n_positions, n_in),
        draw(n_skills, n_in, rank),
        draw(n_skills, n_out, rank),
        draw(n_examples, n_heads, n_skills),
    )


@given(sizes)
def test_blocks_equal_a_loop_over_examples_features_and_skills(size):
    _, down, _, weights = tensors(**size)
    mixed = mix_blocks(down, weights)
    for b in range(size["n_examples"]):
        for feature in range(down.shape[1]):
            head = feature // size["in_block"]
            expected = sum(weights[b, head, k] * down[k, feature] for k in range(size["n_skills"]))
            torch.testing.assert_close(mixed[b, feature], expected)


@pytest.mark.parametrize("n_heads", [1, 3])
def test_blocks_of_vectors_and_of_larger_tensors(n_heads):
    weights = mixing(2, n_heads, 4)
    vector, cube = torch.randn(4, 6), torch.randn(4, 6, 2, 5)
    assert mix_blocks(vector, weights).shape == (2, 6)
    mixed = mix_blocks(cube, weights)
    assert mixed.shape == (2, 6, 2, 5)
    torch.testing.assert_close(mixed[..., 1, 3], mix_blocks(cube[..., 1, 3], weights))


@given(sizes, st.data())
def test_all_three_agree_where_each_example_uses_one_skill(size, data):
    x, down, up, weights = tensors(**size)
    n_skills = size["n_skills"]
    chosen = data.draw(
        st.lists(
            st.integers(0, n_skills - 1), min_size=size["n_examples"], max_size=size["n_examples"]
        )
    )
    one_hot = torch.nn.functional.one_hot(torch.tensor(chosen), n_skills).to(x)
    weights = one_hot[:, None, :].expand_as(weights).contiguous()
    merged_down, merged_up = mix_factors(down, up, weights)
    by_factors = x @ merged_down @ merged_up.transpose(1, 2)
    by_deltas = x @ mix_deltas(down, up, weights).transpose(1, 2)
    by_outputs = mix_outputs(x, down, up, weights)
    expected = torch.stack([x[b] @ down[k] @ up[k].t() for b, k in enumerate(chosen)])
    for found in (by_factors, by_deltas, by_outputs):
        torch.testing.assert_close(found, expected)
