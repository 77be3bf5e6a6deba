"""What observing changes in the program of a candidate on a TPU: a note of the result.

Problem. A compiler makes another program where tensors are looked at, and may round otherwise there; a TPU's does so
more than a CPU's. How far what was compared is what the user's own program computes is to be known.

How. The program of the first step is compiled with nothing observed too, and the optimised texts of both are laid side
by side, as `parity compile` does beforehand (`parity.tpu.effect`).

Cost: one compilation of the candidate and two of its steps; on other devices nothing.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from parity.compare.result import Result
from parity.errors import ParityError, summary
from parity.golden.facts import Facts
from parity.paths.plan import FIGURES, OBSERVED, UNOBSERVED, Plan
from parity.paths.worker.process import RemoteError
from parity.runs.closer.follow import holding
from parity.runs.request import Request, Say
from parity.runs.sides import Ready
from parity.tpu.effect import effect
from parity.tpu.hlo import HloError, parse

_FIGURES = {
    "bytes accessed": ("cost", "bytes"),
    "temporaries": ("memory", "temporaries"),
    "code": ("memory", "code"),
}
"""What is told as a ratio -> where it stands in the figures of a program."""


def on_tpu(facts: Facts) -> bool:
    """Whether a side computes on a TPU."""
    return facts.provenance is not None and any(name.startswith("TPU") for name in facts.provenance.devices)


def observing(result: Result, pair: Ready, request: Request, say: Say) -> Result:
    """A result with what observing changed in the candidate's program, where that is a TPU's."""
    facts = pair.facts.candidate
    if request.sites == "none" or not facts.compiled or not on_tpu(facts):
        return result
    say("the candidate's program with nothing observed")
    sites = holding(pair, pair.plan(request), request.sites)
    with tempfile.TemporaryDirectory() as folder:
        try:
            for _ in pair.sides.candidate.observe(Plan(sites=sites, programs=folder), steps=(0, 1)):
                pass
        except (ParityError, RemoteError) as error:  # a note is not worth the verdict that hours went into
            return result.noted(f"what observing changes in the candidate's program is not known: {summary(error)}")
        return result.noted(_told(Path(folder), frozenset(pair.modules)))


def _told(folder: Path, modules: frozenset[str]) -> str:
    """One sentence of the two programs that lie in a folder."""
    texts = [(folder / f"{name}.hlo").read_text(encoding="utf-8") for name in (UNOBSERVED, OBSERVED)]
    figures = json.loads((folder / FIGURES).read_text(encoding="utf-8"))
    try:
        found = effect(parse(texts[0]), parse(texts[1]), modules)
    except HloError as error:
        return f"what observing changes in the candidate's program is not known: its text cannot be read: {error}"
    cut, changed = (sum(count for _, count in of) for of in (found.cut, found.changed))
    where = "".join(f", {name}" for name, _ in found.changed[:3] if name)
    units = f"{found.same} of {found.before} units that multiply as without, {cut} cut, {changed} others{where}"
    ratios = [
        f"{word} {_of(figures, OBSERVED, *of) / _of(figures, UNOBSERVED, *of):.2f} x"
        for word, of in _FIGURES.items()
        if _of(figures, UNOBSERVED, *of) > 0
    ]
    return f"observing, in the candidate's program: {'; '.join((units, *ratios))}"


def _of(figures: dict[str, Any], program: str, kind: str, name: str) -> float:
    return float(figures[program][kind].get(name, 0))
