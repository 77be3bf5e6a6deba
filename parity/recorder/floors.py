"""Floors inside a recording: runs beside the script's own that round otherwise, carried from step to step.

Each of the transformer's calls is repeated on its recorded inputs: in float64, and with every module's inputs, outputs,
weights and sums moved by what rounding does (`parity.hooks.perturb`); where the script works in 16 bits also in
float32, which is then the truth around which the others round. What such a run's latents differ by is carried: into the
transformer's next inputs, by the scalar that relates them to the latents; into the scheduler, by the linear combination
of the predictions that the script's guidance made (fitted, whatever its formula); and through a copy of the scheduler.
So the floor of step 40 holds what rounding has grown to by then, though the loop is the script's. What the script's
text encoders round by comes in with the text (`parity.recorder.texts`).

In float64 nothing that the script compiled is compiled again: a compiled flex attention has no float64 on most devices,
and another entry in the compiler's table could end what the script compiled. Where it cannot be run in float64 at all,
for want of memory or of a kernel, the recording goes on with the other runs, and says so.

Cost: a forward for each run and call, and in float64 a copy of the weights.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from parity.golden.records import Record
from parity.hooks.attach import attached
from parity.hooks.calls import Call, mapped, prediction_of
from parity.hooks.perturb import perturbed
from parity.hooks.reduce.transfer import torch_records
from parity.hooks.rerun import rerun
from parity.hooks.tap import Tap
from parity.recorder.draws import Drawn

KINDS = ("fp64", "rounding")
SEEDS = 3
TRUTH = "float32"
FITS = 1e-2
"""Relative residual up to which a tensor counts as a multiple, or a combination, of others: 16 bits round by 4e-3."""


@dataclass
class Variant:
    """A run that rounds otherwise.

    Attributes:
        name: as the golden's floors know it. dtype: in which the model is run again; None for its own. seed: of the
            perturbation; None for none. shifts: what the scheduler's last results differ by from the script's.
        predictions: of this step, what each differs by, in the order of the branches.
    """

    name: str
    dtype: torch.dtype | None = None
    seed: int | None = None
    shifts: list[torch.Tensor] = field(default_factory=list)
    predictions: list[torch.Tensor] = field(default_factory=list)

    @contextlib.contextmanager
    def around(self, model: torch.nn.Module, step: int) -> Iterator[None]:
        """The context of its calls."""
        device = next(model.parameters()).device
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if self.dtype is not None:
                stack.enter_context(torch.autocast(device.type, enabled=False))
            if self.dtype is torch.float64:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            if self.seed is not None:
                stack.enter_context(perturbed(model, 1_000_003 * (self.seed + 1) + step, device))
            yield


def variants_of(model: torch.nn.Module, kinds: Sequence[str]) -> list[Variant]:
    """The runs beside a model's own, the truth first where that is another run."""
    low = any(x.dtype in (torch.bfloat16, torch.float16) for x in model.parameters())
    wide = torch.float32 if low else None
    found = [Variant(TRUTH, torch.float32)] if low else []
    found += [Variant("float64", torch.float64)] if "fp64" in kinds else []
    return found + [Variant(f"rounding {seed}", wide, seed) for seed in range(SEEDS if "rounding" in kinds else 0)]


@dataclass
class Carried:
    """The runs beside a script's own.

    Attributes:
        variants: them; one in float64 that fails is left out from then on. tell: says so.
        text: moves a tensor's rows of encoded text as a run's encoders would have, in float64; None where it has none.
        running: the name of the one whose call is being made; empty for none.
    """

    variants: list[Variant]
    tell: Callable[[str], None]
    text: Callable[[torch.Tensor, str], torch.Tensor | None]
    running: str = ""
    _latents: list[torch.Tensor] = field(default_factory=list)
    _outputs: list[torch.Tensor] = field(default_factory=list)

    def call(
        self, model: torch.nn.Module, call: Call, output: torch.Tensor, tap: Callable[[], Tap], step: int
    ) -> Iterator[tuple[str, list[Record], torch.Tensor]]:
        """Repeat a call of the transformer: each run's name, records, and prediction."""
        parts = output.split(1) if len(call.branches) == output.shape[0] else (output,)
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
            variant.predictions += list(apart.split(1) if len(parts) > 1 else (apart,))
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
        """Arguments of the script's as this run would have made them: multiples of the latents, and text, are moved."""

        def move(x: torch.Tensor) -> torch.Tensor:
            if not x.is_floating_point() or x.ndim < 2:
                return x.clone()
            for own, shift in zip(self._latents, variant.shifts, strict=True):
                moved = _along(x, own, shift, variant.dtype or x.dtype)
                if moved is not None:
                    return moved
            encoded = self.text(x, variant.name)
            return x.clone() if encoded is None else encoded.to(variant.dtype or x.dtype)

        return mapped(move, given)

    def stepped(
        self, before: Any, name: str, arguments: Mapping[str, Any], results: Sequence[torch.Tensor], drawn: Drawn
    ) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
        """Take a step of the scheduler in each run: its name, and its guided prediction and latents around the step.

        Args:
            before: a copy of the scheduler as it stood. name: the method that was called. arguments: by name, with
                `model_output` and `sample`. results: tensors that it returned, the latents first. drawn: where torch's
            generators stood before it.
        """
        guided = arguments["model_output"]
        weights = _combination(guided, self._outputs)
        shifts: list[list[torch.Tensor]] = []
        for variant in self.variants:
            scheduler = copy.deepcopy(before)
            given = {n: self._shifted(variant, x) if n != "model_output" else x for n, x in arguments.items()}
            given = {n: same_draws(x) for n, x in given.items()}
            if weights is not None:
                moved = sum(
                    (w * _like(x, guided) for w, x in zip(weights, variant.predictions, strict=True)),
                    torch.zeros_like(guided, dtype=torch.float64),
                )
                given["model_output"] = (guided.to(torch.float64) + moved).to(variant.dtype or guided.dtype)
            with drawn.again(guided.dtype):
                made = tensors_of(getattr(type(scheduler), name)(scheduler, **given))
            shifts.append([m.to(torch.float64) - r.to(torch.float64) for m, r in zip(made, results, strict=True)])
            yield variant.name, {"noise_pred": given["model_output"], "before": given["sample"], "after": made[0]}
        for variant, apart in zip(self.variants, shifts, strict=True):
            variant.shifts, variant.predictions = apart, []
        self._latents, self._outputs = [r.detach().clone() for r in results], []

    @property
    def shift(self) -> dict[str, torch.Tensor]:
        """What each run's latents differ by now; empty before the first step."""
        return {v.name: v.shifts[0] for v in self.variants if v.shifts}


def tensors_of(result: Any) -> list[torch.Tensor]:
    """The tensors that a scheduler's step returns, the latents first."""
    values = result if isinstance(result, (tuple, list)) else list(vars(result).values())
    return [x for x in values if isinstance(x, torch.Tensor)]


def _along(x: torch.Tensor, own: torch.Tensor, shift: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """`x` moved as a multiple of `own` moves by `shift`: once or for each branch in its batch, among other channels or
    not; None where it is no multiple."""
    if x.ndim != own.ndim or x.shape[0] % own.shape[0] or x.shape[1] < own.shape[1] or x.shape[2:] != own.shape[2:]:
        return None
    times = (x.shape[0] // own.shape[0], *([1] * (own.ndim - 1)))
    part, base = x[:, : own.shape[1]].to(torch.float64), own.to(torch.float64).repeat(times)
    size = base.square().sum()
    if not size > 0:
        return None
    factor = (part * base).sum() / size
    if not (part - factor * base).norm() <= FITS * part.norm():
        return None
    moved = x.to(torch.float64)
    moved[:, : own.shape[1]] += factor * shift.to(torch.float64).repeat(times)
    return moved.to(dtype)


def _combination(guided: torch.Tensor, outputs: Sequence[torch.Tensor]) -> list[float] | None:
    """The weights with which the script's guidance combined the predictions; None where that is no combination."""
    outputs = [_like(x, guided) for x in outputs]
    if not outputs or any(x.numel() != guided.numel() for x in outputs):
        return None
    columns = torch.stack([x.to(torch.float64).flatten() for x in outputs])
    target = guided.to(torch.float64).flatten()
    gram = (columns @ columns.T).cpu()
    weights = torch.linalg.lstsq(gram, (columns @ target).cpu()[:, None]).solution[:, 0]
    rest = target - weights.to(target.device) @ columns
    return [float(w) for w in weights] if rest.norm() <= FITS * target.norm() else None


def _like(x: torch.Tensor, guided: torch.Tensor) -> torch.Tensor:
    """What of a prediction is guided: its first channels, where a learned variance follows them."""
    more = x.ndim == guided.ndim > 1 and x.shape[1] > guided.shape[1] and x.shape[2:] == guided.shape[2:]
    return x[:, : guided.shape[1]] if more else x


def same_draws(x: Any) -> Any:
    """A generator that draws what the script's drew; anything else as it is."""
    if not isinstance(x, torch.Generator):
        return x
    again = torch.Generator(x.device)
    again.set_state(x.get_state())
    return again
