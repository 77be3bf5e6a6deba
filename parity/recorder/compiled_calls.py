"""A transformer that a script compiled with torch.compile: its program runs as it is, its modules are seen beside it.

Problem. A compiled module calls no hooks, and hooks that are there while it is compiled become part of it.

How. The call itself is watched from outside, and what it gives is what the script goes on with and what is recorded as
its prediction. Then the same module is called once more on the same inputs without its compiled program, with what a
recording attaches: that is where the records of its modules come from. It rounds otherwise than the compiled program;
were that program wrong, the prediction would differ where no module does. Functions that are compiled on their own, as
flex attention must be, stay so.

Cost. A second forward for each call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from parity.hooks.attach import attached
from parity.hooks.compiled import ORIGINAL, eagerly, entry_of
from parity.hooks.methods import replaced
from parity.hooks.torchtools import mapped, prediction_of
from parity.recorder.again import Again, Draws, Memory
from parity.recorder.torch_calls import Calls
from parity.recorder.wrong import Call


@dataclass(kw_only=True)
class TorchCompiledCalls(Calls):
    """Watches a transformer that is compiled by torch.compile, or has modules that are.

    Attributes:
        entry: what the script calls: the model, or what wraps it.
    """

    entry: torch.nn.Module

    def __post_init__(self) -> None:
        with eagerly(self.model):
            super().__post_init__()
        self.tell(f"{self.prefix or 'the transformer'} is compiled: its modules are observed in an eager run beside it")

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Within it, its calls are recorded."""
        entry, name = self.entry, entry_of(self.entry)
        own = getattr(entry, name)

        def observed(*args: Any, **kwargs: Any) -> Any:
            if self.busy or not self.recording.wanted():
                return own(*args, **kwargs)
            again: Again | None = None
            with self.recording.guard():
                before, again = Memory.of([self.model]), Again.of(self.model, args, kwargs)
            out = own(*args, **kwargs)
            if again is not None:
                with self.recording.guard():
                    after, draws = Memory.of([self.model]), Draws.now()
                    before.put()
                    try:
                        self._beside(again, mapped(_kept, prediction_of(out)))  # CUDA graphs write over what they gave
                    finally:
                        after.put()
                        draws.put()
            return out

        if hasattr(own, ORIGINAL):  # so that `eagerly` finds the function beneath
            setattr(observed, ORIGINAL, getattr(own, ORIGINAL))
        elif name == "forward" and entry is self.model:
            setattr(observed, ORIGINAL, own)
        with self.branches.listening(self.model), replaced(entry, name, observed):
            yield

    def _beside(self, again: Again, output: Any) -> None:
        """Call the module itself on what its program was given, as it was then, and record that."""
        branches = self.branches.of(again.args, again.kwargs)
        call = Call(branches, again.args, again.kwargs)
        self.busy = True
        try:
            with eagerly(self.model):
                tap = self.tap(branches)
                with attached(self.model, tap):
                    again()
                self._record(call, tap, output)
        finally:
            self.busy = False


def _kept(x: torch.Tensor) -> torch.Tensor:
    return x.detach().clone()
