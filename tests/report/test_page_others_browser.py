"""The pages of goldens in headless Chromium. Skipped where there is no Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from parity.golden.records import StepRecords
from parity.report.page.golden import build_golden
from tests.report.browser import chrome, needs_chromium, one, require_quiet, seen, show, wait_until_ready
from tests.report.test_page_golden import STEPS, shown, tensor

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

__all__ = ["chrome"]
pytestmark = [pytest.mark.slow, needs_chromium]
Open = Callable[..., "Chrome"]


@pytest.fixture
def opened(chrome: Chrome, tmp_path: Path) -> Iterator[Open]:
    """`opened(page, width=, script=)`: the page in the browser. In the end: no request, and no error."""

    def open_(page: str, width: int = 1200, script: bool = True) -> Chrome:
        where = tmp_path / "page.html"
        where.write_text(page)
        show(chrome, where.as_uri(), width)
        if script:
            wait_until_ready(chrome)
        return chrome

    yield open_
    require_quiet(chrome, tmp_path)


def test_a_golden_s_map_leads_to_a_site_and_its_steps(opened: Open) -> None:
    from selenium.webdriver.common.keys import Keys

    chrome = opened(build_golden(shown(STEPS)))
    assert "loop:noise_pred" in seen(chrome, "#site")
    assert one(chrome, "#site-chart .uplot canvas").is_displayed()
    heat = one(chrome, "#map")
    heat.send_keys(Keys.ARROW_UP * 20, Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    assert "blocks.0:in.hidden_states" in seen(chrome, "#site-name")
    assert "transformer, step 1, cond" in seen(chrome, "#site-where")
    assert "relative L2" in seen(chrome, "#site-facts")
    one(chrome, "#search").send_keys("blocks.1 out")
    assert "1 of 9 sites, 3 steps" in seen(chrome, "#map-note")


def test_one_nan_among_thousands_is_seen_and_chosen(opened: Open) -> None:
    records = [tensor(f"blocks.{i}:out", -1, 1, nan=int(i == 1_500)) for i in range(3_000)]
    chrome = opened(build_golden(shown([StepRecords(0, tuple(records))])))
    assert "blocks.1500:out" in seen(chrome, "#site-name")
    assert "holds NaN or Inf" in seen(chrome, "#site-facts")
    script = """
      const c = document.getElementById("map"), pen = c.getContext("2d");
      const gutter = Math.round(Math.min(320, c.clientWidth * (c.clientWidth < 500 ? 0.42 : 0.36)));
      const pixels = pen.getImageData(gutter + 20, 16, 1, c.height - 20).data;
      const red = Array.from({length: pixels.length / 4}, (_, i) => pixels[4 * i] - pixels[4 * i + 2]);
      return red.filter((x) => x > 90).length;
    """
    assert chrome.execute_script(script) >= 2
    one(chrome, "#bad").click()
    assert "1 of 3000 sites" in seen(chrome, "#map-note")


def test_a_phone_sees_all_of_it(opened: Open) -> None:
    chrome = opened(build_golden(shown(STEPS)), width=390)
    width = "const d = document.documentElement; return [d.scrollWidth - d.clientWidth, innerWidth]"
    assert chrome.execute_script(width) == [0, 390]
