"""What the page carries; test_explore_in_browser.py looks at it in a browser."""

import base64
import html
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mttl.analysis.explore.explore_page import (
    LIVE_PARTS,
    MOST_STEPS,
    PARTS,
    TASK_TERMS,
    explore_page,
    html_text,
)
from mttl.analysis.routing_record import RoutingHistory, RoutingRecord
from mttl.analysis.routing_view import RoutingView
from mttl.analysis.skill_matching import matched
from mttl.commands import explore as SCRIPT
from mttl.io.errors import ConfigError
from mttl.runtime.command import USER_MISTAKE, run_command

NASTY = ("</script><script>alert(1)</script>", 'quo"ted & <b>bold</b>', "back\\slash '{{DATA}}'")


def data_of(page: str) -> list[dict[str, Any]]:
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert len(found) == 1
    return json.loads(found[0])["runs"]


def unpacked(packed: dict[str, Any]) -> np.ndarray:
    steps = np.frombuffer(base64.b64decode(packed["data"]), "<u2").reshape(packed["shape"])
    return packed["low"] + (packed["high"] - packed["low"]) * steps / 65535


def nasty_view() -> RoutingView:
    weights = np.random.default_rng(0).uniform(size=(2, 3, 4))
    folder = Path("/tmp/<run> & more")
    record = RoutingRecord(folder, NASTY, ("a", "</script>"), weights, weights)
    return RoutingView(record, ("x", "<i>y</i>", "unknown"))


def test_data_come_back_whole(crossfit_view: RoutingView) -> None:
    record, pairs = crossfit_view.record, crossfit_view.pairs
    (data,) = data_of(explore_page([crossfit_view]))
    assert [task["name"] for task in data["tasks"]] == list(record.tasks)
    assert [task["category"] for task in data["tasks"]] == list(crossfit_view.categories)
    assert data["order"] == crossfit_view.order.tolist()
    assert [group["stack"] for group in data["groups"]] == ["encoder"] * 4 + ["decoder"] * 4
    assert data["steps"] == ["step 0", "step 500", "step 1,000", "kept weights"]
    # Skills stand in the order that is common to all groups; 16 bits are fine enough.
    weights = unpacked(data["weights"])
    np.testing.assert_allclose(weights, matched(record.weights, pairs), atol=1e-5)
    assert record.history is not None
    means = unpacked(data["means"])
    np.testing.assert_allclose(
        means[1], matched(record.history.weights[1], pairs).mean(0), atol=1e-5
    )
    np.testing.assert_allclose(means[3], crossfit_view.mean, atol=1e-5)
    # The kept weights are where the map has its points.
    np.testing.assert_allclose(data["places"][3], data["points"], atol=1e-3)
    nearest, value = data["tasks"][5]["nearest"][0]
    row = np.delete(crossfit_view.similarity[5], 5)
    assert value == pytest.approx(row.max(), abs=1e-3)
    assert crossfit_view.similarity[5, nearest] == row.max()
    assert len(data["joints"]) == 159


def test_a_long_history_is_thinned_out_with_both_ends() -> None:
    view = nasty_view()
    history = RoutingHistory(np.arange(100), np.zeros((100, *view.record.weights.shape)))
    (data,) = data_of(explore_page([replace(view, record=replace(view.record, history=history))]))
    assert len(data["steps"]) == MOST_STEPS + 1
    assert (data["steps"][0], data["steps"][-2]) == ("step 0", "step 99")


def test_every_category_has_a_marker_on_the_page(crossfit_view: RoutingView) -> None:
    (data,) = data_of(explore_page([crossfit_view]))
    looks = list(data["looks"].values())
    assert len({(fill, marker) for fill, _, marker in looks}) == len(looks) > 7
    shapes = html_text("core.js").partition("const MARKERS = {")[2].partition("};")[0]
    for _, _, marker in looks:
        assert re.search(rf'(^|[{{,]) *"?{re.escape(marker)}"?: ', shapes, re.M), marker


def test_skills_of_a_further_run_are_matched_to_the_first(crossfit_view: RoutingView) -> None:
    """The other run is the same, with its tasks, groups and skills in other orders."""
    record = crossfit_view.record
    generator = np.random.default_rng(1)
    tasks, groups = generator.permutation(160), generator.permutation(8)
    shuffled = np.stack([group[:, generator.permutation(8)] for group in record.weights])
    cells = np.ix_(groups, tasks)
    changed = {"weights": shuffled[cells], "probabilities": shuffled[cells], "history": None}
    changed |= {"tasks": tuple(record.tasks[task] for task in tasks)}
    changed |= {"groups": tuple(record.groups[group] for group in groups)}
    categories = tuple(crossfit_view.categories[task] for task in tasks)
    other = RoutingView(replace(record, folder=Path("other"), **changed), categories)
    first, second = data_of(explore_page([crossfit_view, other]))
    assert second["note"] == "Skills are matched to those of crossfit."
    ours, theirs = unpacked(first["weights"]), unpacked(second["weights"])
    np.testing.assert_allclose(theirs, ours[cells], atol=1e-4)
    fewer = replace(record, groups=("x", *record.groups[1:]))
    stranger = data_of(explore_page([crossfit_view, replace(crossfit_view, record=fewer)]))[1]
    assert "tasks, layers or skills differ" in stranger["note"]


def test_names_cannot_leave_their_place_and_nothing_from_outside_is_needed() -> None:
    page = explore_page([nasty_view()])
    (data,) = data_of(page)
    assert [task["name"] for task in data["tasks"]] == list(NASTY)
    assert data["groups"][1]["name"] == "</script>"
    assert page.count("</script>") == 2  # data, program
    assert "<script>alert" not in page
    assert f"<title>{html.escape('<run> & more')}</title>" in page
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", page)
    assert page.replace("http://www.w3.org/2000/svg", "").count("http") == 0
    for part in (*PARTS, *LIVE_PARTS):
        assert "innerHTML" not in html_text(part)  # what is put in is text
    assert "fetch(" not in page  # nor does it ask anybody, unless it is served
    served = explore_page([nasty_view()], {"tasks": []})
    assert served.count('fetch("live"') == 1
    assert 'id="live-text"' in served
    assert json.loads(re.findall(r'id="data">(.*?)</script>', served)[0])["live"] == {"tasks": []}


def test_a_page_of_policies_has_levels_and_no_tasks() -> None:
    view = nasty_view()
    shells = [
        explore_page([replace(view, policies=policies)])
        .partition("</style>")[2]
        .partition('id="data"')
        for policies in (True, False)
    ]
    (levels, _, rest), (tasks, _, _) = shells
    assert "task" not in levels.lower()
    assert "Success rates of levels" in levels
    for name in ("task", "category", "scores", "about"):
        assert TASK_TERMS[name] in tasks
        assert TASK_TERMS[name] not in levels
    assert '"task": "level"' in rest
    # Scripts look up elements that the page has.
    scripts = "".join(html_text(name) for name in PARTS if name.endswith(".js"))
    asked = set(re.findall(r'byId\("([\w-]+)"\)', scripts))
    assert asked <= set(re.findall(r' id="([\w-]+)"', tasks))


def test_the_command_writes_what_is_there(write_run, tmp_path, capsys) -> None:
    run = write_run(tmp_path / "run")
    assert run_command(lambda: SCRIPT.main([str(run)])) == 0
    (data,) = data_of((run / "plots" / "explore.html").read_text())
    assert (data["nTasks"], data["mean"], data["ablation"]) == (4, [], None)
    other = write_run(tmp_path / "other", seed=1)
    both = tmp_path / "both.html"
    assert run_command(lambda: SCRIPT.main([str(run), str(other), "--html", str(both)])) == 0
    assert [found["name"] for found in data_of(both.read_text())] == ["run", "other"]


def test_what_is_served_is_one_run_and_says_why_it_cannot_answer(
    write_run, tmp_path, capsys, monkeypatch
) -> None:
    """The run has figures and a router, and no model."""
    run, served = str(write_run(tmp_path / "run")), {}
    monkeypatch.setattr(
        "mttl.serving.live_page.answer_requests",
        lambda _, service, notices, routes: served.update(
            tasks=service.tasks, told=notices("/"), page=routes.args[0]
        ),
    )
    assert run_command(lambda: SCRIPT.main([run, "--serve", "--port", "0"])) == 0
    assert served["tasks"] == {}
    (line, reason) = served["told"]
    assert (line, reason) == (f"exploring '{run}' at /", f"The run cannot answer: {reason[23:]}")
    assert "' has policies and no language model" in reason
    assert json.loads(re.findall(r'id="data">(.*?)</script>', served["page"])[0])["live"] == {
        "problem": reason
    }
    for given, told in (
        ((run, str(tmp_path), "--serve"), "--serve takes one RUN and does not write --html;"),
        ((run, "--serve", "--html", "x.html"), "--serve takes one RUN and does not write --html;"),
        ((run, "--adapted", "x"), "--adapted needs --serve; add --serve or remove --adapted"),
    ):
        with pytest.raises(ConfigError, match=told):
            SCRIPT.main(list(given))
    monkeypatch.setattr(
        "mttl.runtime.libraries.missing_libraries",
        lambda *names: [x for x in names if x == "uvicorn"],
    )
    assert run_command(lambda: SCRIPT.main([run, "--serve"])) == USER_MISTAKE
    assert "missing libraries; install them with: pip install uvicorn" in capsys.readouterr().err
