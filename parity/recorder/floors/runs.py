"""The runs that stand beside a script's own: what each rounds otherwise, and what it differs by so far."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from parity.hooks.perturb import perturbed
from parity.recorder.floors.memory import Place

KINDS = ("fp64", "rounding")
SEEDS = 3
TRUTH = "float32"


def seed_of(run: int, step: int = 0) -> int:
    """The seed of what a run rounds in a step; of what comes before or after the loop, in step 0."""
    return 1_000_003 * (run + 1) + step


@dataclass
class Variant:
    """A run that rounds otherwise.

    Attributes:
        name: as the golden's floors know it. dtype: in which the model is run again; None for its own. seed: of the
            perturbation; None for none. shifts: what the scheduler's last results differ by from the script's.
        predictions: of this step, what each differs by, in the order of the branches. memory: what its scheduler
            remembers otherwise than the script's.
    """

    name: str
    dtype: torch.dtype | None = None
    seed: int | None = None
    shifts: list[torch.Tensor] = field(default_factory=list)
    predictions: list[torch.Tensor] = field(default_factory=list)
    memory: dict[Place, torch.Tensor] = field(default_factory=dict)

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
                stack.enter_context(perturbed(model, seed_of(self.seed, step), device))
            yield


def variants_of(model: torch.nn.Module, kinds: Sequence[str]) -> list[Variant]:
    """The runs beside a model's own, the truth first where that is another run."""
    low = any(x.dtype in (torch.bfloat16, torch.float16) for x in model.parameters())
    wide = torch.float32 if low else None
    found = [Variant(TRUTH, torch.float32)] if low else []
    found += [Variant("float64", torch.float64)] if "fp64" in kinds else []
    return found + [Variant(f"rounding {seed}", wide, seed) for seed in range(SEEDS if "rounding" in kinds else 0)]
