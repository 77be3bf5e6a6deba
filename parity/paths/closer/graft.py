"""Replacing modules of a loaded candidate by the reference's, without running the reference's: by its activations.

Problem. Putting the reference's activation in the place of a module's output would replace all that was computed
before it too, so that a fault in block 3 hides one in block 1; and the reference's own module need not run where the
candidate runs.

How. In one run all modules give the reference's activations, so that each is fed what the reference's was fed; what
each would have given is held against the reference's activation there, and the difference is the module's own error.
Afterwards a module is replaced by adding that error to what it gives: fed what the reference's was, it gives the
reference's activation; what a module before it did wrong is handed on as ever. So faults in several modules are told
apart. (Far from the reference's inputs the error is not exactly the same; where all faulty modules are replaced, the
inputs are the reference's again, and it is.)

All of it happens inside the compiled program: hooks act while it is traced, activations and errors are arguments, and
so is, for each module, whether it is replaced: two programs in all, whatever is replaced.

Cost. Memory of the outputs of all modules that may be replaced, once, twice while they are learnt (54 blocks of
HunyuanVideo-1.5 at 720p and 121 frames: 25 GB in bfloat16 a branch); what `--within` leaves out costs nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from parity.errors import UsageError
from parity.hooks.attach import callable_modules
from parity.hooks.graft import Change, Place, changed_outputs, error_of, finite, without_error
from parity.hooks.sites import SitePlan
from parity.paths.loaded import Backend, Eager, Predicted, StepCalls

Activations = Mapping[str, Mapping[Place, torch.Tensor]]
"""Branch -> place -> what the reference's module gave, on the CPU."""


@dataclass
class Grafted:
    """Calls a loaded transformer with modules replaced; see `parity.paths.loaded.Caller`. Nothing is observed, and a
    feature cache is not read: it is for steps at which all blocks run.

    Attributes:
        backend: the candidate's own. modules: names of those that may be replaced.
        replaced: those that are. left_out: those that cannot be, and why; known once their errors are learnt.
    """

    backend: Any
    modules: tuple[str, ...]
    replaced: frozenset[str] = frozenset()
    left_out: dict[str, str] = field(default_factory=dict)
    _given: Activations | None = None
    _errors: dict[tuple[str, ...], Any] = field(default_factory=dict)

    @contextlib.contextmanager
    def learning(self, given: Activations) -> Iterator[None]:
        """Within it, each call gives the reference's activations, and the errors of the modules are kept."""
        self._given = given
        self.left_out.clear()
        try:
            yield
        finally:
            self._given = None

    def call(self, calls: StepCalls, plan: SitePlan | None) -> Predicted:
        raise NotImplementedError

    def _targets(self) -> dict[str, str]:
        return targets_of(self.backend, self.modules)

    def _chosen(self) -> np.ndarray:
        return np.array([m in self.replaced and m not in self.left_out for m in self.modules], dtype=bool)

    def _learn(self, given: Mapping[Place, torch.Tensor], errors: dict[Place, torch.Tensor]) -> Change:
        """Gives the reference's outputs, and keeps what the module's own lack; `given` is where the module runs."""

        def change(place: Place, x: torch.Tensor) -> torch.Tensor:
            theirs = given.get(place)
            if theirs is None:
                self._leave_out(place, "the reference gives no such output")
                return x
            if theirs.shape != x.shape:
                self._leave_out(place, f"its output is {list(x.shape)}, the reference's {list(theirs.shape)}")
                return x
            own = self._here(x)
            errors[place] = error_of(own, theirs)
            return finite(theirs).to(own.dtype)

        return change

    def _correct(self, errors: Mapping[Place, torch.Tensor], chosen: Any) -> Change:
        number = {module: i for i, module in enumerate(self.modules)}

        def change(place: Place, x: torch.Tensor) -> torch.Tensor:
            error = errors.get(place)
            if error is None:
                return x
            own = self._here(x)
            return torch.where(chosen[number[place[0]]], without_error(own, error), own)

        return change

    def _here(self, x: torch.Tensor) -> torch.Tensor:
        """A module's output where activations are."""
        return x

    def _leave_out(self, place: Place, why: str) -> None:
        self.left_out.setdefault(place[0], f"{why} (call {place[1]}, tensor {place[2]})")

    def _require_all(self, given: Mapping[Place, Any], errors: Mapping[Place, Any]) -> None:
        for place in given:
            if place not in errors:
                self._leave_out(place, "the candidate gives no such output")


class GraftedTorch(Grafted):
    """An eager torch backend."""

    def call(self, calls: StepCalls, plan: SitePlan | None) -> Predicted:
        backend, targets = self.backend, self._targets()
        given = self._given

        @contextlib.contextmanager
        def listen(group: tuple[str, ...]) -> Iterator[None]:
            if given is None:
                change = self._correct(self._errors[group], torch.from_numpy(self._chosen()).to(backend.device))
                with changed_outputs(backend.model, targets, change):
                    yield
                return
            theirs = {place: backend.tensor(x) for place, x in joined(given, group).items()}
            errors = self._errors[group] = {}
            with changed_outputs(backend.model, targets, self._learn(theirs, errors)):
                yield
            self._require_all(theirs, errors)

        with backend.listening(listen):
            predictions, _ = backend.call(calls, None)
        return predictions, []


@dataclass
class GraftedTorchax(Grafted):
    """A torchax backend: two compiled programs, one that learns and one that runs with any modules replaced."""

    def __post_init__(self) -> None:
        from parity.paths.jax.program import Programs

        self.programs: Programs[tuple[str, int]] = Programs(self.backend.jit)

    def call(self, calls: StepCalls, plan: SitePlan | None) -> Predicted:
        from torchax import interop

        predictions: dict[str, torch.Tensor] = {}
        for group in self.backend.groups:
            arguments = self.backend.placed(calls.of(group))
            if self._given is not None:
                given = {place: self.backend.activation(x) for place, x in joined(self._given, group).items()}
                out, errors = self._run("learn", group, arguments, given, np.zeros(0, dtype=bool))
                self._errors[group] = errors
                self._require_all(given, errors)
            else:
                out, _ = self._run("correct", group, arguments, self._errors[group], self._chosen())
            for i, branch in enumerate(group):
                predictions[branch] = interop.torch_view(out[i : i + 1])
        return predictions, []

    def _here(self, x: torch.Tensor) -> torch.Tensor:
        from torchax import interop

        from parity.hooks.reduce.batch_jax import array_of

        here: torch.Tensor = interop.torch_view(array_of(x))  # a module without weights may give plain torch tensors
        return here

    @property
    def compiled(self) -> int:
        """How many programs were."""
        return self.programs.made

    def _run(self, what: str, group: tuple[str, ...], arguments: Any, arrays: Mapping[Place, Any], chosen: Any) -> Any:
        import jax
        from torchax import interop

        from parity.hooks.reduce.batch_jax import array_of

        backend, targets = self.backend, self._targets()
        forward = backend.forward(group, backend.rules[group[0]], None)

        def call(params: Any, arguments: Any, arrays: Any, chosen: Any) -> tuple[Any, None]:
            tensors: dict[Place, torch.Tensor] = interop.torch_view(arrays)
            errors: dict[Place, torch.Tensor] = {}
            change = self._learn(tensors, errors) if what == "learn" else self._correct(tensors, _views(chosen))
            with changed_outputs(backend.model, targets, change):
                (out, _, _), _ = forward(params, arguments, {}, None)
            return (out, {place: array_of(x) for place, x in errors.items()}), None

        if not backend.jit:
            backend.reached.mark("jit")
        chosen = jax.device_put(chosen, backend.devices.replicated)
        found, _ = self.programs.run((what, len(group)), call, backend.params, arguments, dict(arrays), chosen)
        return found


def _views(chosen: Any) -> list[torch.Tensor]:
    from torchax import interop

    return [interop.torch_view(chosen[i]) for i in range(chosen.shape[0])]


def graft(backend: Backend, modules: Sequence[str]) -> Grafted:
    """Make the modules of a loaded backend replaceable.

    Raises:
        UsageError: it runs no torch module.
    """
    if backend.eager is not None:
        return GraftedTorch(backend, tuple(modules))
    if backend.seen is None:
        return GraftedTorchax(backend, tuple(modules))
    raise UsageError(
        f"modules of a candidate on '{backend.name}' cannot be replaced: only those of a torch module can, run by "
        "torch or torchax; `parity run --forcing module` tells its modules' own errors"
    )


def targets_of(backend: Any, modules: Sequence[str]) -> dict[str, str]:
    """Path in a backend's model -> name, for those of the modules that it has."""
    wanted = set(modules)
    return {path: backend.named(path) for path in callable_modules(backend.model) if backend.named(path) in wanted}


@contextlib.contextmanager
def activations_of(backend: Eager, modules: Sequence[str]) -> Iterator[dict[str, dict[Place, torch.Tensor]]]:
    """Within it, what these modules give is kept, by branch, in execution order."""
    kept: dict[str, dict[Place, torch.Tensor]] = {}
    targets = targets_of(backend, modules)

    def listen(branches: tuple[str, ...]) -> contextlib.AbstractContextManager[None]:
        def keep(place: Place, x: torch.Tensor) -> torch.Tensor:
            n = len(branches)
            split = n > 1 and x.ndim > 0 and x.shape[0] == n
            for i, branch in enumerate(branches):
                own = x[i : i + 1] if split else x
                kept.setdefault(branch, {})[place] = own.detach().to("cpu", copy=True)
            return x

        return changed_outputs(backend.model, targets, keep)

    with backend.listening(listen):
        yield kept


def joined(given: Activations, group: tuple[str, ...]) -> dict[Place, torch.Tensor]:
    """Activations for a call that has these branches in its batch."""
    first, *others = (given[branch] for branch in group)
    return {
        place: torch.cat([x, *(other[place] for other in others)])
        if others and x.ndim > 0 and x.shape[0] == 1 and all(place in other for other in others)
        else x
        for place, x in first.items()
    }
