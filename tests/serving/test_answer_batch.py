"""A batch of any tasks and settings has the answers that each would have alone."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import mttl
from mttl.assembly.model import Built
from mttl.serving.answer_batch import answer_batch
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


def test_beams_are_those_of_the_run(beams: Path) -> None:
    run = mttl.load(beams)
    batch = Batch(run)
    for word in WORDS:
        batch.want("reverse", word)
    found = batch.texts()
    assert found == run.predict("reverse", WORDS)
    assert found != run.predict("reverse", WORDS, num_beams=1)
    assert all(len(pieces) == 1 for pieces in batch.pieces.values())


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
