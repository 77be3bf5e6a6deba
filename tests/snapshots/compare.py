"""Holds a fresh output to its snapshot: structure exactly, numbers with a tolerance, sentences without their numbers.

Exact: exit codes, keys and their order, verdicts, origin, births, site keys and their order, settings, checks, causes.
The terminal's lines are compared as templates and by their counts (`tests/snapshots/words.py`); their other numbers
stand in the document.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from tests.snapshots.snapshot import Json, Snapshot
from tests.snapshots.tolerance import (
    SMALL,
    SPECIAL,
    Tolerance,
    borderline,
    distances_agree,
    floors_agree,
    near,
    texts_agree,
)
from tests.snapshots.words import REWORDED, Reworded, numbers, reworded, template

MOST_OF_A_KIND = 8
ABSOLUTE_SHARES = ("share", "half", "ssim")
ABSOLUTE_BITS = ("bits", "psnr")
DISTANCES = ("noise_pred_by_step",)
FLOOR_RATIOS = ("ratio", "worst")


def differences(
    old: Snapshot, new: Snapshot, tolerance: Tolerance, changes: tuple[Reworded, ...] = REWORDED
) -> list[str]:
    """What of a snapshot is not so any more; empty where nothing is.

    Args:
        old: the snapshot. new: the same command today. changes: wordings that were changed on purpose.
    """
    pairs = {
        "command": (old.command, new.command),
        "exit code": (old.code, new.code),
        "exit code with --json": (old.json_code, new.json_code),
    }
    found = [f"{name}: {before} -> {after}" for name, (before, after) in pairs.items() if before != after]
    found += lines("terminal", old.terminal, new.terminal, changes)
    found += lines("stderr", old.stderr, new.stderr, changes)
    return found + list(_Walk(tolerance, changes).value("document", old.document, new.document))


def lines(name: str, old: Sequence[str], new: Sequence[str], changes: tuple[Reworded, ...]) -> list[str]:
    """Lines that are gone (`-`) and new ones (`+`); then counts that changed within a line."""
    old = [reworded(line, changes) for line in old]
    templates = [template(line) for line in old], [template(line) for line in new]
    if templates[0] != templates[1]:
        matcher = difflib.SequenceMatcher(None, *templates, autojunk=False)
        found = []
        for kind, i, j, k, m in matcher.get_opcodes():
            if kind != "equal":
                found += [f"{name} - {line}" for line in old[i:j]] + [f"{name} + {line}" for line in new[k:m]]
        return found
    return [
        f"{name}: {before!r} -> {after!r}"
        for before, after in zip(old, new, strict=True)
        if any(a != b and a.isdecimal() and b.isdecimal() for a, b in zip(numbers(before), numbers(after), strict=True))
    ]


class _Walk:
    """Two documents, walked together."""

    def __init__(self, tolerance: Tolerance, changes: tuple[Reworded, ...]) -> None:
        self._tolerance, self._changes = tolerance, changes

    def value(self, path: str, old: Json, new: Json) -> Iterator[str]:
        if isinstance(old, dict) and isinstance(new, dict):
            yield from self._mapping(path, old, new)
        elif isinstance(old, list) and isinstance(new, list):
            if any(isinstance(item, dict) and set(item) == {"at", "rows"} for item in (*old[:1], *new[:1])):
                yield from self._rows(path, old, new)
            else:
                yield from self._list(path, old, new)
        elif not self._equal(path.rpartition(".")[2], old, new):
            old = reworded(old, self._changes) if isinstance(old, str) else old
            yield f"{path}: {_short(old)} -> {_short(new)}"

    def _mapping(self, path: str, old: Json, new: Json) -> Iterator[str]:
        if list(old) != list(new):
            gone, come = [k for k in old if k not in new], [k for k in new if k not in old]
            yield f"{path}: keys gone {gone}, new {come}" if gone or come else f"{path}: keys in another order"
        rest = [key for key in old if key in new]
        if {"rel_l2", "floor"} <= set(rest):
            rest = [key for key in rest if key not in ("rel_l2", "floor", "ratio")]
            if not floors_agree(old["floor"], new["floor"], self._tolerance):
                yield f"{path}.floor: {old['floor']} -> {new['floor']}"
            pairs = [(side["rel_l2"], side["floor"]) for side in (old, new)]
            if not distances_agree(pairs[0], pairs[1], self._tolerance):
                yield f"{path}.rel_l2: {old['rel_l2']} -> {new['rel_l2']}"
            if all(float(rel_l2) <= float(floor) for rel_l2, floor in pairs):
                rest = [key for key in rest if key != "region"]  # where a rounding is largest is chance
        for key in rest:
            yield from self.value(f"{path}.{key}", old[key], new[key])

    def _list(self, path: str, old: list[Json], new: list[Json]) -> Iterator[str]:
        if len(old) != len(new):
            yield f"{path}: {len(old)} items -> {len(new)}: {_short(old)} -> {_short(new)}"
            return
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from self.value(f"{path}[{index}]", before, after)

    def _equal(self, key: str, old: Json, new: Json) -> bool:
        key = key.partition("[")[0]
        if isinstance(old, bool) or isinstance(new, bool) or old is None or new is None:
            return old is new
        if isinstance(old, str) and isinstance(new, str) and not {old, new} & set(SPECIAL):
            old = reworded(old, self._changes)
            hashes = self._tolerance.hashes
            if template(old, hashes=hashes) != template(new, hashes=hashes):
                return False
            return all(texts_agree(*pair, self._tolerance) for pair in zip(numbers(old), numbers(new), strict=True))
        if isinstance(old, int) and isinstance(new, int):
            return old == new
        if any(isinstance(side, str) and side not in SPECIAL for side in (old, new)):
            return False
        return self._close(key, old, new)

    def _close(self, key: str, old: float | str, new: float | str) -> bool:
        a, b = float(old), float(new)
        if key in ABSOLUTE_SHARES:
            return near(old, new, 1.0) or abs(a - b) <= self._tolerance.share
        if key in ABSOLUTE_BITS:
            return near(old, new, 1.0) or abs(a - b) <= self._tolerance.bits
        if (key in FLOOR_RATIOS and max(a, b) <= 1) or (key in DISTANCES and max(a, b) < SMALL):
            return True
        return near(old, new, self._tolerance.other)

    def _rows(self, path: str, old: list[Json], new: list[Json]) -> Iterator[str]:
        before, after = _by_key(old), _by_key(new)
        gone, come = [k for k in before if k not in after], [k for k in after if k not in before]
        yield from _some(f"{path}: gone", gone)
        yield from _some(f"{path}: new", come)
        common = [k for k in before if k in after]
        if common != [k for k in after if k in before]:
            yield f"{path}: sites in another order"
        told = [f"{key}: {text}" for key in common if (text := self._row(path, before[key], after[key]))]
        yield from _some(path, told)

    def _row(self, path: str, old: list[str], new: list[str]) -> str:
        """What differs between two rows of one site, without its key."""
        if path.endswith("records"):
            return "" if old == new else f"{' | '.join(old)} -> {' | '.join(new)}"
        old, new = ([*row, "", "", "", ""][:4] for row in (old, new))
        told = []
        free, local = (_pair(old[1]), _pair(new[1])), (_pair(old[2]), _pair(new[2]))
        if old[0] != new[0] and not any(borderline(p, self._tolerance) for p in (*free, *local)):
            told.append(f"{old[0]} -> {new[0]}")
        for name, (a, b) in (("rel L2", free), ("local", local)):
            if not floors_agree(a[1], b[1], self._tolerance):
                told.append(f"{name} floor {a[1]} -> {b[1]}")
            if not distances_agree(a, b, self._tolerance):
                told.append(f"{name} {a[0]} -> {b[0]}")
        if template(reworded(old[3], self._changes)) != template(new[3]):
            told.append(f"{old[3]!r} -> {new[3]!r}")
        return "; ".join(told)


def _pair(text: str) -> tuple[str, str]:
    rel_l2, _, floor = text.partition(" / ")
    return (rel_l2, floor) if floor else ("nan", "nan")


def _by_key(groups: list[Json]) -> dict[str, list[str]]:
    """Rows by place and site, split into their fields."""
    found = {}
    for group in groups:
        for row in group["rows"]:
            site, *fields = row.split(" | ", 4)
            found[f"{group['at']} {site}"] = [field.strip() for field in fields]
    return found


def _some(name: str, items: list[str]) -> Iterator[str]:
    yield from (f"{name}: {item}" for item in items[:MOST_OF_A_KIND])
    if len(items) > MOST_OF_A_KIND:
        yield f"{name}: {len(items) - MOST_OF_A_KIND} more"


def _short(value: Json) -> str:
    text = repr(value)
    return text if len(text) < 300 else f"{text[:300]}..."
