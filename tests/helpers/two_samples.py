"""Do two samples of categories come from one distribution? How large a difference would show?"""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, cast

import numpy as np
from scipy import optimize, stats


def p_value(one: Sequence[Hashable], other: Sequence[Hashable]) -> tuple[float, int]:
    """Pearson's chi-squared test of homogeneity, and its degrees of freedom.

    Categories expected fewer than five times in either sample are taken together, as usual; with
    a single category left there is nothing to compare, and the value is 1.
    """
    counts = Counter(one), Counter(other)
    table = np.array([[count[key] for key in counts[0] | counts[1]] for count in counts], float)
    expected = table.sum(0) * table.sum(1, keepdims=True).min() / table.sum()
    rare = expected < 5
    table = np.column_stack([table[:, ~rare], table[:, rare].sum(1)])
    table = table[:, table.sum(0) > 0]
    if table.shape[1] < 2:
        return 1.0, 0
    result: Any = stats.chi2_contingency(table, correction=False)
    return float(result.pvalue), int(result.dof)


def detectable(n: int, dof: int, significance: float, power: float) -> float:
    """Return the effect (Cohen's w) that the test finds with the given power.

    Args:
        n: Size of each of the two samples.
        dof: Degrees of freedom.
        significance: Probability of an alarm where there is no difference.
        power: Probability of an alarm where there is that effect.
    """
    threshold = stats.chi2.isf(significance, dof)

    def lacking(w: float) -> float:
        return float(stats.ncx2.sf(threshold, dof, 2 * n * w**2)) - power

    effect = cast(Any, optimize.brentq(lacking, 1e-6, 10.0))
    return float(effect)
