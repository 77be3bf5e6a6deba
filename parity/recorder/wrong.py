"""Known faults inside a recording: what the script's own model would give with each, kept for `parity explain`.

The first step's calls of the transformer are repeated on their recorded inputs with one fault of attention at a time
(`parity.hooks.faults.attention`), and the decoder's with one of a decoder's. Nothing of it goes on into the script's
loop or into the floors. What a fault does not change it is not kept of.

Cost: a forward for each fault and call of the first step, some ten to twenty; two decodes for each fault of a decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from parity.golden.faults import Faults, write_faults
from parity.golden.records import Record
from parity.hooks.attach import attached
from parity.hooks.calls import Call, prediction_of
from parity.hooks.faults.attention import AttentionFault, Faulty, Lengths, looking
from parity.hooks.faults.decoder import FAULTS, faulty
from parity.hooks.reduce.transfer import torch_records
from parity.hooks.rerun import rerun
from parity.hooks.tap import Tap

STEP = 0
"""The step whose calls are repeated."""
NOT_DIVIDED = "vae.scaling=none"
"""Kept beside each fault of a decoder: a port that forgets the division often has another fault too."""


def _scale(vae: Any) -> float:
    """What a decoder's input was divided by; 0 where its config does not say that, or says more."""
    config = getattr(vae, "config", None)
    found = dict(config) if isinstance(config, Mapping) else {}
    scale = found.get("scaling_factor")
    more = any(found.get(name) for name in ("shift_factor", "latents_mean", "latents_std"))
    return 0.0 if more or not isinstance(scale, (int, float)) or scale == 1.0 else float(scale)


@dataclass
class Wrong:
    """What was recorded under known faults.

    Attributes:
        tell: says a line to the user.
    """

    tell: Callable[[str], None]
    _steps: dict[int, dict[Faults, list[Record]]] = field(default_factory=dict)
    _lengths: Lengths = field(default_factory=lambda: Lengths(set(), set()))
    _faults: tuple[AttentionFault, ...] | None = None

    def call(self, model: torch.nn.Module, call: Call, tap: Callable[[], Tap]) -> Iterator[tuple[Faults, torch.Tensor]]:
        """Repeat a call of the first step with each fault: the faults, and the prediction."""
        if self._faults is None:
            with torch.no_grad(), looking(self._lengths):
                rerun(model, call, None)
            self._faults = tuple(self._lengths.faults())
            if not self._lengths.keys:
                self.tell("causes: this transformer calls no attention function of torch's: no fault of it is kept")
        for fault in self._faults if self._lengths.keys else ():
            names, seen = frozenset(fault.names), tap()
            with torch.no_grad(), Faulty(fault, self._lengths) as mode, attached(model, seen):
                made = prediction_of(rerun(model, call, None))
            if mode.changed:
                self.keep(STEP, names, torch_records(seen.entries, "transformer", STEP))
                yield names, made

    def decode(
        self, vae: torch.nn.Module, z: torch.Tensor, decode: Callable[[torch.Tensor], Any]
    ) -> Iterator[tuple[Faults, Any]]:
        """Decode with each fault of a decoder, and with latents that were not divided beside it: the faults, and what
        they gave.

        Args:
            decode: the script's call of latents.
        """
        scale = _scale(vae)
        for name in FAULTS:
            changed: list[str] = []
            setting, _, value = name.partition("=")
            with torch.no_grad(), faulty(vae, z, {setting: value}, changed.append):
                out = decode(z)
                whole = decode(z * scale) if changed and scale else None
            if changed:
                yield frozenset({name}), out
            if whole is not None:
                yield frozenset({name, NOT_DIVIDED}), whole
        if scale:
            with torch.no_grad():
                yield frozenset({NOT_DIVIDED}), decode(z * scale)

    def keep(self, step: int, faults: Faults, records: Iterable[Record]) -> None:
        """Take what faults gave: of modules their outputs alone, of frames what is shown of them too."""
        apart = (r for r in records if not r.key.is_apart or (step != STEP and r.key.is_read))
        outputs = (r for r in apart if not r.key.is_input and r.sketch is not None)
        self._steps.setdefault(step, {}).setdefault(faults, []).extend(outputs)

    def finish(self, where: str) -> None:
        """Write it beside the golden, which is there."""
        if self._steps:
            write_faults(where, self._steps)
