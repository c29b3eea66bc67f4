"""The page in a real browser, with 160 tasks: what a reader clicks, types and steps through."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.browser import (
    CONTROL,
    DOWN,
    ENTER,
    ESCAPE,
    HOME,
    IN_A_BROWSER,
    RIGHT,
    TAB,
    UP,
    Page,
)
from mttl.analysis.explore.explore_page import explore_page
from mttl.analysis.routing_view import RoutingView

pytestmark = IN_A_BROWSER
NASTY = "<b>bold</b> & </script>"
ADAPTED = "new-13-1"
HEAD = "task,split,sample,seed,metric,score,n\n"


@pytest.fixture(scope="module")
def view(crossfit_view: RoutingView, tmp_path_factory: pytest.TempPathFactory) -> RoutingView:
    """A run of 160 tasks with all that a page can show; the first task's name is markup."""
    folder = tmp_path_factory.mktemp("page") / "many"
    tasks = (NASTY, *crossfit_view.record.tasks[1:])
    record = replace(crossfit_view.record, folder=folder, tasks=tasks)
    shown = replace(crossfit_view, record=record)
    (folder / "predictions").mkdir(parents=True)
    (folder / "plots").mkdir()
    (folder / "plots" / "routing.npz").touch()
    scores = [f'"{task}",test,1,0,EM,{n / 160},9\n' for n, task in enumerate(tasks)]
    (folder / "results.csv").write_text(HEAD + "".join(scores) + "mean,test,all,0,mean,0.5,9\n")
    copies = [f'copy,"{task}",test,1,0,EM,0.1,9\n' for task in tasks]
    (folder / "baselines.csv").write_text(f"baseline,{HEAD}" + "".join(copies))
    points = [f"{step},{5 / (1 + step)},{step / 900},0.5\n" for step in range(0, 900, 30)]
    (folder / "metrics.csv").write_text(
        f"step,train/loss,val/score,val/{tasks[1]}/score\n" + "".join(points)
    )
    answers = [
        {"sample": 1, "input": f"{NASTY} {n}", "references": ["yes"], "prediction": answer}
        for n, answer in enumerate(["no", "yes"] * 5)
    ]
    path = folder / "predictions" / f"{tasks[1]}_test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in answers))
    changes = np.zeros((1, 160, 8))
    changes[0, :, 2], changes[0, 1, 4] = -0.25, 0.125
    (folder / "ablation").mkdir()
    np.savez(
        folder / "ablation" / "ablation.npz",
        **{"losses": -changes, "scores": changes, "tasks": np.array(tasks)},
        **dict.fromkeys(("losses_before", "scores_before"), np.zeros(160)),
        layers=np.array(["all layers"]),
        groups=np.array(record.groups),
        pairs=shown.pairs,
    )
    place = folder / "adapt-all" / "models" / ADAPTED
    (place / "plots").mkdir(parents=True)
    (place / "results.csv").write_text(HEAD + "new,test,13,1,EM,0.5,5\n")
    ways = np.linspace(0, 1, 6)[:, None, None, None]
    start, end = record.weights[:, 3:4], record.weights[:, 90:91]
    np.savez(
        place / "plots" / "routing_history.npz",
        steps=np.arange(0, 60, 10),
        weights=(1 - ways) * start + ways * end,
        score_steps=np.array([0, 30, 50]),
        scores=np.array([0.0, 0.2, 0.6]),
    )
    return shown


class RunPage(Page):
    """The open page of a run."""

    def __init__(self, driver: Any, view: RoutingView, path: Path) -> None:
        super().__init__(driver, path.as_uri())
        self.view = view


@pytest.fixture
def page(driver: Any, view: RoutingView, tmp_path: Path) -> Iterator[RunPage]:
    path = tmp_path / "explore.html"
    path.write_text(explore_page([view]), encoding="utf-8")
    opened = RunPage(driver, view, path)
    opened.resize(1300)
    yield opened
    assert driver.get_log("browser") == []
    # Nothing was fetched.
    assert opened.run("return performance.getEntriesByType('resource').length") == 0
    assert opened.all("#live") == []


def test_it_opens_on_scores_beside_baselines_in_the_order_of_the_tree(page: RunPage) -> None:
    names = [page.view.record.tasks[task] for task in page.view.order]
    assert page.column(0) == [*names, ADAPTED]
    assert page.text("#summary") == "160 tasks, 8 skills, 8 groups of layers, 1 adapted task"
    assert page.text("#found") == "161 of 161 tasks"
    bar = page.find("#scores tbody tr .bar")
    assert bar.get_attribute("aria-label") == "50.0"
    page.run("arguments[0].click()", page.find("#scores thead th:nth-child(3) button"))
    assert page.column(3)[:2] == ["99.4", "98.8"]
    page.run("arguments[0].click()", page.find("#scores thead th:nth-child(3) button"))
    assert page.column(3)[-1] == "99.4"
    assert page.find("#scores thead th:nth-child(3)").get_attribute("aria-sort") == "ascending"
    charts = [chart.get_attribute("aria-label") for chart in page.all("#curves svg")]
    assert [label.partition(".")[0] for label in charts] == ["train/loss", "val/score"]


def test_a_click_opens_a_task_and_it_leads_on(page: RunPage) -> None:
    task = page.view.record.tasks[1]
    page.run(
        "arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))",
        page.find(f'#maps g[data-task="{task}"]'),
    )
    page.wait(lambda: page.chosen() == task)
    assert page.weights() == pytest.approx(page.view.mean[1], abs=6e-4)
    changes = [cell.text for cell in page.all("#panel .weights td:nth-child(4)")]
    assert [changes[2], changes[4], changes[0]] == ["-25.0", "+12.5", "0.00"]
    assert "5 of 10 are an accepted answer" in page.text("#panel")
    assert [chart.get_attribute("aria-label")[:5] for chart in page.all("#panel svg")] == ["score"]
    for name, n_rows, n_wrong in (("all", 10, 5), ("wrong", 5, 5), ("right", 5, 0)):
        page.run("arguments[0].click()", page.find(f"#panel input[value={name}]"))
        assert len(page.all("#panel .answers li")) == n_rows
        assert len(page.all("#panel .answers .wrong")) == n_wrong
    nearest = page.find("#panel li button")
    name = nearest.text
    page.run("arguments[0].click()", nearest)
    page.wait(lambda: page.chosen() == name)


def test_searching_filters_and_enter_selects(page: RunPage) -> None:
    search = page.find("#search")
    search.send_keys("BLIMP-ell")
    page.wait(lambda: page.text("#found") == "2 of 161 tasks")
    assert sorted(page.column(0)) == ["blimp-ellipsis_n_bar_1", "blimp-ellipsis_n_bar_2"]
    first = page.column(0)[0]
    search.send_keys(ENTER)
    page.wait(lambda: page.chosen() == first)
    search.send_keys(CONTROL, "a")
    search.send_keys("no such task")
    page.wait(lambda: page.text("#found") == "0 of 161 tasks")
    page.run("find('classification/nli')")
    expected = page.view.categories.count("classification/nli")
    page.wait(lambda: page.text("#found") == f"{expected} of 161 tasks")


def test_layers_are_switched(page: RunPage) -> None:
    task = int(page.view.order[0])
    page.run("select(arguments[0])", page.view.record.tasks[task])
    from selenium.webdriver.support.select import Select

    choice = Select(page.find("#layer"))
    assert choice.first_selected_option.text == "mean over all, skills matched"
    stacks = [stack.get_attribute("label") for stack in page.all("#layer optgroup")]
    assert stacks == ["encoder", "decoder"]
    name = page.view.record.groups[5]
    choice.select_by_visible_text(name)
    page.wait(lambda: f"Skills in {name}" in page.text("#panel"))
    own = page.view.record.weights[5, task][page.view.pairs[5]]
    assert page.weights() == pytest.approx(own, abs=6e-4)
    titles = [drawn.get_attribute("data-title") for drawn in page.all("#matrices canvas")]
    assert titles == ["mixing weight", "score without it"]


def test_training_is_stepped_through_with_the_keyboard(page: RunPage) -> None:
    task = int(page.view.order[0])
    page.run("select(arguments[0])", page.view.record.tasks[task])
    assert page.text("#moment") == "kept weights"
    spot = f'#maps g[data-task="{page.view.record.tasks[task]}"]'
    before = page.find(spot).get_attribute("transform")
    slider = page.find("#step")
    slider.send_keys(HOME)
    page.wait(lambda: page.text("#moment") == "step 0")
    assert page.weights() == pytest.approx([1 / 8] * 8, abs=6e-4)
    slider.send_keys(RIGHT)
    page.wait(lambda: page.text("#moment") == "step 500")
    assert page.find(spot).get_attribute("transform") != before
    page.run("arguments[0].click()", page.find("#play"))
    page.wait(lambda: page.text("#moment") == "kept weights")


def test_a_new_task_settles_on_the_map(page: RunPage) -> None:
    page.find("#search").send_keys(ADAPTED, ENTER)
    page.wait(lambda: page.chosen() == ADAPTED)
    spot = f'#maps g[data-task="{ADAPTED}"]'
    end = page.find(spot).get_attribute("transform")
    page.find("#record").send_keys(HOME)
    page.wait(lambda: page.find(spot).get_attribute("transform") != end)
    # It began where the fourth task is, whose row it started as.
    page.run("find('')")
    other = page.find(f'#maps g[data-task="{page.view.record.tasks[3]}"]')
    place, target = (
        np.array([float(number) for number in text[10:-1].split()])
        for text in (page.find(spot).get_attribute("transform"), other.get_attribute("transform"))
    )
    np.testing.assert_allclose(place, target, atol=0.2)
    assert "step 0" in page.text("#panel output")
    assert len(page.all("#maps .trail")) == 1


@pytest.mark.parametrize("part", ["trees", "matrices", "maps"])
def test_arrow_keys_go_from_task_to_task(page: RunPage, part: str) -> None:
    first = page.view.record.tasks[page.view.order[0]]
    page.run("select(arguments[0])", first)
    page.run("arguments[0].focus()", page.find(f"#{part} [tabindex='0'][role=group]"))
    seen = {first}
    for key in (DOWN, DOWN, UP, DOWN):
        page.driver.switch_to.active_element.send_keys(key)  # the focus stays on the part
        seen.add(page.chosen())
    assert len(seen) > 1
    if part != "maps":
        assert page.chosen() == page.view.record.tasks[page.view.order[2]]


def lit(page: RunPage, part: str) -> set[str]:
    marks = page.all(f"#{part} .lit")
    return {
        mark.get_attribute("data-task") or mark.get_attribute("data-category") for mark in marks
    }


def test_a_narrow_page_has_search_legend_and_keys(page: RunPage) -> None:
    page.resize(390)
    page.driver.refresh()
    wide = "return document.documentElement.scrollWidth"
    assert page.run(wide) <= 390
    tasks, categories = page.view.record.tasks, page.view.categories

    # The search leaves one task in every view; Escape brings back the others.
    name = "blimp-ellipsis_n_bar_1"
    page.find("#search").send_keys(name)
    page.wait(lambda: page.text("#found") == "1 of 161 tasks")
    assert page.column(0) == [name]
    for part in ("maps g", "trees g", "matrices .name"):
        found = page.all(f"#{part}[data-task]:not(.faded)")
        assert [mark.get_attribute("data-task") for mark in found] == [name]
    page.find("#search").send_keys(ENTER, ESCAPE)
    page.wait(lambda: page.text("#found") == "161 of 161 tasks")
    assert page.chosen() == name
    assert page.run(wide) <= 390

    # From the legend to the marks, and back.
    category = categories[5]
    own = {task for task, other in zip(tasks, categories, strict=True) if other == category}
    page.run("arguments[0].focus()", page.find(f'#legend [data-category="{category}"]'))
    for part in ("maps", "trees", "matrices", "scores"):
        assert lit(page, part) == own
    spot = page.find(f'#maps g[data-task="{tasks[5]}"]')
    page.run("arguments[0].dispatchEvent(new Event('pointerover', {bubbles: true}))", spot)
    assert lit(page, "legend") == {category}
    assert lit(page, "trees") == {tasks[5]}

    # Tab reaches all controls, with a visible focus.
    page.run("document.querySelector('.skip').focus()")
    reached = {}
    script = """const one = document.activeElement, style = getComputedStyle(one);
        return [one.id || one.dataset.key || one.dataset.category || one.textContent,
                style.outlineStyle]"""
    for _ in range(70):
        page.driver.switch_to.active_element.send_keys(TAB)
        key, outline = page.run(script)
        reached.setdefault(key, outline)
    parts = {"search", "step", "play", "scores", "maps0", "trees0", "layer", "matrices0"}
    sorts = {f"sort-{key}" for key in ("name", "score", "last")}  # categories have no room here
    assert set(reached) >= parts | sorts | set(categories)
    assert {reached[key] for key in parts | sorts | set(categories)} <= {"solid", "auto"}

    # Arrows walk through the table; Escape ends the choice.
    page.find("#scores").send_keys(HOME)
    page.driver.switch_to.active_element.send_keys(DOWN)
    assert page.chosen() == page.column(0)[1]
    assert page.run("return document.activeElement.id") == "scores"
    page.driver.switch_to.active_element.send_keys(ESCAPE)
    assert page.chosen() == "Choose a task"


def test_runs_stand_side_by_side(driver: Any, view: RoutingView, tmp_path: Path) -> None:
    other = replace(view, record=replace(view.record, folder=tmp_path / "other", history=None))
    path = tmp_path / "two.html"
    path.write_text(explore_page([view, other]), encoding="utf-8")
    page = RunPage(driver, view, path)
    for part in ("maps", "trees", "matrices"):
        captions = [caption.text for caption in page.all(f"#{part} > figure > figcaption")]
        assert captions == ["many", "other"]
    page.run("select(arguments[0])", view.record.tasks[1])
    assert [title.text for title in page.all("#panel h2")][1:] == ["many", "other"]
    assert "matched to those of many" in page.text("#skills-what")
    assert driver.get_log("browser") == []
