"""What the fault bench judges candidates against: a reference with its floors, measured once.

A candidate is compared as `parity run` compares it, in this process and against a reference that remembers its runs
(`parity.runs.memo`): nothing of the product is replaced, but for the fault in the candidate.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from parity.commands.keep import KeepRun
from parity.compare.result import Result
from parity.models.registry import DEFAULT_MODEL
from parity.paths.live import Host, LiveSide
from parity.paths.loaded import Loaded
from parity.paths.plan import Role, Spec
from parity.paths.port.settings import PortInfo, chosen
from parity.records import Facts
from parity.runs import compare
from parity.runs.memo import Remembering
from parity.runs.request import NO_PORTS, Ports, Request
from parity.runs.sides import Sink, candidate_spec, spec_of
from parity.settings import parse


def quiet(text: str, done: int | None = None, total: int | None = None) -> None:
    del text, done, total


@dataclass
class _Openers:
    """Opens sides in this process; the candidate is the one that stands in `loaded`."""

    host: Host = field(default_factory=Host)
    loaded: Loaded | None = None

    def of(self, role: Role) -> _Openers:
        return self

    def port(self, option: str, text: str) -> PortInfo:
        return self.host.port(option, text)

    def open(self, spec: Spec) -> LiveSide:
        own = self.loaded is not None and spec.role == "candidate" and spec.settings == self.loaded.settings.as_text()
        side = LiveSide(self.host, spec)
        if own:
            side.loaded = self.loaded
        return side


class Known:
    """A reference with its floors, measured once and judged against many times.

    Args:
        sites: observed. model: name or folder. port: `FILE:FUNCTION` of the candidate.
    """

    def __init__(
        self,
        dtype: str,
        steps: int,
        seed: int = 0,
        *,
        sites: str = "blocks",
        model: str = DEFAULT_MODEL,
        port: str | None = None,
    ) -> None:
        exact, texts = dtype == "float32", [f"dtype={dtype}"]
        self._openers = _Openers()
        self.openers = Remembering(self._openers)
        candidate, ports = parse("torchax", texts), NO_PORTS
        if port is not None:
            own = self._openers.port("--port", port)
            candidate, ports = chosen(own, "torchax", []), Ports(candidate=own)
        self.request = Request(
            model,
            parse("torch", texts),
            candidate,
            steps,
            seed,
            sites=sites,
            checks="both" if exact else "precision",
            ports=ports,
        )
        self.facts: Facts = self.openers.of("reference").open(spec_of(self.request, "reference")).facts()

    def candidate(self, *settings: str) -> Loaded:
        """A loaded candidate with these settings over those of the bench's dtype."""
        request = self.request
        if request.ports.candidate is None:
            dtype = request.candidate.text("dtype")
            request = replace(request, candidate=parse("torchax", [f"dtype={dtype}", *settings]))
        return self._openers.host.open(candidate_spec(request, self.facts)).loaded

    def judge(self, candidate: Loaded, keep: Path | None = None) -> Result:
        """The tool's result.

        Args:
            keep: where both sides' records are kept as a run's are; None for nowhere.
        """
        self._openers.loaded = candidate
        request = replace(self.request, candidate=candidate.settings)
        sink = Sink() if keep is None else KeepRun(keep, request)
        return compare.run(request, quiet, sink, openers=self.openers)
