"""A batch of any tasks and settings has the answers that each would have alone."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopPLogitsWarper

import mttl
from mttl.assembly.model import Built
from mttl.serving.answer_batch import TokenChoice, answer_batch, draw
from mttl.serving.generation_request import GenerationRequest, Piece
from mttl.serving.run_server import served_tasks

WORDS = ["ab", "c", "abca", "bb", "ca", "a", "cab", "bc"]


class Batch:
    """Answers that are wanted of a run, and what came of them."""

    def __init__(self, run: Built) -> None:
        self.run = run
        self.served = served_tasks(dict.fromkeys(run.tasks, run), most_tokens=9, truncate=False)
        self.rows: list[GenerationRequest] = []
        self.pieces: dict[int, list[Piece]] = defaultdict(list)

    def want(self, task: str, word: str, **settings: Any) -> int:
        (prompt,), _ = self.served[task].encode([word])
        place = len(self.rows)
        settings = {"most_tokens": 6, "n_beams": self.run.search["num_beams"], **settings}
        self.rows.append(
            GenerationRequest(
                task_id=self.run.tasks.index(task),
                prompt=prompt,
                send=self.pieces[place].append,
                **settings,
            )
        )
        return place

    def texts(self) -> list[str]:
        answer_batch(self.run, self.rows)
        assert all(pieces[-1].finish for pieces in self.pieces.values())
        return ["".join(p.text for p in self.pieces[place]) for place in range(len(self.rows))]


def test_a_search_with_beams_ends_when_nobody_waits(beams: Path) -> None:
    batch = Batch(mttl.load(beams))
    place = batch.want("copy", "ab", most_tokens=500)
    batch.rows[0].dropped = True
    steps: list[int] = []
    backbone: Any = batch.run.model.backbone
    backbone.lm_head.register_forward_hook(lambda *given: steps.append(1))
    answer_batch(batch.run, batch.rows)
    assert len(steps) == 1
    assert not batch.pieces[place]


def test_an_end_that_the_model_forces_comes_where_each_answer_ends(run: Built) -> None:
    """BART's configuration forces it: at the last token that an answer may have."""
    backbone: Any = run.model.backbone
    free = run.predict("copy", WORDS)
    backbone.generation_config.forced_eos_token_id = 1
    batch = Batch(run)
    for word in WORDS:
        batch.want("copy", word)
    batch.want("copy", "ab", most_tokens=15)
    *found, longer = batch.texts()
    assert found == run.predict("copy", WORDS) != free
    assert [longer] == run.predict("copy", ["ab"], max_new_tokens=15)


def test_rows_of_all_settings_share_a_batch(run: Built) -> None:
    """Greedy, drawn, short and long, stopped and streamed: each as alone."""
    settings: list[dict[str, Any]] = [
        {},
        {"temperature": 1.5, "seed": "a", "most_tokens": 12},
        {"temperature": 0.9, "top_p": 0.8, "seed": "b"},
        {"most_tokens": 2},
        {"most_tokens": 15, "stream": True},
        {"stop": ("a", "~"), "n_logprobs": 1},
    ]
    together, alone = Batch(run), []
    for number, chosen in enumerate(settings * 2):
        task, word = run.tasks[number % 3], WORDS[number % len(WORDS)]
        together.want(task, word, **chosen)
        single = Batch(run)
        single.want(task, word, **chosen)
        alone += single.texts()
    assert together.texts() == alone
    lengths = [pieces[-1].n_tokens for pieces in together.pieces.values()]
    assert lengths[3] <= 2
    assert lengths[4] <= 15


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
