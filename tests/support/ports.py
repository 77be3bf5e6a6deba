"""Comparisons of port files, each side in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parity.compare.result import Result
from parity.paths.worker.openers import Openers, Workers
from parity.runs.compare import run
from parity.runs.load import load_ports
from parity.runs.request import Request
from tests.support.lab import quiet


def compare(
    reference: str | None,
    candidate: str | None,
    *settings: str,
    model: str | None = None,
    openers: Openers | None = None,
    **options: Any,
) -> Result:
    """Compare two sides given as `FILE:FUNCTION`, or parity's own where one is None.

    Args:
        settings: of the candidate. model: name or folder. openers: in place of processes. options: of
            `Request`.
    """
    ports = load_ports(reference, candidate, model, openers or Workers())
    ours, theirs = ports.settings([], list(settings))
    return run(Request(model or "model", ours, theirs, ports=ports, **options), quiet)


def port(folder: Path, text: str, function: str = "build") -> str:
    """Write a port; returns its `FILE:FUNCTION`."""
    (folder / "port.py").write_text(text)
    return f"{folder / 'port.py'}:{function}"


def origin(result: Result) -> tuple[str, str | None]:
    """Verdict, and the site of the first divergence."""
    return result.verdict, None if result.origin is None else result.origin.key.site


def modules(result: Result) -> set[str]:
    """The modules that both sides have tensors of."""
    return {d.key.module for d in result.sites if all(d.dtypes) and d.dtypes}


def check(result: Result, name: str) -> Any:
    """The preflight check of this name."""
    return next(c for c in result.preflight if c.check == name)
