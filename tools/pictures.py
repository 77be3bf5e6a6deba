"""The pictures of the documents: what a terminal and a browser show of a real run.

    python tools/pictures.py --out docs/pictures            runs the README's first commands, a few minutes
    python tools/pictures.py --out DIR --kept RUN           of a run that is kept and explained already

The commands are run in a terminal of their own (a pseudo-terminal, `COLUMNS` wide, so that a phone can show it), and
what they wrote is drawn as SVG by rich, without the fonts that it would load. The pages are photographed in headless
Chromium, at the width of a desk and of a phone.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import io
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS, LINES = 72, 40
RUN = "parity run --candidate attention.mask=zero_kv"
EXPLAIN = "parity explain"
REPORT = "parity report"
VERDICT, CAUSE = re.compile(r"^verdict\b"), re.compile(r"^cause\b")
"""Lines with which what must be read begins."""

SVG = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "SF Mono", Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""rich's own frame without its fonts, which it would load from elsewhere."""

WIDTHS = {"page": (1100, 1000), "page-phone": (390, 844)}
"""Picture -> (width, height) of the window."""


def in_terminal(command: str, folder: Path, columns: int = COLUMNS) -> tuple[int, str]:
    """(exit code, stdout) of a command whose stdout is a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    environment |= {"TERM": "xterm-256color", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.Popen(
        shlex.split(command), cwd=folder, env=environment, stdout=theirs, stderr=subprocess.DEVNULL, close_fds=True
    )
    os.close(theirs)
    written = bytearray()
    try:
        while block := os.read(ours, 65536):
            written += block
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    return process.wait(), written.decode("utf-8").replace("\r\n", "\n")


def card_of(text: str, begins: re.Pattern[str] = VERDICT) -> str:
    """What must be read: from the last line on that begins so."""
    lines = text.rstrip("\n").split("\n")
    plain = [Text.from_ansi(line).plain for line in lines]
    at = max((i for i, line in enumerate(plain) if begins.match(line)), default=0)
    return "\n".join(lines[at:])


def drawn(shown: Sequence[tuple[str, str, re.Pattern[str]]], columns: int = COLUMNS) -> str:
    """An SVG of commands and what they wrote, each cut to what must be read."""
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True, highlight=False)
    for i, (command, text, begins) in enumerate(shown):
        if i:
            console.print()
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        card = card_of(text, begins)
        if card != text.rstrip("\n"):
            console.print(Text("...", style="dim"))
        for line in card.split("\n"):
            console.print(Text.from_ansi(line.rstrip()))
    return console.export_svg(title="parity", code_format=SVG, unique_id="parity")


def photographed(page: Path, width: int, height: int) -> bytes:
    """A PNG of the upper part of a page."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.binary_location = str(chromium())
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.get(page.resolve().as_uri())
        return base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"])
    finally:
        driver.quit()


def chromium() -> str | None:
    """A browser that can be driven; None where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    return found if shutil.which("chromedriver") else None


def make(out: Path, folder: Path) -> None:
    """Draw the pictures of the run in `folder`/run, which is made where it is missing."""
    if not (folder / "run").exists():
        code, ran = in_terminal(RUN, folder)
        if code != 1:
            raise SystemExit(f"pictures: '{RUN}' ended with {code} where it must find the fault: {ran[-400:]}")
    else:
        ran = in_terminal("parity diff run", folder)[1]
    code, explained = in_terminal(EXPLAIN, folder)
    if code != 1:
        raise SystemExit(f"pictures: '{EXPLAIN}' ended with {code}: {explained[-400:]}")
    out.mkdir(parents=True, exist_ok=True)
    (out / "terminal.svg").write_text(drawn([(RUN, ran, VERDICT), (EXPLAIN, explained, CAUSE)]), encoding="utf-8")
    in_terminal(REPORT, folder)
    if chromium() is None:
        raise SystemExit("pictures: terminal.svg is drawn; the page needs a browser (Debian: chromium chromium-driver)")
    for name, (width, height) in WIDTHS.items():
        (out / f"{name}.png").write_bytes(photographed(folder / "parity-report.html", width, height))


def main() -> None:
    """Parse the arguments and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the pictures")
    parser.add_argument("--kept", type=Path, help="folder of a kept run of the same command")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="parity-pictures-") as folder:
        if arguments.kept is not None:
            shutil.copytree(arguments.kept, Path(folder, "run"))
        make(arguments.out, Path(folder))


if __name__ == "__main__":
    main()
