import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr
from sklearn.metrics import f1_score, matthews_corrcoef

from helpers.nodes import run_processes
from mttl.metrics.crossfit import add_answers, build_metric, ignored_differences, score_answers
from mttl.metrics.metric_names import METRIC_NAMES, TaskMetric
from mttl.plugins.parts import PARTS

METRICS = [name for name in METRIC_NAMES if name not in PARTS["metrics"]]

# A final NUL is not part of a string for NumPy, and so for scikit-learn.
texts = st.text(max_size=3).map(str.strip).filter(lambda text: not text.endswith("\0"))
labels = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["yes", "no", "maybe"]), st.sampled_from(["yes", "no", "Yes", ""])
        ),
        st.tuples(texts, texts),
        texts.map(lambda text: (text, text)),
    ),
    min_size=1,
    max_size=20,
)


@settings(deadline=None)
@given(labels)
def test_classification_f1_equals_scikit_learn(rows):
    gold, predicted = zip(*rows, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns of classes nobody predicted
        expected = f1_score(gold, predicted, average="macro")
    found = score_answers("Classification-F1", predicted, [[label] for label in gold])
    assert found == pytest.approx(expected, rel=1e-14)


@st.composite
def labelled(draw):
    names = draw(st.sampled_from([("unacceptable", "acceptable"), ("no", "yes"), ("c", "a", "b")]))
    row = st.tuples(st.sampled_from(names), st.sampled_from([*names, "?"]))
    return draw(st.lists(row, min_size=1, max_size=20))


@settings(deadline=None)
@given(labelled())
def test_matthews_equals_scikit_learn(rows):
    gold, predicted = zip(*rows, strict=True)
    names = sorted(set(gold))
    one = "acceptable" if "acceptable" in names else names[0]
    pairs = (
        (gold, predicted) if len(names) > 2 else [[x == one for x in y] for y in (gold, predicted)]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a single class
        expected = matthews_corrcoef(*pairs)
    found = score_answers("Matthew-Correlation", predicted, [[label] for label in gold])
    assert found == pytest.approx(expected, rel=1e-14)


# Answers that a model writes: long runs of digits, and numbers that single precision cannot tell
# apart or has no room for.
numbers = st.one_of(
    st.integers(-9, 9).map(str),
    st.integers(16_777_200, 16_777_230).map(str),
    st.integers(1, 60).map(lambda n: "9" * n),
    st.floats(-1e300, 1e300).map(str),
    st.sampled_from(
        ["1e-300", "0.1", "1_0", "\u0663", "+4", "-0", "9" * 400, "inf", "nan", "?", ""]
    ),
)


@settings(deadline=None)
@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=8))
@example([("1", "9" * 40), ("2", "3"), ("3", "2")])
@example([(str(n), str(16_777_216 + n**2)) for n in range(5)])
@example([("1", "9" * 400), ("2", "3")])
@example([("1", "0.1"), ("2", "0.1"), ("3", "0.1")])
@example([(str(n), "0." + "1" * 40) for n in range(5)])
def test_pearson_of_any_numbers_equals_scipy(rows):
    gold, predicted = zip(*rows, strict=True)
    found = score_answers("Pearson-Correlation", predicted, [[label] for label in gold])
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        expected = pearsonr([as_number(x) for x in gold], [as_number(x) for x in predicted])[0]
    assert found == pytest.approx(expected, abs=1e-12, nan_ok=True)


def as_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", METRICS)
def test_a_model_in_half_precision_scores_as_exactly(name, dtype):
    predictions, references = rows(name)
    predictions, references = predictions * 100, references * 100
    # Training with such weights casts all that the module holds.
    metric = torch.nn.ModuleList([build_metric(name)]).to(dtype)[0]
    for prediction, accepted in zip(predictions, references, strict=True):
        metric.update([prediction], [accepted])
    found = float(metric.compute())
    assert found == pytest.approx(score_answers(name, predictions, references), nan_ok=True)


@pytest.mark.parametrize(
    ("metric", "answer", "reference", "published", "own"),
    [
        ("EM", "The", "A", 1, 0),
        ("EM", "!=", "==", 1, 0),
        ("EM", "a.", "A", 1, 1),
        ("EM", "the cat", "Cat", 1, 1),
        ("QA-F1", "A", "a", 0, 1),
        ("QA-F1", "!=", "!=", 0, 1),
        ("QA-F1", "the", "the cat", 0, 0),
        ("Rouge-L", "!=", "!=", 0, 1),
        ("Rouge-L", "!=", "==", 0, 0),
        ("ACC", "A", "the", 0, 0),
    ],
)
def test_answers_that_normalisation_would_empty(metric, answer, reference, published, own):
    for kind, expected in ((True, published), (False, own)):
        name = TaskMetric(metric, published=kind)
        assert score_answers(name, [answer], [[reference]]) == expected


@pytest.mark.parametrize(
    ("labels", "options", "published", "positive"),
    [
        (["no", "yes"], ["yes", "no"], False, "yes"),
        (["no", "yes"], [], False, "no"),
        (["acceptable", "unacceptable"], [], True, "acceptable"),  # CoLA
        (["unacceptable", "acceptable"], ["unacceptable", "acceptable"], True, "acceptable"),
        (["unacceptable", "acceptable"], ["unacceptable", "acceptable"], False, "unacceptable"),
        (["no", "maybe"], ["yes", "no", "maybe"], False, None),  # classes
    ],
)
def test_the_positive_label_is_the_first_option(labels, options, published, positive):
    gold, predicted = labels * 3, [*labels, *labels[:1] * 3, "?"]
    name = TaskMetric("Matthew-Correlation", published=published, options=options)
    pairs = [[x if positive is None else x == positive for x in y] for y in (gold, predicted)]
    found = score_answers(name, predicted, [[label] for label in gold])
    assert found == pytest.approx(matthews_corrcoef(*pairs), rel=1e-14)


@pytest.mark.parametrize("name", METRICS)
def test_without_rows_the_score_is_undefined_and_silent(name):
    metric = build_metric(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.isnan(metric.compute())
    metric.update(["1"], [["1"]])
    metric.reset()
    assert torch.isnan(metric.compute())


def test_an_unknown_name():
    with pytest.raises(ValueError, match=r"\('Rouge'\) must be one of exact, .*mean 'Rouge-L' or"):
        build_metric("Rouge")


def rows(name):
    predictions = ["1", "2.5", "acceptable", "été", "4"]
    if name == "token-probability":  # losses
        predictions = ["1", "2.5", "0.5 3", "", "4"]
    references = [["1"], ["2", "2.5"], ["acceptable"], ["the été", "x"], ["5"]]
    return predictions, references


def _score_on_one_process(rank, folder, n_rows, expected):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    for name in METRICS:
        metric, (predictions, references) = build_metric(name), rows(name)
        # The first process holds the first rows, the second what is left: maybe none.
        share = slice(0, n_rows) if rank == 0 else slice(n_rows, None)
        if predictions[share]:
            metric.update(predictions[share], references[share])
        found = float(metric.compute())
        assert found == pytest.approx(expected[name], nan_ok=True), name
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize(
    "n_rows", [2, pytest.param(5, marks=pytest.mark.slow)], ids=["uneven", "one without rows"]
)
def test_two_processes_equal_one(tmp_path: Path, n_rows):
    expected = {name: score_answers(name, *rows(name)) for name in METRICS}
    run_processes(_score_on_one_process, str(tmp_path), n_rows, expected)


class Copies(torch.nn.Module):
    """A custom metric with an argument `rows`."""

    def update(self, predictions, references, rows):
        self.seen = [*zip(predictions, references, rows, strict=True)]


def test_a_metric_with_an_argument_rows_receives_whole_rows():
    metric, name = Copies(), TaskMetric("m:Copies", published=False, options=["yes", "no"])
    sources = [{"input": "is it?", "columns": {"id": 7}}]
    add_answers(metric, name, ["yes"], [("no", "never")], sources)
    whole = {"input": "is it?", "columns": {"id": 7}, "references": ["no", "never"]}
    assert metric.seen == [("yes", ("no", "never"), {**whole, "options": ["yes", "no"]})]


@pytest.mark.parametrize(
    ("metric", "answers", "message"),
    [
        ("EM", ["stop", "GO"], ""),  # one of twenty
        ("EM", ["stop", "go", "-5"], "EM counts 3 of 20 answers of 'capitals' as right"),
        ("ACC", ["stop", "go"], "differ from their references in case, such as 'stop' for 'STOP'"),
        ("exact", ["stop", "go", "5"], ""),
        ("json", [" 1", "2 "], ""),
    ],
)
def test_answers_that_differ_only_by_what_a_metric_ignores(metric, answers, message):
    found = [*answers, *["same"] * (20 - len(answers))]
    right = [[text.upper().lstrip("-")] for text in answers] + [["same"]] * (20 - len(answers))
    own = TaskMetric(metric, published=False)
    warning = ignored_differences(own, "capitals", found, right)
    assert message in warning
    assert bool(message) is bool(warning)
    assert not ignored_differences(TaskMetric(metric), "published", found, right)
