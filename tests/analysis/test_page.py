"""What the page carries; test_page_in_browser.py looks at it in a browser."""

import base64
import html
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plotly.offline
import pytest

from mttl.analysis.page import MOST_STEPS, routing_page
from mttl.analysis.routing_record import RoutingHistory, RoutingRecord
from mttl.analysis.routing_view import RoutingView

NASTY = ("</script><script>alert(1)</script>", 'quo"ted & <b>bold</b>', "back\\slash '{{DATA}}'")


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for plotly's five megabytes; braces must not be taken for names to fill in."""
    monkeypatch.setattr(plotly.offline, "get_plotlyjs", lambda: "/* plotly \\1 {{TITLE}} */")


def page_of(view: RoutingView) -> str:
    return routing_page(
        view.record, categories=view.categories, similarity=view.similarity, order=view.order
    )


def data_of(page: str) -> dict[str, Any]:
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert len(found) == 1
    return json.loads(found[0])


def nasty_view() -> RoutingView:
    weights = np.random.default_rng(0).uniform(size=(2, 3, 4))
    folder = Path("/tmp/<run> & more")
    record = RoutingRecord(folder, NASTY, ("a", "</script>"), weights, None, {})
    return RoutingView(record, weights, ("x", "<i>y</i>", "unknown"))


def test_data_come_back_whole(crossfit_view: RoutingView) -> None:
    record = crossfit_view.record
    data = data_of(page_of(crossfit_view))
    assert [task["name"] for task in data["tasks"]] == list(record.tasks)
    assert [task["category"] for task in data["tasks"]] == list(crossfit_view.categories)
    assert data["order"] == crossfit_view.order.tolist()
    assert [group["stack"] for group in data["groups"]] == ["encoder"] * 4 + ["decoder"] * 4
    assert data["steps"] == ["step 0", "step 500", "step 1,000", "kept weights"]
    found = np.frombuffer(base64.b64decode(data["weights"]), "<f4").reshape(4, 8, 160, 8)
    assert record.history is not None
    np.testing.assert_allclose(found[:3], record.history.weights, rtol=1e-6)
    np.testing.assert_allclose(found[3], record.weights, rtol=1e-6)
    nearest, value = data["tasks"][5]["nearest"][0]
    row = np.delete(crossfit_view.similarity[5], 5)
    assert value == pytest.approx(row.max(), abs=1e-3)
    assert crossfit_view.similarity[5, nearest] == row.max()


def test_a_run_without_history_has_its_kept_weights_only() -> None:
    assert data_of(page_of(nasty_view()))["steps"] == ["kept weights"]


def test_a_long_history_is_thinned_out_with_both_ends(crossfit_view: RoutingView) -> None:
    steps = np.arange(100)
    weights = np.zeros((100, *crossfit_view.record.weights.shape), dtype=np.float32)
    record = replace(crossfit_view.record, history=RoutingHistory(steps, weights))
    found = data_of(page_of(replace(crossfit_view, record=record)))["steps"]
    assert len(found) == MOST_STEPS + 1
    assert (found[0], found[-2]) == ("step 0", "step 99")


def test_names_cannot_leave_their_place() -> None:
    page = page_of(nasty_view())
    data = data_of(page)
    assert [task["name"] for task in data["tasks"]] == list(NASTY)
    assert data["groups"][1]["name"] == "</script>"
    assert page.count("</script>") == 3  # library, data, program
    assert "<script>alert" not in page
    assert f"<title>{html.escape('Routing of <run> & more')}</title>" in page
    assert "/* plotly \\1 {{TITLE}} */" in page


def test_the_page_needs_nothing_from_outside() -> None:
    page = page_of(nasty_view())
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert "http" not in page
