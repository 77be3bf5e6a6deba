"""Headless Chromium for the tests of pages. Skipped where there is no Chromium."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
needs_chromium = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no chromium with a chromedriver (Debian: apt install chromium chromium-driver)"
)


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
