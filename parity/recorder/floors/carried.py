"""Floors inside a recording: runs beside the script's own that round otherwise, carried from step to step.

Each of the transformer's calls is repeated on its recorded inputs: in float64, and with every module's inputs, outputs,
weights and sums moved by what rounding does (`parity.hooks.perturb`); where the script works in 16 bits also in
float32, which is then the truth around which the others round. What such a run's latents differ by is carried: into the
transformer's next inputs, wherever they lie in them; into the scheduler, by what the script's guidance made of the
predictions (both are read off the values: `parity.recorder.floors.related`); and through a copy of the scheduler.
So the floor of step 40 holds what rounding has grown to by then, though the loop is the script's. What the script's
text encoders round by comes in with the text (`parity.recorder.floors.texts`), what its image encoders do with what
they encoded (`parity.recorder.floors.prepared`).

In float64 nothing that the script compiled is compiled again: a compiled flex attention has no float64 on most devices,
and another entry in the compiler's table could end what the script compiled. Where it cannot be run in float64 at all,
for want of memory or of a kernel, the recording goes on with the other runs, and says so.

Cost: a forward for each run and call, and in float64 a copy of the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from parity.golden.records import Record
from parity.hooks.attach import attached
from parity.hooks.calls import Call, mapped, prediction_of
from parity.hooks.reduce.transfer import torch_records
from parity.hooks.rerun import rerun
from parity.hooks.tap import Tap
from parity.recorder.floors.draws import Drawn, same_draws
from parity.recorder.floors.memory import remember, shifts_of
from parity.recorder.floors.prepared import Prepared
from parity.recorder.floors.related import displaced, dithered, guidance
from parity.recorder.floors.runs import Variant


@dataclass
class Carried:
    """The runs beside a script's own.

    Attributes:
        variants: them; one in float64 that fails is left out from then on. tell: says so.
        text: moves a tensor's rows of encoded text as a run's encoders would have, in float64; None where it has none.
        prepared: what the script's pipeline encoded before its loop.
        running: the name of the one whose call is being made; empty for none.
    """

    variants: list[Variant]
    tell: Callable[[str], None]
    text: Callable[[torch.Tensor, str], torch.Tensor | None]
    prepared: Prepared
    running: str = ""
    _latents: list[torch.Tensor] = field(default_factory=list)
    _outputs: list[torch.Tensor] = field(default_factory=list)
    _told: bool = False

    def call(
        self, model: torch.nn.Module, call: Call, output: torch.Tensor, tap: Callable[[], Tap], step: int
    ) -> Iterator[tuple[str, list[Record], torch.Tensor]]:
        """Repeat a call of the transformer: each run's name, records, and prediction."""
        count = len(call.branches) if output.shape[0] % len(call.branches) == 0 else 1
        parts = output.chunk(count)
        self._outputs += [part.detach() for part in parts]
        for variant in list(self.variants):
            seen = tap()
            try:
                made = self._again(variant, model, call, seen, step)
            except Exception as error:
                if variant.dtype is not torch.float64:
                    raise
                self.variants.remove(variant)
                why = f"{type(error).__name__}: {error}".splitlines()[0]
                self.tell(
                    f"the transformer cannot be run in float64 here ({why}); the floors are those of rounding alone"
                )
                continue
            apart = made.to(torch.float64) - output.detach().to(torch.float64)
            variant.predictions += apart.chunk(count)
            yield variant.name, torch_records(seen.entries, "transformer", step), made

    def _again(self, variant: Variant, model: torch.nn.Module, call: Call, seen: Tap, step: int) -> torch.Tensor:
        """The prediction of a call in another run."""
        args, kwargs = self._shifted(variant, call.args), self._shifted(variant, dict(call.kwargs))
        again = Call(call.module, call.number, call.branches, args, kwargs, None)
        self.running = variant.name
        try:
            with variant.around(model, step), attached(model, seen):
                return prediction_of(rerun(model, again, variant.dtype))
        finally:
            self.running = ""

    def _shifted(self, variant: Variant, given: Any) -> Any:
        """Arguments of the script's as this run would have made them: what is made of the latents, of what was prepared
        beside them, and of text, is moved."""

        def move(x: torch.Tensor) -> torch.Tensor:
            if not x.is_floating_point() or x.ndim < 2:
                return x.clone()
            apart = self._apart(x, variant)
            moved = self.text(x, variant.name) if apart is None else x.to(torch.float64) + apart
            if apart is not None and moved is not None and variant.seed is not None and self._was_cast(x):
                moved = dithered(moved, x.dtype, variant.seed)
            return x.clone() if moved is None else moved.to(variant.dtype or x.dtype)

        return mapped(move, given)

    def moved(self, run: Variant, x: torch.Tensor) -> torch.Tensor:
        """A tensor of the script's as a run has it by now, in its own dtype."""
        apart = self._apart(x, run) if x.is_floating_point() and x.ndim > 1 else None
        if apart is None:
            return x.clone()
        return dithered(x.to(torch.float64) + apart, x.dtype, run.seed or 0)

    def _was_cast(self, x: torch.Tensor) -> bool:
        """Whether a tensor has fewer bits than the latents."""
        latents = (own.dtype for own in self._latents if own.is_floating_point())
        return any(torch.finfo(x.dtype).eps > torch.finfo(dtype).eps for dtype in latents)

    def _apart(self, x: torch.Tensor, variant: Variant) -> torch.Tensor | None:
        """What a tensor differs by in a run; None where it holds none of the latents, nor of what was prepared."""
        found = None
        for own, shift in zip(self._latents, variant.shifts, strict=True):
            found = displaced(x, own, shift)
            if found is not None:
                break
        for own, shift in self.prepared.moved(variant.name):
            more = displaced(x, own, shift, around=True)
            if more is not None:  # each value moves once: in a fine schedule the first latents are near the next ones
                found = more if found is None else torch.where(found != 0, found, more)
        return found

    def stepped(
        self, before: Any, after: Any, arguments: Mapping[str, Any], results: Sequence[torch.Tensor], drawn: Drawn
    ) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
        """Take a step of the scheduler in each run: its name, and its guided prediction and latents around the step.

        Args:
            before, after: a copy of the scheduler as it stood, and it as it stands. arguments: of its step by name,
                with `model_output` and `sample`. results: tensors that it returned, the latents first. drawn: where
                torch's generators stood before it.
        """
        guided, sample = arguments["model_output"], arguments["sample"]
        made_of = guidance(guided, self._outputs, sample)
        if made_of is not None and not made_of.exact and not self._told:
            self._told = True
            self.tell(
                "how the script makes its guided prediction of the transformer's is no combination that is known; "
                "from there on the floors are estimates"
            )
        shifts: list[list[torch.Tensor]] = []
        for variant in self.variants:
            scheduler = copy.deepcopy(before)
            remember(scheduler, variant.memory, variant.dtype)
            given = {n: self._shifted(variant, x) if n != "model_output" else x for n, x in arguments.items()}
            given = {n: same_draws(x) for n, x in given.items()}
            if made_of is not None:
                latents = given["sample"].to(torch.float64) - sample.to(torch.float64)
                moved = guided.to(torch.float64) + made_of.moved(variant.predictions, latents, variant.seed)
                given["model_output"] = moved.to(variant.dtype or guided.dtype)
            with drawn.again(guided.dtype):
                made = tensors_of(type(scheduler).step(scheduler, **given))
            variant.memory = shifts_of(scheduler, after)
            shifts.append([m.to(torch.float64) - r.to(torch.float64) for m, r in zip(made, results, strict=True)])
            yield variant.name, {"noise_pred": given["model_output"], "before": given["sample"], "after": made[0]}
        for variant, apart in zip(self.variants, shifts, strict=True):
            variant.shifts, variant.predictions = apart, []
        self.prepared.step()
        self._latents, self._outputs = [r.detach().clone() for r in results], []

    @property
    def shift(self) -> dict[str, torch.Tensor]:
        """What each run's latents differ by now; empty before the first step."""
        return {v.name: v.shifts[0] for v in self.variants if v.shifts}


def tensors_of(result: Any) -> list[torch.Tensor]:
    """The tensors that a scheduler's step returns, the latents first."""
    values = result if isinstance(result, (tuple, list)) else list(vars(result).values())
    return [x for x in values if isinstance(x, torch.Tensor)]
