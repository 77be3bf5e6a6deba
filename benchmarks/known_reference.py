"""What the fault bench judges candidates against: a reference with its floors, measured once, and others' rules.

A candidate is compared as `parity run` compares it, in this process and against a reference that remembers its runs
(`parity.runs.memo`): nothing of the product is replaced, but for the fault in the candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from parity.commands.parts.keep import KeepRun
from parity.compare.result import Result
from parity.golden.facts import Facts
from parity.golden.records import Floor, Key, Record, StepRecords
from parity.models.registry import DEFAULT_MODEL
from parity.paths.live import Host, LiveSide
from parity.paths.loaded import Loaded
from parity.paths.plan import Role, Spec
from parity.paths.port.load import DEFAULT_TIMEOUT
from parity.paths.port.settings import PortInfo, settings_of
from parity.runs import compare
from parity.runs.memo import Remembering
from parity.runs.request import NO_PORTS, Ports, Request
from parity.runs.sides import candidate_spec, reference_spec
from parity.runs.sink import NoSink
from parity.settings import parse

VALUES = {"float32": ("*:out",), "bfloat16": ("transformer_blocks.?:out", "x_embedder:out", "proj_out:out")}
"""Outputs that the rules of others judge; in bfloat16 those of the blocks, so that all fit beside the local floors."""


def quiet(text: str, done: int | None = None, total: int | None = None) -> None:
    del text, done, total


@dataclass
class _Openers:
    """Opens sides in this process; the candidate is the one that stands in `loaded`."""

    host: Host = field(default_factory=Host)
    loaded: Loaded | None = None

    def of(self, role: Role) -> _Openers:
        return self

    def port(self, option: str, text: str, timeout: float) -> PortInfo:
        return self.host.port(option, text, timeout)

    def open(self, spec: Spec) -> LiveSide:
        own = self.loaded is not None and spec.role == "candidate" and spec.settings == self.loaded.settings.as_text()
        return LiveSide(self.host, spec, self.loaded if own else None)


class Known:
    """A reference with its floors, measured once and judged against many times.

    Args:
        sites: observed; in bfloat16 every module is also run alone on the reference's inputs. model: name or folder.
        forcing: in place of `none` in float32 and `module` in bfloat16. port: `FILE:FUNCTION` of the candidate.
    """

    def __init__(
        self,
        dtype: str,
        steps: int,
        seed: int = 0,
        *,
        sites: str | None = None,
        values: tuple[str, ...] | None = None,
        model: str = DEFAULT_MODEL,
        forcing: str | None = None,
        port: str | None = None,
    ) -> None:
        exact = dtype == "float32"
        self._openers = _Openers()
        self.openers = Remembering(self._openers, calls=True)
        theirs = None if port is None else self._openers.port("--candidate-path", port, DEFAULT_TIMEOUT)
        base = parse("torchax") if theirs is None else settings_of(theirs, parse("torchax"), [])
        chosen = [f"dtype={dtype}"]
        self.request = Request(
            model,
            parse("torch", chosen),
            parse("torchax", chosen) if theirs is None else base,
            steps,
            seed,
            sites=sites or ("blocks" if exact else "all"),
            values=VALUES[dtype] if values is None else values,
            forcing=forcing or ("none" if exact else "module"),
            rounds="both" if exact else "precision",
            ports=NO_PORTS if theirs is None else Ports(candidate=theirs),
        )
        self.facts: Facts = self.openers.of("reference").open(reference_spec(self.request)).facts()

    def candidate(self, *settings: str) -> Loaded:
        """A loaded candidate with these settings over those of the bench's dtype."""
        if self.request.ports.candidate is not None:
            return self._openers.host.open(candidate_spec(self.request, self.facts)).loaded
        dtype = self.request.candidate.text("dtype")
        request = replace(self.request, candidate=parse("torchax", [f"dtype={dtype}", *settings]))
        return self._openers.host.open(candidate_spec(request, self.facts)).loaded

    def judge(self, candidate: Loaded) -> tuple[Result, Taken]:
        """The tool's result, and what both sides computed."""
        taken = Taken()
        self._openers.loaded = candidate
        request = replace(self.request, candidate=candidate.settings)
        return compare.run(request, quiet, taken, openers=self.openers), taken

    def keep(self, candidate: Loaded, where: Path) -> Result:
        """The same, with both sides' records kept as a run's are."""
        self._openers.loaded = candidate
        request = replace(self.request, candidate=candidate.settings)
        return compare.run(request, quiet, KeepRun(where, request), openers=self.openers)


class Taken(NoSink):
    """Keeps both sides' outputs, for the rules that others use.

    Attributes:
        reference, candidate: records with values. floors: of the reference.
    """

    def __init__(self) -> None:
        self.reference: dict[Key, Record] = {}
        self.candidate: list[Record] = []
        self.floors: dict[Key, Floor] = {}

    def step(self, reference: StepRecords, candidate: StepRecords) -> None:
        self.reference |= {r.key: r for r in _outputs(reference.records)}
        self.candidate += _outputs(candidate.records)
        self.floors |= reference.floors


def _outputs(records: Sequence[Record]) -> list[Record]:
    return [r for r in records if isinstance(r.value, np.ndarray) and r.shape]


# --- the rules that others use -----------------------------------------------------------------------------------


def rivals(taken: Taken) -> dict[str, bool]:
    """Whether each rule raises an alarm at any output, on the same values."""
    raised = dict.fromkeys(("allclose 1e-2", "PCC 0.99", "cosine 0.99", "1.5 x noise"), False)
    for record in taken.candidate:
        other = taken.reference.get(record.key)
        if other is None or not isinstance(other.value, np.ndarray) or other.value.shape != record.value.shape:
            continue
        a, b = (np.asarray(x, np.float64).ravel() for x in (other.value, record.value))
        if not a.any():
            continue
        raised["allclose 1e-2"] |= not np.allclose(b, a, rtol=1e-2, atol=1e-5)
        raised["cosine 0.99"] |= not a @ b / (np.linalg.norm(a) * np.linalg.norm(b)) >= 0.99
        if a.size > 1:
            raised["PCC 0.99"] |= not np.corrcoef(a, b)[0, 1] >= 0.99
        floor = taken.floors.get(record.key)
        if floor is not None:
            raised["1.5 x noise"] |= not np.linalg.norm(b - a) <= 1.5 * floor.l2
    return raised
