"""Draws follow the distribution that was asked for, and know nothing of the other rows."""

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopPLogitsWarper

from mttl.serving.answer_batch import TokenChoice, draw
from mttl.serving.generation_request import GenerationRequest

LOGITS = torch.tensor([2.0, -1.0, 0.5, 1.9, -30.0, 0.0])


def row(most_tokens: int = 1, **settings) -> GenerationRequest:
    return GenerationRequest(task_id=0, prompt=[], most_tokens=most_tokens, send=print, **settings)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 0.9), (1.7, 0.6), (1, 0.01)])
def test_draws_have_the_shares_of_transformers_warpers(temperature: float, top_p: float) -> None:
    n = 20_000
    warped = TemperatureLogitsWarper(float(temperature))(None, LOGITS[None])  # type: ignore
    shares = TopPLogitsWarper(top_p)(None, warped).softmax(1)[0]  # type: ignore
    drawn = draw(
        LOGITS.expand(n, -1),
        torch.full((n,), float(temperature), dtype=torch.float64),
        torch.full((n,), top_p, dtype=torch.float64),
        (torch.arange(n, dtype=torch.float64) + 0.5) / n,  # evenly, so that counts are exact
    )
    counts = drawn.bincount(minlength=len(LOGITS)) / n
    torch.testing.assert_close(counts, shares, atol=2 / n, rtol=0)


@pytest.mark.parametrize("temperature", [1e-300, 1e-9, 2.0])
@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_extremes_draw_what_has_a_share(temperature: float, uniform: float) -> None:
    logits = torch.tensor([[-torch.inf, 3e38, 1.0, -3e38, -torch.inf]])
    settings = torch.tensor([[temperature], [1.0], [uniform]], dtype=torch.float64)
    assert draw(logits, *settings).tolist() == [1]


def test_rows_do_not_see_each_other() -> None:
    drawing = {"temperature": 1.3, "top_p": 0.95, "seed": "7/0"}
    alone = TokenChoice([row(**drawing)], torch.device("cpu"))
    mixed = TokenChoice(
        [row(), row(**drawing), row(temperature=0.4, seed="x")], torch.device("cpu")
    )
    torch.manual_seed(0)
    for _ in range(20):
        logits = torch.randn(3, 50)
        both = mixed(torch.zeros(3, 1).long(), logits.clone())
        one = alone(torch.zeros(1, 1).long(), logits[1:2].clone())
        assert both[1].argmax() == one[0].argmax()
        assert torch.equal(both[0], logits[0])  # the likeliest is taken by `generate` itself


def test_tokens_are_scored_whatever_the_temperature() -> None:
    choice = TokenChoice(
        [row(n_logprobs=2), row(), row(temperature=2.0, seed="1", n_logprobs=0)],
        torch.device("cpu"),
    )
    chosen = choice(torch.zeros(3, 1).long(), LOGITS.repeat(3, 1)).argmax(1).tolist()
    logprobs = LOGITS.log_softmax(0).tolist()
    assert set(choice.scores) == {0, 2}
    assert choice.scores[0][0] == pytest.approx(logprobs[0])
    assert [token for token, _ in choice.scores[0][1]] == [0, 3]
    assert choice.scores[2] == (pytest.approx(logprobs[chosen[2]]), [])


def test_ends_are_forced_at_the_last_token_of_each_row() -> None:
    rows = [row(2, n_logprobs=2), row(3), row(2, temperature=1.0, seed="1")]
    choice = TokenChoice(rows, torch.device("cpu"), {4})
    ids, logits = torch.zeros(3, 1).long(), LOGITS.repeat(3, 1)
    assert torch.equal(choice(ids, logits)[:2], logits[:2])
    assert choice(ids, logits).argmax(1).tolist() == [4, 0, 4]
    # Log-probabilities are those of the model, which nothing forces.
    assert choice.scores[0][0] == pytest.approx(LOGITS.log_softmax(0)[4].item())
    assert [token for token, _ in choice.scores[0][1]] == [0, 3]
    assert choice(ids, logits)[1].argmax() == 4
    assert torch.equal(logits, LOGITS.repeat(3, 1))
