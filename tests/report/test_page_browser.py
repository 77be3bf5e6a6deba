"""The page in headless Chromium: what is clicked, what is seen, no request. Skipped where there is no Chromium."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from parity.report.formats.html import Shown, build

pytest.importorskip("selenium", reason="the page is tested in a browser with selenium (extra test)")

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
needs_chromium = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no chromium with a chromedriver (Debian: apt install chromium chromium-driver)"
)
pytestmark = [pytest.mark.slow, needs_chromium]

FIRST = 30
"""The step at which the made run begins to fail."""

FAILING = "blocks.5.attn:out"
Open = Callable[..., "Chrome"]


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.binary_location = str(CHROMIUM)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


def show(chrome: Chrome, where: str, width: int) -> None:
    """Open a page of so many pixels' width, anew."""
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    chrome.get("about:blank")
    chrome.get(where)


def require_quiet(chrome: Chrome, folder: Path) -> None:
    """Nothing outside of the folder was asked for, and nothing went wrong."""
    asked = [json.loads(entry["message"])["message"] for entry in chrome.get_log("performance")]
    urls = [event["params"]["request"]["url"] for event in asked if event["method"] == "Network.requestWillBeSent"]
    assert [url for url in urls if not url.startswith(("data:", "about:", folder.as_uri()))] == []
    assert [entry["message"] for entry in chrome.get_log("browser") if entry["level"] == "SEVERE"] == []


def one(chrome: Chrome, where: str) -> WebElement:
    return chrome.find_element("css selector", where)


def seen(chrome: Chrome, where: str = "#site") -> str:
    return one(chrome, where).text


def wait_until_ready(chrome: Chrome) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    script = "return document.documentElement.dataset.ready"
    WebDriverWait(chrome, 30).until(lambda _: chrome.execute_script(script) == "yes")


@pytest.fixture
def opened(chrome: Chrome, tmp_path: Path) -> Iterator[Open]:
    """`opened(shown, width=, dark=, at=)`: the page in the browser. In the end: no request, and no error."""

    def open_(shown: Shown, width: int = 1200, dark: bool = False, at: str = "") -> Chrome:
        page = tmp_path / "page.html"
        page.write_text(build(shown))
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        show(chrome, page.as_uri() + at, width)
        wait_until_ready(chrome)
        return chrome

    yield open_
    require_quiet(chrome, tmp_path)


def site(name: str, step: int, ratio: float, introduced: str | None = None, **other: Any) -> dict[str, Any]:
    found = {
        "stage": "transformer", "step": step, "branch": "cond", "site": name, "call": 0, "rel_l2": ratio * 1e-7,
        "floor": 1e-7, "ratio": ratio, "local_rel_l2": None, "local_floor": None, "local_ratio": None,
        "shapes": [[1, 8, 4], [1, 8, 4]], "dtypes": ["float32", "float32"], "introduced": introduced,
        "verdict": "fail" if ratio > 3 else "pass", "note": "", **other,
    }  # fmt: skip
    return {**found, "bins": [0.5] * 3 + [900.0] + [0.5] * 4} if ratio > 3 else found


def run(blocks: int = 8, steps: int = 40) -> dict[str, Any]:
    """A run that begins to fail at step 30 in one module of many, and carries it over from there."""
    sites = []
    for step, block, module in itertools.product(range(steps), range(blocks), ("attn", "ff")):
        name, bad = f"blocks.{block}.{module}:out", step >= FIRST and block >= 5
        place = "module" if (step, name) == (FIRST, FAILING) else None
        sites.append(site(name, step, 500.0, place) if bad else site(name, step, 0.5))
    far = {"rel_l2": 1e-6, "floor": 1e-6, "ratio": 1.0}
    loop = {"timestep": 1.0, "sigma": 0.5, "dt": -0.1}
    both = {"latents_before": far, "noise_pred": far, "branches": {}, "latents": far, "bits": 6.6, "bits_of": 24}
    origin = {
        "stage": "transformer",
        "step": FIRST,
        "branch": "cond",
        "site": FAILING,
        "call": 0,
        "introduced": "module",
    }
    return {
        "verdict": "fail", "failed": "logic", "reason": f"first divergence: {FAILING}", "model": "made",
        "differing_settings": [], "preflight": [], "sites": sites, "origin": origin, "causes": [], "checks": [],
        "steps": [{"step": s, **loop, "candidate": loop, **both} for s in range(steps)],
        "stages": [], "frames": [], "closer": [], "notes": [],
    }  # fmt: skip


def test_from_the_verdict_to_the_module_and_its_tensors(opened: Open) -> None:
    chrome = opened(Shown(document=run()))
    assert one(chrome, "#modules td.bad.born").is_displayed(), "the failure is seen before anything is clicked"
    one(chrome, ".card a").click()
    for said in ("blocks.5.attn step 30", "out", "cond", "500.0x", "1x8x4 float32", "introduced in this module"):
        assert said in seen(chrome)
    assert "1 beyond the limit; the worst is part 4, 900.0x" in seen(chrome, ".bins p")
    assert "2 modules" not in seen(chrome, "#count")
    one(chrome, "#search").send_keys("BLOCKS.5 attn")
    wait(chrome, "3 modules, 40 steps")  # and the two above it


def test_keys_walk_the_table_and_close_a_block(opened: Open) -> None:
    from selenium.webdriver.common.keys import Keys

    chrome = opened(Shown(document=run()))
    chrome.execute_script("document.querySelector('#modules td.chosen').focus()")
    for keys, name, step in ((Keys.ARROW_RIGHT + Keys.ENTER, "blocks.5.attn", "step 31"),
                             (Keys.ARROW_DOWN + Keys.ENTER, "blocks.5.ff", "step 31")):  # fmt: skip
        for key in keys:
            chrome.switch_to.active_element.send_keys(key)
        assert (seen(chrome, "#site-name"), seen(chrome, "#site-where")) == (name, step)
    before = len(chrome.find_elements("css selector", "#modules tr"))
    for key in (Keys.ARROW_DOWN, " "):
        chrome.switch_to.active_element.send_keys(key)
    assert len(chrome.find_elements("css selector", "#modules tr")) == before - 2


def wait(chrome: Chrome, text: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(chrome, 10).until(lambda _: text in seen(chrome, "#count"))


def test_an_address_leads_to_a_site_and_a_foreign_one_to_none(opened: Open) -> None:
    assert "blocks.1.ff step 2" in seen(opened(Shown(document=run()), at="#3.2"))
    assert "blocks.5.attn step 30" in seen(opened(Shown(document=run()), at="#9.9<img src=x>"))


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_sees_all_of_it(opened: Open, dark: bool) -> None:
    chrome = opened(Shown(document=run()), width=390, dark=dark)
    width = "const d = document.documentElement; return [d.scrollWidth - d.clientWidth, innerWidth]"
    assert chrome.execute_script(width) == [0, 390]
    # The candidate's value and the ratio are seen without scrolling sideways.
    beyond = "return [...document.querySelectorAll('.fits')].map(e => e.scrollWidth - e.clientWidth)"
    assert set(chrome.execute_script(beyond)) == {0}
    ground = "return getComputedStyle(document.body).backgroundColor"
    assert chrome.execute_script(ground) == ("rgb(24, 24, 27)" if dark else "rgb(255, 255, 255)")
