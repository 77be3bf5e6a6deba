"""What is kept of a captured command: everything that a change of the code may not change, and little else.

Of a site: key, verdict, birth, its note, what its two sides do not share, and its relative L2 and floor with two
digits. Bins, cosines, absolute differences and the fingerprints of single weights are left out, so that all snapshots
together stay well under 2 MB. Paths of the machine, times and sizes are masked.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.report import prices, tables
from tests.snapshots.capture import Captured
from tests.snapshots.catalogue import Command

DATA = Path(__file__).with_name("data")
MOST_LINES = 60
MANY = 40
"""Entries from which a mapping of texts (weights, modules) is kept as a digest."""

MACHINE_KEYS = frozenset({"seconds", "bytes", "folder", "cached", "state", "devices", "versions", "memory", "of_base",
                          "of_base_quartiles", "base_seconds"})  # fmt: skip
NOT_EVERYWHERE = ("no mp4 was written",)
"""Words of notes about what is not installed."""

LEGENDS = frozenset(f"({legend})" for legend in (*tables.LEGENDS[1:], *prices.LEGENDS))
"""Lines that explain columns, newer than the snapshots; tests/report holds them."""

SITE_LISTS = ("sites", "closer")
HEADING = re.compile(r"<(h1|h2|h3|th|dt)\b[^>]*>(.*?)</\1>", re.DOTALL)

SECTION = re.compile(r"^(?:Arguments|Options|Commands):\n(?P<entries>(?:  .*\n?)+)", re.MULTILINE)

Json = Any
"""What `json.loads` returns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """One frozen command, as its file holds it.

    Attributes:
        command: the line. code: exit code; json_code: with `--json`, None where that was not run.
        terminal, stderr: lines. document: the reduced document, None where there is none.
    """

    command: str
    code: int
    json_code: int | None
    terminal: list[str]
    stderr: list[str]
    document: Json

    def dumps(self) -> str:
        """The file's text: one line for each line of output and each group of sites."""
        head = {"command": self.command, "code": self.code, "json_code": self.json_code}
        parts = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
        parts += [
            f' "{name}": {_lines(value)}' for name, value in (("terminal", self.terminal), ("stderr", self.stderr))
        ]
        parts.append(f' "document": {_document(self.document)}')
        return "{\n" + ",\n".join(parts) + "\n}\n"

    @classmethod
    def load(cls, name: str, folder: Path = DATA) -> Snapshot:
        """The snapshot of a command.

        Raises:
            FileNotFoundError: it was never recorded.
        """
        return cls(**json.loads((folder / f"{name}.json").read_text()))


def _lines(items: list[Json]) -> str:
    return "[" + ",".join(f"\n  {json.dumps(item)}" for item in items) + "]"


def _document(document: Json) -> str:
    if not isinstance(document, dict):
        return json.dumps(document)
    members = []
    for key, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], dict) and set(value[0]) == {"at", "rows"}:
            groups = [f'{{"at": {json.dumps(group["at"])}, "rows": {_lines(group["rows"])}}}' for group in value]
            members.append(f"\n  {json.dumps(key)}: [{', '.join(groups)}]")
        else:
            members.append(f"\n  {json.dumps(key)}: {_lines(value) if isinstance(value, list) else json.dumps(value)}")
    return "{" + ",".join(members) + "}"


def reduce(command: Command, captured: Captured, folder: Path) -> Snapshot:
    """The snapshot of a capture made in `folder`."""
    failed = captured.code in (2, 125) and not captured.document
    error = [line for line in captured.stderr.splitlines() if line.startswith("parity: ")]
    stderr = list(_stages(captured.stderr)) if command.stderr else error if failed else []
    terminal = [_place(line, folder) for line in captured.stdout.splitlines() if not _elsewhere(line)]
    if command.kept == "labels":
        terminal = [line.partition(":")[0] for line in terminal]
    elif command.kept == "options":
        terminal = sorted(_options(captured.stdout))
    if len(terminal) > MOST_LINES:
        terminal = [*terminal[:MOST_LINES], f"({len(terminal) - MOST_LINES} lines more)"]
    return Snapshot(
        command=command.line,
        code=captured.code,
        json_code=captured.document_code,
        terminal=terminal,
        stderr=[_place(line, folder) for line in stderr],
        document=_reduced(command, captured.document, folder),
    )


PLACE = re.compile(r"^\d+ of \d+  |  \d+:\d\d(:\d\d)?, about \S+ left$")


def _stages(stderr: str) -> Iterator[str]:
    """Lines of progress without what only an earlier run of this machine tells: place, time and what is left."""
    for line in stderr.splitlines():
        if not line.startswith("finished in "):
            yield PLACE.sub("", line)


def _elsewhere(item: Json) -> bool:
    return isinstance(item, str) and (item in LEGENDS or any(words in item for words in NOT_EVERYWHERE))


def _options(page: str) -> Iterator[str]:
    """The arguments, options and commands of a help page without what is said of them: `--seed <int> [default: 0]`."""
    for section in SECTION.finditer(page):
        for entry in re.split(r"\n  (?! )", f"\n{section['entries']}")[1:]:
            name = re.split(r"\s{2,}", entry)[0]
            default = re.search(r"\[default:\s+([^\]]*)\]", entry)
            yield f"{name} [default: {' '.join(default[1].split())}]" if default else name


def _place(text: str, folder: Path) -> str:
    """Without the paths of this machine, and without what its cache holds."""
    text = re.sub(r"in the cache (yes|no: made by the first run)$", "in the cache <machine>", text)
    text = text.replace(str(folder), "<work>")
    return re.sub(r"/[^\s:'\"]*parity-cache[^\s:'\"]*|/[^\s:'\"]*\.cache/parity[^\s:'\"]*", "<cache>", text)


def _reduced(command: Command, text: str, folder: Path) -> Json:
    if not text:
        return None
    if text.lstrip().startswith("<"):
        return {"headings": [re.sub(r"<[^>]*>", "", found[2]).strip() for found in HEADING.finditer(text)]}
    try:
        document = json.loads(_place(text, folder))
    except ValueError:
        return f"no JSON document: {text[:200]!r}"
    return shape(document) if command.kept == "labels" else _value("", document)


def shape(value: Json) -> Json:
    """Only the keys of a document, for one whose values are the machine's."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return None


def _value(key: str, value: Json) -> Json:
    if key in MACHINE_KEYS and not isinstance(value, dict):
        return "<machine>"
    if isinstance(value, dict):
        if len(value) >= MANY and all(isinstance(item, str) for item in value.values()):
            digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
            return f"{len(value)} entries, {digest}"
        if key in MACHINE_KEYS:
            return sorted(value)
        return {name: _value(name, item) for name, item in value.items()}
    if isinstance(value, list):
        if key in SITE_LISTS:
            return _grouped(value, _site)
        if key == "records" and value and isinstance(value[0], dict):
            return _grouped(value, _record)
        return [_value("", item) for item in value if not _elsewhere(item)]
    if isinstance(value, float):
        return float(f"{value:.5g}")
    return value


def _grouped(items: list[Json], row: Callable[[Json], str]) -> list[Json]:
    """Rows under the place they share, in their order."""
    groups: list[Json] = []
    for item in items:
        at = f"{item['stage']} {item['step']} {item['branch'] or '-'}"
        if not groups or groups[-1]["at"] != at:
            groups.append({"at": at, "rows": []})
        groups[-1]["rows"].append(row(item))
    return groups


def _site(site: Json) -> str:
    """`NAME#CALL | verdict birth | rel L2 / floor | local rel L2 / local floor | what else there is`."""
    call = f"#{site['call']}" if site["call"] else ""
    parts = [
        site["site"] + call,
        f"{site['verdict']} {site['birth'] or '-'}",
        f"{_two(site['rel_l2'])} / {_two(site['floor'])}",
        "" if site["local_rel_l2"] == "nan" else f"{_two(site['local_rel_l2'])} / {_two(site['local_floor'])}",
        "; ".join(_apart(site)),
    ]
    return " | ".join(parts).rstrip(" |")


def _apart(site: Json) -> list[str]:
    shapes = ["x".join(map(str, shape)) for shape in site["shapes"]]
    told = [f"shape {shapes[0]} -> {shapes[1]}"] if shapes[0] != shapes[1] else []
    told += [f"dtype {' -> '.join(site['dtypes'])}"] if len(set(site["dtypes"])) > 1 else []
    told += [f"not finite {site['nonfinite'][0]} -> {site['nonfinite'][1]}"] if any(site["nonfinite"]) else []
    return [*told, *([site["note"]] if site["note"] else [])]


def _record(record: Json) -> str:
    """`NAME#CALL | kind dtype shape frame | what is held`."""
    call = f"#{record['call']}" if record["call"] else ""
    rows = f"{record['rows']} {'x'.join(map(str, record['frame']))}".strip()
    held = [name for name in ("sketch", "value") if record[name]]
    held += ["moments"] if record["moments"] else []
    held += ["floor"] if record["floor"] else []
    scalar = "" if record["kind"] != "scalar" else f" = {record['scalar']}"
    shape_text = "x".join(map(str, record["shape"]))
    return (
        f"{record['site']}{call} | {record['kind']} {record['dtype']} {shape_text} ({rows}){scalar} | {' '.join(held)}"
    )


def _two(value: Json) -> str:
    return value if isinstance(value, str) else f"{value:.1e}" if value else "0"
