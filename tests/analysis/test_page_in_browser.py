"""The page in a real browser: what a reader points at, types, chooses and steps through."""

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mttl.analysis.page import routing_page
from mttl.analysis.routing_view import RoutingView

webdriver = pytest.importorskip(
    "selenium.webdriver", reason="needs selenium: pip install -e '.[browser]'"
)
from selenium.webdriver.chrome.options import Options  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.select import Select  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER),
        reason="needs a browser: apt-get install chromium chromium-driver",
    ),
]
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--window-size=1300,900"),
)
NASTY = "<b>bold</b> & </script>"


class Page:
    """The open page."""

    def __init__(self, driver: Any, view: RoutingView, path: Path) -> None:
        self.driver = driver
        self.view = view
        driver.get(path.as_uri())

    def find(self, selector: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.find(selector).text

    def wait(self, condition: Callable[[], Any]) -> Any:
        """Return what the condition gives once it is true."""
        end = time.monotonic() + 10
        while not (found := condition()) and time.monotonic() < end:
            time.sleep(0.05)
        assert found
        return found

    def rows(self) -> list[str]:
        """Return the names of the rows from top to bottom."""
        ticks = self.driver.find_elements(By.CSS_SELECTOR, "#chart .yaxislayer-above .ytick text")
        ordered = sorted(ticks, key=lambda tick: tick.location["y"])
        return [tick.get_attribute("textContent") for tick in ordered]

    def point_at(self, row: int, skill: int) -> ActionChains:
        """Move to a cell of the map, and return what can be done there."""
        self.driver.execute_script("window.scrollTo(0, 0)")
        area = self.find("#chart .nsewdrag").rect
        n_rows, n_skills = max(9, len(self.rows())), self.view.record.weights.shape[2]
        x = area["x"] + area["width"] * (skill + 0.5) / n_skills
        y = area["y"] + area["height"] * (row + 0.5) / n_rows
        actions = ActionChains(self.driver)
        for aside in (2, 0):  # Plotly wants to see the pointer move
            actions.w3c_actions.pointer_action.move_to_location(int(x + aside), int(y))
        actions.perform()
        return actions

    def weights(self) -> list[float]:
        """Return the weights in the panel."""
        cells = self.driver.find_elements(By.CSS_SELECTOR, "#panel td:nth-child(2)")
        return [float(cell.text) for cell in cells]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = Options()
    options.binary_location = str(CHROMIUM)
    for option in (*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    yield started
    started.quit()


@pytest.fixture
def page(driver: Any, crossfit_view: RoutingView, tmp_path: Path) -> Iterator[Page]:
    """Open the page of 160 tasks, the first of them with a name that is markup."""
    view = crossfit_view
    tasks = (NASTY, *view.record.tasks[1:])
    view = replace(view, record=replace(view.record, tasks=tasks))
    path = tmp_path / "routing.html"
    path.write_text(
        routing_page(
            view.record, categories=view.categories, similarity=view.similarity, order=view.order
        ),
        encoding="utf-8",
    )
    opened = Page(driver, view, path)
    yield opened
    assert driver.get_log("browser") == []
    # Nothing was fetched.
    assert driver.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_all_tasks_are_there_in_the_order_of_the_tree(page: Page) -> None:
    names = [page.view.record.tasks[task] for task in page.view.order]
    assert page.rows() == names
    assert page.text("#summary") == "160 tasks, 8 skills, 8 groups of layers"
    assert page.text("#found") == "160 of 160 tasks"


def test_pointing_at_a_cell_says_what_it_is(page: Page) -> None:
    view = page.view
    task = view.order[2]
    page.point_at(2, 5)
    box = page.wait(lambda: page.driver.find_elements(By.CSS_SELECTOR, "#chart .hovertext"))[0]
    text = box.get_attribute("textContent")
    assert text.startswith(view.record.tasks[task] + view.categories[task])
    assert f"skill 5: {view.record.weights.mean(0)[task, 5]:.3f}" in text
    nearest = sorted(range(160), key=lambda other: -view.similarity[task, other])[1]
    assert f"nearest: {view.record.tasks[nearest]}" in text


def test_a_click_opens_the_panel_and_the_panel_leads_on(page: Page) -> None:
    view = page.view
    task = view.order[4]
    page.point_at(4, 0).click().perform()
    page.wait(lambda: page.text("#panel h2") == view.record.tasks[task])
    assert page.weights() == pytest.approx(view.record.weights.mean(0)[task], abs=6e-4)
    marked = [name for name in page.rows() if name.startswith("▸")]
    assert marked == [f"▸ {view.record.tasks[task]}"]
    first = page.find("#panel li button")
    name = first.text
    first.click()
    page.wait(lambda: page.text("#panel h2") == name)


def test_searching_filters_and_enter_selects(page: Page) -> None:
    search = page.find("#search")
    search.send_keys("BLIMP-ell")
    page.wait(lambda: page.text("#found") == "2 of 160 tasks")
    assert sorted(page.rows()) == ["blimp-ellipsis_n_bar_1", "blimp-ellipsis_n_bar_2"]
    first = page.rows()[0]
    search.send_keys(Keys.ENTER)
    page.wait(lambda: page.text("#panel h2") == first)
    search.send_keys(Keys.CONTROL, "a")
    search.send_keys("no such task")
    page.wait(lambda: page.text("#found") == "0 of 160 tasks")
    assert page.rows() == []
    # A category can be searched for, by hand or from the list.
    categories = page.driver.find_elements(By.CSS_SELECTOR, "#panel ul:last-child button")
    nli = next(button for button in categories if button.text == "classification/nli")
    page.driver.execute_script("arguments[0].scrollIntoView()", nli)
    nli.click()
    expected = page.view.categories.count("classification/nli")
    page.wait(lambda: page.text("#found") == f"{expected} of 160 tasks")
    assert search.get_attribute("value") == "classification/nli"


def test_a_task_far_down_is_scrolled_to(page: Page) -> None:
    last = page.view.record.tasks[page.view.order[-1]]
    page.find("#search").send_keys(last, Keys.ENTER)
    page.wait(lambda: page.text("#panel h2") == last)
    first = page.view.record.tasks[page.view.order[0]]
    page.driver.execute_script("find('')")
    page.driver.execute_script("select(arguments[0])", int(page.view.order[-1]))
    assert page.driver.execute_script("return window.scrollY") > 1000
    page.driver.execute_script("select(arguments[0])", int(page.view.order[0]))
    page.wait(lambda: page.text("#panel h2") == first)
    assert page.driver.execute_script("return window.scrollY") < 1000


def test_layers_are_switched(page: Page) -> None:
    task = page.view.order[0]
    page.driver.execute_script("select(arguments[0])", int(task))
    choice = Select(page.find("#group"))
    assert choice.first_selected_option.text == "mean over all layers"
    stacks = page.driver.find_elements(By.CSS_SELECTOR, "#group optgroup")
    assert [stack.get_attribute("label") for stack in stacks] == ["encoder", "decoder"]
    name = page.view.record.groups[5]
    choice.select_by_visible_text(name)
    page.wait(lambda: name in page.text("#panel h3"))
    assert page.weights() == pytest.approx(page.view.record.weights[5, task], abs=6e-4)


def test_training_is_stepped_through_with_the_keyboard(page: Page) -> None:
    task = page.view.order[0]
    page.driver.execute_script("select(arguments[0])", int(task))
    assert page.text("#moment") == "kept weights"
    slider = page.find("#step")
    slider.send_keys(Keys.HOME)
    page.wait(lambda: page.text("#moment") == "step 0")
    assert page.weights() == pytest.approx([1 / 8] * 8, abs=6e-4)
    slider.send_keys(Keys.ARROW_RIGHT)
    page.wait(lambda: page.text("#moment") == "step 500")
    assert slider.get_attribute("aria-valuetext") == "step 500"
    history = page.view.record.history
    assert history is not None
    assert page.weights() == pytest.approx(history.weights[1].mean(0)[task], abs=6e-4)


def test_names_are_text_and_never_markup(page: Page) -> None:
    page.find("#search").send_keys("</script>", Keys.ENTER)
    page.wait(lambda: page.text("#panel h2") == NASTY)
    assert page.rows() == [f"▸ {NASTY}"]
    page.point_at(0, 0)
    box = page.wait(lambda: page.driver.find_elements(By.CSS_SELECTOR, "#chart .hovertext"))[0]
    assert box.get_attribute("textContent").startswith(NASTY)


def test_controls_have_labels(page: Page) -> None:
    for name in ("search", "group", "step"):
        assert page.find(f"label[for={name}]").text
