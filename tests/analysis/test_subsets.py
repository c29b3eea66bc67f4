import numpy as np

from mttl.analysis.figures.subset_table import skill_subsets


def test_tasks_of_one_subset_stand_together_small_subsets_first() -> None:
    active = np.array([[0, 1, 1], [1, 0, 0], [0, 1, 1], [0, 0, 0], [0, 0, 1]], dtype=bool)
    assert skill_subsets(active) == [((), [3]), ((0,), [1]), ((2,), [4]), ((1, 2), [0, 2])]
