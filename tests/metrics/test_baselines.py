from mttl.training.report import majority_prediction


def test_majority_takes_the_first_of_equals():
    assert majority_prediction(["x", "y", "y", "x", "z"]) == "x"
    assert majority_prediction(["x", "y", "y"]) == "y"
