"""The sites of a comparison packed for a page: 100,000 of them in about a megabyte.

Problem. A run of 2,000 modules and 50 steps is 100,000 sites; as the JSON of `--json` they take 60 MB, and a browser
needs seconds to read them.

How. Sites form a table: a line is a (stage, branch, site, call), a column a step. Names are written once a line. Of a
cell its numbers are kept as the upper 24 bits of a float32 without its sign (16 bits of mantissa: four digits), its
verdict and birth as one byte, and the cells that exist as distances from one to the next. Each is one string of base64.
Row bins are colours on the page, so a byte each is enough: twentieths of a decade. They are kept for as many sites as
`MOST_BINS` allows, those where something was introduced first; the page says which it lacks.

Cost. 11 bytes a site, 20 where its local error was measured, a third more as base64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parity.report.document import Json
from parity.report.page.packing import base64_of, distances, number, numbers_bytes

VERDICTS = ("pass", "harmless", "apart", "unjudged", "fail")
"""Of a site, the least grave first: of two sites at one place the graver is shown."""

BIRTHS = (None, "input", "module", "amplified")
MOST_BINS = 2_048
"""Sites whose row bins are kept, with up to 64 bins each."""

MOST_NOTES = 5_000


@dataclass(slots=True)
class _Line:
    """One place over all steps.

    Attributes:
        at: its position in execution order; a line of a second look lies between two others.
        cells: step -> its site. closer: whether a second look observed it.
    """

    at: float
    cells: dict[int, Json] = field(default_factory=dict)
    closer: bool = False


Place = tuple[str, str, str, int]


def pack(document: Json) -> dict[str, Any]:
    """The table of a comparison's sites, as the page's script unpacks it.

    Args:
        document: of `--json`.

    Returns:
        `lines` of [stage, branch, site, call, shapes, dtypes, closer], `steps`, and the packed cells.

    Raises:
        KeyError, TypeError, ValueError: a site that is none.
    """
    table = _lines(document["sites"])
    _closer(table, document["closer"])
    places = sorted(table, key=lambda place: table[place].at)
    steps = sorted({step for line in table.values() for step in line.cells})
    column = {step: i for i, step in enumerate(steps)}
    cells = [
        (row * len(steps) + column[step], site)
        for row, place in enumerate(places)
        for step, site in sorted(table[place].cells.items())
    ]
    sites = [site for _, site in cells]
    local = any(number(site["local_rel_l2"]) == number(site["local_rel_l2"]) for site in sites)
    names = ("rel_l2", "floor", "ratio", *(("local_rel_l2", "local_ratio") if local else ()))
    return {
        "lines": [_named(place, table[place]) for place in places],
        "steps": steps,
        "at": base64_of(distances([at for at, _ in cells])),
        "state": base64_of(np.array([_state(site) for site in sites], dtype=np.uint8).tobytes()),
        "numbers": {name: base64_of(numbers_bytes([number(site[name]) for site in sites])) for name in names},
        "bins": _bins(cells),
        "notes": _notes(cells),
    }


def place_of(site: Json) -> Place:
    """The line that a site belongs to.

    Raises:
        KeyError, TypeError: a part of it is missing or of another type.
    """
    texts = tuple(site[name] for name in ("stage", "branch", "site"))
    if not all(isinstance(text, str) for text in texts) or not _integer(site["call"]) or not _integer(site["step"]):
        raise TypeError("a site's stage, branch and site are strings, its step and call integers")
    return (*texts, site["call"])


def positions(packed: Json) -> dict[tuple[Place, int], str]:
    """(line, step) -> how the page's links name the cell: `12.3`."""
    steps = packed["steps"]
    return {
        ((stage, branch, site, call), step): f"{row}.{column}"
        for row, (stage, branch, site, call, *_) in enumerate(packed["lines"])
        for column, step in enumerate(steps)
    }


def _lines(sites: Iterable[Json]) -> dict[Place, _Line]:
    table: dict[Place, _Line] = {}
    for site in sites:
        line = table.setdefault(place_of(site), _Line(float(len(table))))
        _put(line, site)
    return table


def _closer(table: dict[Place, _Line], sites: Sequence[Json]) -> None:
    """Lines of a second look, each before the end of the module that it lies in."""
    ends: dict[tuple[str, str, str], float] = {}
    for (stage, branch, observed, _), line in table.items():
        ends[stage, branch, observed.partition(":")[0]] = line.at
    last = float(len(table))
    for i, site in enumerate(sites):
        place = place_of(site)
        stage, branch, name, _ = place
        parts = name.partition(":")[0].split(".")
        around = (ends.get((stage, branch, ".".join(parts[:n]))) for n in range(len(parts), 0, -1))
        end = next((at for at in around if at is not None), last)
        line = table.setdefault(place, _Line(end - 1 + (i + 1) / (len(sites) + 1), closer=True))
        _put(line, site)


def _put(line: _Line, site: Json) -> None:
    there = line.cells.get(site["step"])
    if there is None or VERDICTS.index(site["verdict"]) > VERDICTS.index(there["verdict"]):
        line.cells[site["step"]] = site


def _named(place: Place, line: _Line) -> list[Any]:
    first = next(iter(line.cells.values()))
    shapes, dtypes = first["shapes"], first["dtypes"]
    if len(shapes) != 2 or len(dtypes) != 2:
        raise ValueError("shapes and dtypes are those of two sides")
    sizes = [[int(n) for n in shape] for shape in shapes]
    return [*place, sizes[:1] if sizes[0] == sizes[1] else sizes, [str(d) for d in dtypes], int(line.closer)]


def _state(site: Json) -> int:
    return VERDICTS.index(site["verdict"]) + 8 * BIRTHS.index(site["birth"])


def _notes(cells: Sequence[tuple[int, Json]]) -> dict[str, Any]:
    """Notes of sites, each text once: `texts`, and cell -> index of its text."""
    noted = [(at, str(site["note"])) for at, site in cells if site["note"]][:MOST_NOTES]
    texts = {text: i for i, text in enumerate(dict.fromkeys(text for _, text in noted))}
    return {"texts": list(texts), "of": {str(at): texts[text] for at, text in noted}}


def _bins(cells: Sequence[tuple[int, Json]]) -> dict[str, Any]:
    """Row bins of the sites that have some: `of` has [cell, offset, count], `bytes` is all of them."""
    held = [(at, site) for at, site in cells if site.get("bins")]
    held.sort(key=lambda cell: (cell[1]["birth"] in (None, "amplified"), cell[1]["step"], cell[0]))
    of, codes = [], bytearray()
    for at, site in held[:MOST_BINS]:
        bins = [_bin(number(value)) for value in site["bins"][:64]]
        of.append([at, len(codes), len(bins)])
        codes += bytes(bins)
    return {"of": of, "left": max(0, len(held) - MOST_BINS), "bytes": base64_of(bytes(codes))}


def _bin(ratio: float) -> int:
    """0 for 0, 1 to 253 for 1e-4 to 4e8 in twentieths of a decade, 254 for more, 255 for no number."""
    if math.isnan(ratio):
        return 255
    if ratio <= 0:
        return 0
    return 254 if math.isinf(ratio) else min(max(round(20 * (math.log10(ratio) + 4)) + 1, 1), 254)


def _integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
