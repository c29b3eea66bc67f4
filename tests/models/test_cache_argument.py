"""The name of the cache, in whatever version of transformers is installed."""

import pytest
import torch
from torch import nn

from helpers.backbones import tiny_gpt2, tiny_llama
from mttl.models.generation import cache_argument


@pytest.mark.parametrize("build", [tiny_llama, tiny_gpt2])
def test_what_is_returned_is_taken(build) -> None:
    model, ids = build().eval(), torch.tensor([[3, 4, 5]])
    name = cache_argument(model)
    with torch.no_grad():
        read = model(input_ids=ids[:, :2], use_cache=True)
        last = model(input_ids=ids[:, 2:], **{name: getattr(read, name)}).logits
        # One token after two, or three at once: the sums are taken in another order.
        assert torch.allclose(last[:, 0], model(input_ids=ids).logits[:, -1], atol=1e-5)


def test_others_are_refused() -> None:
    with pytest.raises(ValueError, match="a Linear takes none of cache, past_key_values"):
        cache_argument(nn.Linear(2, 2))
