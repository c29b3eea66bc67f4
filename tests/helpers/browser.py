"""A page in a real browser: what a reader clicks, types and sees."""

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from helpers.processes import wait_for

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
IN_A_BROWSER = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("selenium") is None,
        reason="needs selenium: pip install -e '.[browser]'",
    ),
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER),
        reason="needs a browser: apt-get install chromium chromium-driver",
    ),
]
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--window-size=1300,900"),
)
SELECTOR = "css selector"
# Keys as WebDriver names them.
ENTER, HOME, RIGHT, DOWN, UP, CONTROL = (chr(0xE000 + n) for n in (7, 0x11, 0x14, 0x15, 0x13, 9))
TAB, ESCAPE = (chr(0xE000 + n) for n in (4, 12))
UNNAMED = """const all = document.querySelectorAll(
        'svg:not([aria-hidden]), canvas, button, select, input, textarea');
    return [...all].filter((one) => !(one.getAttribute('aria-label') || one.textContent.trim()
        || (one.labels && one.labels.length))).map((one) => one.outerHTML)"""


class Page:
    """An open page."""

    def __init__(self, driver: Any, address: str) -> None:
        self.driver = driver
        driver.get(address)

    def find(self, selector: str) -> Any:
        return self.driver.find_element(SELECTOR, selector)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements(SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.find(selector).text

    def run(self, script: str, *given: Any) -> Any:
        return self.driver.execute_script(script, *given)

    def click(self, selector: str) -> None:
        self.run("arguments[0].click()", self.find(selector))

    def wait(self, condition: Callable[[], Any], seconds: float = 10) -> Any:
        return wait_for(condition, seconds)

    def chosen(self) -> str:
        return self.text("#panel h2")

    def column(self, number: int) -> list[str]:
        """Return a column of the table of scores, without the mean."""
        script = """return [...document.querySelectorAll('#scores tbody tr')].slice(1).map(
            (row) => row.children[arguments[0]].textContent)"""
        return self.run(script, number)

    def weights(self) -> list[float]:
        return [float(cell.text) for cell in self.all("#panel .weights td:nth-child(2)")]

    def resize(self, width: int, *, dark: bool = False) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def complaints(self) -> list[str]:
        """Return what the browser's console holds, without requests that were refused."""
        told = [entry["message"] for entry in self.driver.get_log("browser")]
        return [text for text in told if "the server responded with a status of 4" not in text]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = str(CHROMIUM)
    for option in (*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    yield started
    started.quit()
