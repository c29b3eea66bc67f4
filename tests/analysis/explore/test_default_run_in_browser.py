"""A run like the default one in a browser: all that the page can show, and the run behind it."""

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import mttl
from helpers.browser import ENTER, IN_A_BROWSER, UNNAMED, Page
from helpers.gyms import make_run
from helpers.new_tasks import NEW, train_source
from helpers.serving import BACKBONES, started
from mttl.__main__ import main

pytestmark = IN_A_BROWSER
TASKS = ["copy", "reverse", "number"]
# Random weights that are large: answers depend on the question without any training.
LARGE = ("backbone.initial_scale={'*': 3.0}", "trainer.val_check_interval=1")
ADAPT = ("adapt.max_steps=4", "adapt.eval_every=2", "adapt.batch_size=4", "adapt.mode=router_only")


def call(*given: object) -> None:
    assert main([str(argument) for argument in given]) == 0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was ablated, and from which two tasks were adapted and kept."""
    folder = tmp_path_factory.mktemp("default")
    run = train_source(folder, settings=LARGE)
    call("ablate", run, "--rows", 4)
    given = ("-c", folder / "tiny.yaml", "--from", run, "--samples", 13, "--save", "-k", *ADAPT)
    call("adapt", *given)
    return run


@contextmanager
def served(*given: object) -> Iterator[str]:
    """Serve a page in a process of its own; Ctrl-C ends it with a line."""
    with started("explore", *given, "--serve") as (process, address):
        yield f"{address}/"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stderr
        told = process.stderr.read()
        assert "finishing accepted requests; press again to stop immediately" in told
        assert "Traceback" not in told


def look_around(page: Page, run: Path) -> None:
    """Click through what the page shows of a run."""
    adapted = [f"{task}-13-13" for task in NEW]
    assert sorted(page.column(0)) == sorted([*TASKS, *adapted])
    assert "3 tasks, 3 skills" in page.text("#summary")
    assert "2 adapted tasks" in page.text("#summary")
    assert len(page.all("#curves svg")) == 3
    assert len(page.all("#matrices canvas")) == 2
    assert len(page.all("#maps .trail")) == 2
    page.run("select(arguments[0])", TASKS[0])
    assert len(page.all("#panel .weights td:nth-child(4)")) == 3
    assert "are an accepted answer, compared exactly" in page.text("#panel")
    assert page.run(UNNAMED) == []
    for width in (400, 900, 1600):
        for dark in (False, True):
            page.resize(width, dark=dark)
            assert page.run("return document.documentElement.scrollWidth") <= width
    page.resize(1300)


def ask(page: Page, text: str) -> str:
    """Write a question and press Enter; return what is shown."""
    field = page.find("#live-text")
    field.clear()
    field.send_keys(text, ENTER)
    page.wait(lambda: "Asking" not in page.text("#live-answer"), 60)
    return page.text("#live-answer")


def slide(page: Page, field: str, value: float) -> None:
    page.run(
        """arguments[0].value = arguments[1];
        arguments[0].dispatchEvent(new Event('input', {bubbles: true}))""",
        page.find(f"#{field}"),
        value,
    )


def choose(page: Page, field: str, value: str) -> None:
    from selenium.webdriver.support.select import Select

    Select(page.find(f"#{field}")).select_by_value(value)


def test_served_it_asks_the_run(driver: Any, run: Path) -> None:
    loaded = mttl.load(run)
    adapted = sorted((run / "adapt-router_only" / "models").iterdir())
    with served(run, "--adapted", *adapted) as address:
        page = Page(driver, address)
        page.resize(1300)
        look_around(page, run)

        # A task that is chosen anywhere is asked; the other way round, too.
        page.run("select('reverse')")
        assert page.find("#live-task").get_property("value") == "reverse"
        choose(page, "live-task", "copy")
        assert page.chosen() == "copy"
        (own,) = loaded.predict("copy", ["cab"])
        shown = ask(page, "cab")
        assert (own or "(nothing)") == shown.splitlines()[0]
        assert "The run read “[copy] cab” and answered with its own skills" in shown
        assert "this run has no router of tokens" in page.text("#live-tokens")
        page.click("#live-example")
        assert page.find("#live-text").get_property("value")

        # A mixture of tasks, then custom weights: each begins as the row of the task.
        page.click("#live-ways input[value=tasks]")
        assert ask(page, "cab").splitlines()[0] == shown.splitlines()[0]
        choose(page, "live-add", "twice")  # adapted
        slide(page, "share-0", 0)
        assert "0.00 copy + 0.50 twice" in ask(page, "cab")
        slide(page, "share-1", 0)
        assert "all fractions of tasks are 0; set at least one above 0" in ask(page, "cab")
        page.click("#live-mix button")
        assert len(page.all("#live-mix input[type=range]")) == 1
        page.click("#live-ways input[value=skills]")
        assert ask(page, "cab").splitlines()[0] == shown.splitlines()[0]
        slide(page, "weight-0", 1)
        assert "skills 1.00" in ask(page, "cab")
        choose(page, "live-start", "")
        assert "skills 0.00 0.00 0.00." in ask(page, "cab")
        assert page.run(UNNAMED) == []
        assert len(page.all("#live-past li")) == 6

        # Errors are reported in words.
        assert "tokens with its prefix and template; the maximum is 24, as" in ask(page, "ab" * 40)
        page.run("document.getElementById('live-task').selectedOptions[0].value = 'none'")
        page.run("data.live.tasks[0].name = 'none'; live.way = 'task'")
        assert "there is no model 'none'" in ask(page, "cab")
        assert page.find("#live-answer").get_attribute("aria-live") == "polite"
        assert page.complaints() == []
    assert "The server does not answer" in ask(page, "cab")
    page.complaints()  # the browser notes that nobody listens any more


def test_tokens_are_coloured_by_their_experts(driver: Any, tmp_path: Path) -> None:
    experts = ("moe.n_experts=4", "moe.targets=[mlp]", "moe.experts.rank=2")
    fragment = "+router/token_top2.yaml"
    run = make_run(tmp_path, *experts, fragment=fragment, backbone=BACKBONES["t5"])
    with served(run) as address:
        page = Page(driver, address)
        page.resize(1300)
        shown = ask(page, "cab")
        tokens = page.all("#live-tokens .tokens:first-of-type li.tinted")
        assert len(tokens) >= len("[copy] cab")
        assert re.fullmatch(r"\d\+\d", tokens[0].find_element("css selector", "small").text)
        colour = "return getComputedStyle(arguments[0]).backgroundColor"
        assert page.run(colour, tokens[0]) != "rgba(0, 0, 0, 0)"
        assert "The run routes only tokens" in page.text("#live-mix")
        disabled = [choice.get_property("disabled") for choice in page.all("#live-ways input")]
        assert disabled == [False, True, True]
        choose(page, "live-layer-0", "1")
        assert page.find("#live-layer-0").get_property("value") == "1"
        assert shown == page.text("#live-answer")
        assert page.run(UNNAMED) == []
        assert page.complaints() == []
