"""Tasks of a run in lm_eval, beside plain models of transformers with their skills merged."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.cards import ASKED
from helpers.gyms import make_run
from mttl.assembly.model import load_run
from mttl.commands import eval as EVAL
from mttl.inference.task_model import TaskModel
from mttl.io.errors import ConfigError, TaskError
from mttl.merging.fold import fold

ROUNDING = 1e-4  # float32 sums of log-probabilities of a few tokens
REASON = 'needs pip install "lm_eval[hf]"'
MIXTURE = "mix:copy=0.7,reverse=0.3"
ROWS = [
    {"question": "abc is", "choices": [" cab", " b", " xyz"], "label": 1},
    {"question": "b is", "choices": [" a", " cc", " bb"], "label": 0},
]
DEFINITION = """
task: tiny_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{folder}/rows.jsonl"}}, cache_dir: "{folder}/cache"}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: label
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""


@pytest.fixture(scope="module", params=["llama", "t5"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    backbone = ASKED[request.param]["backbone"]
    return make_run(tmp_path_factory.mktemp(request.param), backbone=backbone)


@pytest.fixture(scope="module")
def model(run: Path) -> TaskModel:
    built = load_run(run)
    return TaskModel(dict.fromkeys(built.tasks, built), MIXTURE)


@pytest.fixture(scope="module")
def plain(run: Path) -> torch.nn.Module:
    built = load_run(run)
    copy, reverse = built.model.eval().router.mix(built.task_ids(["copy", "reverse"])).unbind(1)
    return fold(built.model, 0.7 * copy + 0.3 * reverse).backbone.eval().requires_grad_(False)


def test_a_mixture_is_called_like_its_merged_model(model: TaskModel, plain) -> None:
    ids = torch.tensor([[100, 101, 102], [103, 35, 1]])
    inputs = {} if model.run.decoder_only else {"labels": ids}
    logits = model(ids, **inputs).logits
    assert torch.allclose(logits, plain(ids, **inputs).logits, atol=ROUNDING, rtol=0)
    settings = {"max_new_tokens": 5, "do_sample": False}
    assert torch.equal(model.generate(ids, **settings), plain.generate(ids, **settings))


def test_what_the_harness_cannot_ask_is_refused(model: TaskModel, monkeypatch) -> None:
    pytest.importorskip("lm_eval", reason=REASON)
    with pytest.raises(TaskError, match="tasks of different models cannot be mixed"):
        TaskModel({"copy": model.run, "reverse": replace(model.run)}, MIXTURE)
    network = model.run.model
    monkeypatch.setattr(network, "routes_tokens", True)
    with pytest.raises(ConfigError, match="the run routes tokens, also those of padding; set --b"):
        EVAL.harness_model(model, 2)
    monkeypatch.setattr(network.router, "seen", ("prompts",))
    with pytest.raises(ConfigError, match="the router reads prompts, which lm_eval joins with"):
        EVAL.harness_model(model, 1)


def test_the_harness_scores_likelihoods_and_answers(model, plain, run, tmp_path) -> None:
    pytest.importorskip("lm_eval", reason=REASON)
    from lm_eval.api.instance import Instance

    causal, tokenizer = model.run.decoder_only, model.run.tokenizer

    def ids_of(text: str, *, special: bool = not causal) -> torch.Tensor:
        return torch.tensor([tokenizer.encode(text, add_special_tokens=special)])

    def likelihood(prompt: str, answer: str) -> float:
        asked, after = ids_of(prompt), ids_of(answer, special=False)
        if causal:
            logits = plain(torch.cat([asked, after], 1)).logits[:, -1 - after.shape[1] : -1]
        else:
            logits = plain(asked, labels=after).logits
        return float(logits.log_softmax(-1).gather(2, after[..., None]).sum())

    pairs = [(row["question"], choice) for row in ROWS for choice in row["choices"]]
    expected = [likelihood(*pair) for pair in pairs]
    harness = EVAL.harness_model(model, 4)

    def answers(kind: str, requests: list[tuple]) -> list:
        instances = [Instance(kind, {}, request, n) for n, request in enumerate(requests)]
        return getattr(harness, kind)(instances, disable_tqdm=True)

    found = [score for score, _ in answers("loglikelihood", pairs)]
    assert found == pytest.approx(expected, abs=ROUNDING)
    (whole,) = answers("loglikelihood_rolling", [("abc",)])
    if causal:  # after the end token; an encoder would read only that
        start = tokenizer.decode([harness.prefix_token_id])
        assert whole == pytest.approx(likelihood(start, "abc"), abs=ROUNDING)
    settings = {"until": ["\n"], "max_gen_toks": 4, "do_sample": False}
    (answer,) = answers("generate_until", [("abc is", settings)])
    asked = ids_of("abc is")
    most = asked.shape[1] + 4  # also the harness's limit of an encoder-decoder's answer
    (made,) = plain.generate(asked, max_length=most, do_sample=False)
    made = made[-4:] if causal else made[1:]
    assert answer == tokenizer.decode(made, skip_special_tokens=True).split("\n")[0]
    # The command, on a definition of this file.
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    (tmp_path / "tiny.yaml").write_text(DEFINITION.format(folder=tmp_path))
    given = [str(run), "--as", MIXTURE, "--tasks", "tiny_choice", "--include-path", str(tmp_path)]
    assert EVAL.main([*given, "--out", str(tmp_path / "scores.json")]) == 0
    best = [max(range(3), key=expected[start : start + 3].__getitem__) for start in (0, 3)]
    hits = [choice == row["label"] for choice, row in zip(best, ROWS, strict=True)]
    with pytest.raises(TaskError, match=r"has no task 'tiny_choce'\. Did you mean 'tiny_choice'"):
        EVAL.main([*given[:4], "tiny_choce", *given[5:]])
    scores = json.loads((tmp_path / "scores.json").read_text())["results"]["tiny_choice"]
    assert scores["acc,none"] == sum(hits) / 2
