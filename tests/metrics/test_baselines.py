import pytest

from mttl.training.report import copy_predictions, majority_prediction


def test_copy():
    assert copy_predictions(("a", "b")) == ["a", "b"]


def test_majority_takes_the_first_of_equals():
    assert majority_prediction(["x", "y", "y", "x", "z"]) == "x"
    assert majority_prediction(["x", "y", "y"]) == "y"


def test_majority_of_nothing():
    with pytest.raises(ValueError, match="outputs is empty"):
        majority_prediction([])
