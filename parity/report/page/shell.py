"""The file around a comparison: its policy, style and script, and what a text on it may hold.

Documents come from other machines: every text is escaped, the script writes text and never markup, and the page's
policy lets nothing run but its own script, by its hash, and nothing load. Needs jinja2 (extra `report`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from pathlib import Path

from parity.errors import UsageError
from parity.report.document import Json
from parity.report.page.packing import number
from parity.report.words import WORDS

HERE = Path(__file__).parent
SCRIPTS = ("1_data", "2_colours", "3_heat", "4_tree", "5_charts", "6_site", "7_frames", "8_main")

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
"""What a terminal obeys, should somebody print a page; no page needs it."""


class DocumentError(ValueError):
    """A document that is not what `--json` writes."""


BROKEN = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)
"""What reading a document raises that is none."""


def page(data: Json, version: str = "", **shown: object) -> str:
    """A page.

    Args:
        data: what the script reads. version: of parity. shown: what the template reads.

    Raises:
        DocumentError: something the page shows is missing or is no such thing. UsageError: jinja2 is missing.
    """
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError:
        raise UsageError("HTML needs jinja2: pip install 'tpu-parity[report]'") from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        sci=_sci, times=_times, percent=_percent, decibels=_decibels, similar=_similar, plain=_plain
    )
    style, script = _style(), _script()
    try:
        text: str = environment.get_template("page.html.jinja").render(
            **shown,
            style=Markup(style),
            style_hash=f"'{_hash(style)}'",
            script=Markup(script),
            script_hash=f"'{_hash(script)}'",
            data=Markup(_data(data)),
            glossary=WORDS,
            version=version,
        )
    except (*BROKEN, jinja2.UndefinedError) as error:
        raise DocumentError(f"not a document of --json: {error}") from None
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def _data(document: Json) -> str:
    """What the script reads: no `<` in it, so that nothing in it ends the element that holds it."""
    text = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _script() -> str:
    """The page's script in one function, so that nothing of it is global but the library's name."""
    own = "".join((HERE / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)
    licence = (HERE / "uplot" / "LICENSE").read_text(encoding="utf-8")
    library = (HERE / "uplot" / "uPlot.iife.min.js").read_text(encoding="utf-8")
    return f'/* uPlot\n{licence}*/\n{library}\n(() => {{\n"use strict";\n{own}}})();\n'


def _style() -> str:
    paths = (HERE / "uplot" / "uPlot.min.css", HERE / "page.css")
    return "".join(path.read_text(encoding="utf-8") for path in paths)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _plain(value: object) -> str:
    """Four digits: `0.9995`, `1.2e-05`."""
    found = number(value)
    return "–" if math.isnan(found) else f"{found:.4g}"


def _sci(value: object) -> str:
    found = number(value)
    return "–" if math.isnan(found) else f"{found:.2e}" if found else "0"


def _times(value: object) -> str:
    found = number(value)
    if not math.isfinite(found):
        return "–" if math.isnan(found) else "∞"
    return f"{found:.1f}×" if found < 1000 else f"{found:.1e}×"


def _percent(value: object) -> str:
    found = number(value)
    return "–" if math.isnan(found) else f"{100 * found:.1f} %"


def _decibels(value: object) -> str:
    found = number(value)
    return "–" if math.isnan(found) else "equal" if math.isinf(found) else f"{found:.1f} dB"


def _similar(value: object) -> str:
    found = number(value)
    return "–" if math.isnan(found) else f"{found:.4f}"
