"""Which modules make the candidate differ: the fewest whose replacement by the reference's restores parity.

How. A probe is one run of a step in which some modules give what the reference's would (`parity.bisect.transplant`).
First none are replaced: that must differ; then all of them: that must not, or the difference is made outside them.

Cost. Of n modules ceil(log2 n) + 3 runs for one at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from parity.bisect.report import Report, by_outcome, listing, plural
from parity.bisect.search import Answer, Found, Subject
from parity.bisect.strategy import Order, Outcome
from parity.errors import ParityError, UnjudgedError, UsageError

Judge = Callable[[tuple[str, ...]], tuple[Outcome, str]]
"""Runs with these modules replaced: good where that restores parity; and one line that says why."""


class Modules(Subject[str]):
    """Modules in execution order, by name; a probe replaces some of them."""

    noun, phrase, checked = "module", "{}", True

    def __init__(self, modules: tuple[str, ...], judge: Judge, outside: str = "") -> None:
        """Args:
        outside: what else may be at fault, for the message where replacing all is not enough.
        """
        self._judge, self._outside = judge, outside
        self.order = Order(modules)
        self.presumed = {(): "bad", modules: "good"}

    def words(self, key: tuple[str, ...]) -> str:
        return f"{self._neighbours(key)} replaced"

    def probe(self, items: tuple[str, ...]) -> Answer[str]:
        return Answer(*self._judge(items))

    def refusal(self, items: tuple[str, ...], outcome: Outcome, evidence: str) -> ParityError:
        if not items:
            return UsageError(
                f"there is no difference to look for: with no module replaced {evidence}; both sides are in float32 "
                "here, so what only rounds is not seen: `parity bisect settings` looks for that"
            )
        return UnjudgedError(
            f"replacing all {len(items)} modules does not restore parity ({evidence}): what differs is made outside "
            f"them, in the code between them or after the last one{self._outside}"
        )

    def _neighbours(self, names: tuple[str, ...]) -> str:
        """Modules for a sentence: runs of neighbours by their ends."""
        at = {name: i for i, name in enumerate(self.order.items)}
        runs: list[list[str]] = []
        for name in names:
            if runs and at.get(name, -1) == at.get(runs[-1][-1], -3) + 1:
                runs[-1].append(name)
            else:
                runs.append([name])
        return ", ".join(r[0] if len(r) == 1 else f"{r[0]} to {r[-1]} ({len(r)})" for r in runs) or "none"

    def report(self, found: Found[str], left_out: Mapping[str, str], aligned: Sequence[str]) -> Report:
        """The culprits; modules in execution order.

        Args:
            left_out: modules that cannot be replaced, and why. aligned: settings that are the reference's in every run.
        """
        facts = listing(found.probes, self.words)
        if aligned:
            facts.append(("the reference's in every run", ", ".join(aligned)))
        facts += [("cannot be replaced", f"{name}: {why}") for name, why in left_out.items()]
        probes = f"({plural(len(found.probes), 'probe')} of {plural(len(self.order.items), 'module')})"
        return Report(
            kind="modules",
            answer={
                "culprits": found.answer,
                "searched": self.order.items,
                "aligned": aligned,
                "left_out": [{"module": name, "why": why} for name, why in left_out.items()],
            },
            probes=tuple(({"replaced": p.subject}, p) for p in found.probes),
            sorted_out=by_outcome(found.probes, lambda p: p.subject),
            facts=(*facts, ("", f"replacing {', '.join(found.answer)} restores parity {probes}")),
        )
