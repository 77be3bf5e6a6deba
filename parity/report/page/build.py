"""A comparison, or two beside each other, as one HTML page.

Why. The person who decides about a port was not at the terminal. The page has the verdict and its causes on top, then
every site at every step as a map in which a place can be found, and under it what the run was made with.

How. It reads the JSON documents that `parity run` and `parity explain` keep and computes nothing. What must be read is
in the HTML; what is walked through (the map, the module tree, the charts) is drawn by the page's own script from the
packed sites (`pack`). Documents come from other machines: every text is escaped, the script writes text and never
markup, and the page's policy lets nothing run but this one script, by its hash, and nothing load. Needs jinja2 (extra
`report`).

Cost. About 130 kB, and 15 to 27 bytes a site (see `pack`); 100,000 sites take two seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.report.document import Json
from parity.report.page.pack import BIRTHS, VERDICTS, pack, place_of, positions
from parity.report.page.packing import number
from parity.report.page.shell import BROKEN, DocumentError, page

LIMIT = 3
"""Beyond this ratio a site fails: `parity.compare.judge.L2_LIMIT`, which a report does not import."""

MOST_LISTED = 12
"""Sites that are listed in the card; the map has all."""

MOST_STEPS = 500
"""Rows of a table; `result.json` has all."""

SIGNS = {"pass": "✓", "fail": "✗", "unjudged": "?", "explained": "~", "harmless": "~"}
BIRTH_WORDS = {"input": "the input", "module": "the module", "amplified": "nothing: carried over"}
SITE_WORDS = {"input": "its input", "module": "this module", "amplified": "nothing here: it is carried over"}


@dataclass(frozen=True, slots=True)
class Picture:
    """A decoded frame on both sides, as `data:` URLs.

    Attributes:
        frame: from 0. reference, candidate: PNGs. caption: its numbers.
    """

    frame: int
    reference: str
    candidate: str
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Side:
    """What a side was made with.

    Attributes:
        role: `reference` or `candidate`. facts: command, versions, devices, ... by name. settings: all of them.
    """

    role: str
    facts: Mapping[str, str]
    settings: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A comparison and what is kept beside it.

    Attributes:
        document: of `--json`. causes: of `parity explain --json`; None where it was not asked.
        pictures: the frames that differ most. pictures_are: what they are. pictures_missing: why there are none.
        sides: what each side was made with.
    """

    document: Json
    causes: Sequence[Json] | None = None
    pictures: Sequence[Picture] = ()
    pictures_are: str = ""
    pictures_missing: str = ""
    sides: Sequence[Side] = field(default=())


def build(shown: Shown, version: str = "") -> str:
    """The page of a comparison.

    Args:
        version: of parity.

    Raises:
        DocumentError: something the page shows is missing or is no such thing. UsageError: jinja2 is missing.
    """
    try:
        run = _view(shown)
    except BROKEN as error:
        raise DocumentError(f"not a document of --json: {error}") from None
    return page(
        {
            "limit": LIMIT,
            "verdicts": VERDICTS,
            "births": BIRTHS,
            "words": SITE_WORDS,
            **run["data"],
        },
        version,
        run=run,
        signs=SIGNS,
        words=BIRTH_WORDS,
        limit=LIMIT,
        most_steps=MOST_STEPS,
    )


def _view(shown: Shown) -> dict[str, Any]:
    """What the template reads of a comparison."""
    document = shown.document
    packed = pack(document)
    cells = positions(packed)
    # A second look names modules where the first names blocks, as in a terminal.
    failing = [site for site in document["closer"] or document["sites"] if site["verdict"] == "fail"]
    introduced = [site for site in failing if site["birth"] != "amplified"] or failing
    origin = (
        None if document["origin"] is None else cells.get((place_of(document["origin"]), document["origin"]["step"]))
    )
    names: dict[str, None] = {}
    for side in shown.sides:
        names.update(dict.fromkeys(side.settings))
    return {
        "document": document,
        "causes": shown.causes,
        "pictures": shown.pictures,
        "pictures_are": shown.pictures_are,
        "pictures_missing": shown.pictures_missing,
        "packed": packed,
        "origin": origin,
        "introduced": [{"site": s, "cell": cells.get((place_of(s), s["step"]))} for s in introduced[:MOST_LISTED]],
        "more": max(0, len(introduced) - MOST_LISTED),
        "carried": len(failing) - len(introduced),
        "bits": _bits(document),
        "dtypes": _dtypes(packed),
        "sides": shown.sides,
        "setting_names": sorted(names),
        "data": {"origin": origin, "sites": packed, "drift": _drift(document["steps"])},
    }


def _bits(document: Json) -> str:
    """What the difference costs: the worst step's agreement."""
    known = [step for step in document["steps"] if step["bits_of"] and math.isfinite(number(step["bits"]))]
    if not known:
        return ""
    worst = min(known, key=lambda step: number(step["bits"]))
    where = f" at step {worst['step']}" if len(document["steps"]) > 1 else ""
    return f"noise_pred agrees in {number(worst['bits']):.1f} of {worst['bits_of']} bits{where}."


def _drift(steps: Sequence[Json]) -> dict[str, Any]:
    """The loop's values over the steps, for the charts; null where there is no number."""

    def far(what: str) -> dict[str, list[float | None]]:
        return {name: [_finite(step[what][name]) for step in steps] for name in ("rel_l2", "floor")}

    def both(what: str) -> dict[str, list[float | None]]:
        return {
            "reference": [_finite(step[what]) for step in steps],
            "candidate": [_finite(step["candidate"][what]) for step in steps],
        }

    loop = {what: far(what) for what in ("noise_pred", "latents")}
    return {
        "steps": [int(step["step"]) for step in steps],
        **loop,
        "sigma": both("sigma"),
        "timestep": both("timestep"),
    }


def _dtypes(packed: Json) -> list[tuple[str, str, int, str]]:
    """(reference, candidate, number of lines, the first): those that differ first."""
    counted: dict[tuple[str, str], list[Any]] = {}
    for _, _, site, _, _, (reference, candidate), _ in packed["lines"]:
        found = counted.setdefault((reference, candidate), [0, site])
        found[0] += 1
    pairs = sorted(counted.items(), key=lambda pair: (pair[0][0] == pair[0][1], -pair[1][0]))
    return [(*pair, count, first) for pair, (count, first) in pairs]


def _finite(value: Any) -> float | None:
    found = number(value)
    return found if math.isfinite(found) else None
