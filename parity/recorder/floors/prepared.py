"""What a pipeline's other models round by: latents and conditions that it prepares are as far off.

Problem. A pipeline that starts from an image encodes it with its VAE, or with an image encoder, and goes on with what
they gave. That had no floor but its own last bit, so that a right port with its own encoder failed at the first input.

How. The pipeline's own methods that prepare them (`prepare_latents`, `encode_image`, `_encode_vae_image`, ...) are
watched; one within which an encoder was called is called once more for each run, with the encoder's rounding moved
and the same draws, and what its results differ by is held. Where such a result lies in what the transformer or the
scheduler is given (`parity.recorder.floors.related`), that is moved by it. Where a pipeline's `__call__` or a script
calls such a model by itself, its call is repeated, and what is drawn of the distribution that a VAE gave is drawn
again. That holds for a ControlNet too, on the latents that each run has by then.

Cost. The method again for each of three runs: three encodes of the image, three forwards of a ControlNet in each step.
Of the results of each method, or call within a step, a copy is held, and one in float64 for each run.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from parity.errors import summary
from parity.hooks.calls import mapped
from parity.hooks.perturb import perturbed
from parity.recorder.compiled import eagerly, entry_of, plain
from parity.recorder.floors.draws import Drawn, same_draws
from parity.recorder.floors.runs import Variant, seed_of
from parity.recorder.floors.texts import ENCODERS, repeatable
from parity.recorder.methods import replaced

_LEFT = (*ENCODERS, "vae", "safety_checker", "vocoder")
"""Components that are seen elsewhere, or give nothing to the loop."""

_PREPARES = re.compile(r"_?(prepare|encode|get_image)_(?!.*prompt)")
"""Methods of diffusers' pipelines that encode images, video, masks or conditions."""

Move = Callable[[Variant, torch.Tensor], torch.Tensor]


class Prepared:
    """What a pipeline, or a script by hand, prepared for its loop.

    Attributes:
        runs: beside the script's own; those that draw other rounding are made. tell: says a line to the user.
        wanted: whether anything is recorded still.
    """

    def __init__(self, runs: Sequence[Variant], tell: Callable[[str], None], wanted: Callable[[], bool]) -> None:
        self.runs, self.tell, self.wanted = [run for run in runs if run.seed is not None], tell, wanted
        self._move: Move = lambda run, x: x.clone()
        self._held: dict[tuple[str, int, int], tuple[torch.Tensor, Mapping[str, torch.Tensor]]] = {}
        self._calls: Counter[str] = Counter()
        self._within = self._encoded = False

    @contextlib.contextmanager
    def watching(self, pipe: Any, vae: Any, transformers: Sequence[Any], move: Move) -> Iterator[None]:
        """Within it, what a pipeline prepares of what it encodes is prepared again in each run.

        Args:
            transformers: that are watched by themselves. move: gives a tensor as a run has it, in its dtype.
        """
        self._move = move
        components = {"vae": vae, **_others(pipe, transformers)}
        models = {name: m for name, m in components.items() if isinstance(m, torch.nn.Module)} if self.runs else {}
        with contextlib.ExitStack() as stack:
            every = [plain(model) for model in models.values()]
            for name, model in models.items():
                method = "encode" if name == "vae" else entry_of(model)
                own = getattr(model, method, None)
                if own is not None:
                    again = own if name == "vae" else plain(model)
                    observed = self._repeated(name, own, again, [plain(model)], encodes=True)
                    stack.enter_context(replaced(model, method, observed))
            for name in sorted(filter(_PREPARES.match, dir(type(pipe)))) if models else ():
                own = getattr(pipe, name, None)
                if callable(own):
                    stack.enter_context(replaced(pipe, name, self._repeated(name, own, own, every, encodes=False)))
            yield

    def moved(self, run: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """What was prepared, the last first, and what it differs by in a run."""
        for own, shifts in reversed(self._held.values()):
            if run in shifts:
                yield own, shifts[run]

    def step(self) -> None:
        """A step ended: what a model gives in the next one takes the place of what it gave in this."""
        self._calls.clear()

    def _repeated(
        self,
        name: str,
        own: Callable[..., Any],
        again: Callable[..., Any],
        models: Sequence[torch.nn.Module],
        *,
        encodes: bool,
    ) -> Callable[..., Any]:
        """A method that is repeated, as `again`, in each run: a model's own, or one within which a model was called."""

        @functools.wraps(own)
        def observed(*args: Any, **kwargs: Any) -> Any:
            self._encoded = self._encoded or encodes
            if self._within or not self.wanted() or (encodes and not repeatable([args, kwargs])):
                return own(*args, **kwargs)
            given: Any = None
            with self._apart(name):
                given, drawn = _copied((args, kwargs)), Drawn.now()
            self._within, self._encoded = True, encodes
            try:
                result = own(*args, **kwargs)
            finally:
                self._within = False
            with self._apart(name):
                if self._encoded and given is not None:
                    self._again(name, again, given, drawn, result, models)
                for posterior in _posteriors(result) if encodes and given is not None else ():
                    self._drawing(posterior, lambda: again(*_copied(given)[0], **_copied(given)[1]), models)
            return result

        return observed

    @contextlib.contextmanager
    def _apart(self, name: str) -> Iterator[None]:
        """Parity's own work: what it raises is said, and never the script's business."""
        try:
            yield
        except Exception as error:
            self.tell(f"the rounding of {name} is not known ({summary(error)}): what it gives has no floor of it")

    def _drawing(self, posterior: Any, encoded: Callable[[], Any], models: Sequence[torch.nn.Module]) -> None:
        """Have what is drawn of an encoder's distribution drawn again of that of each run."""
        own = posterior.sample

        def resample(*args: Any, **kwargs: Any) -> Any:
            return _posteriors(encoded())[0].sample(*args, **kwargs)

        @functools.wraps(own)
        def sample(*args: Any, **kwargs: Any) -> Any:
            given: Any = None
            with self._apart("sample"):
                given, drawn = _copied((args, kwargs)), Drawn.now()
            result = own(*args, **kwargs)
            with self._apart("sample"):
                if given is not None:
                    self._again("sample", resample, given, drawn, result, models)
            return result

        posterior.sample = sample

    def _again(
        self,
        name: str,
        own: Callable[..., Any],
        given: Any,
        drawn: Drawn,
        result: Any,
        models: Sequence[torch.nn.Module],
    ) -> None:
        """Prepare it in each run, and hold what differs."""
        kept = [x.detach().clone() for x in _tensors(result)]
        apart: list[dict[str, torch.Tensor]] = [{} for _ in kept]
        self._within = True
        try:
            for run in self.runs:
                args, kwargs = _copied(given, functools.partial(self._move, run))
                with contextlib.ExitStack() as stack:
                    stack.enter_context(torch.no_grad())
                    for model in models:
                        stack.enter_context(eagerly(model))
                        stack.enter_context(_moved(model, run))
                    stack.enter_context(drawn.again(None))
                    made = _tensors(own(*args, **kwargs))
                for held, x, again in zip(apart, kept, made, strict=True):
                    held[run.name] = again.to(torch.float64) - x.to(torch.float64)
        finally:
            self._within = False
        number = self._calls[name]
        self._calls[name] += 1
        for i, (x, shifts) in enumerate(zip(kept, apart, strict=True)):
            self._held.pop((name, number, i), None)  # the last comes last
            if any(y.any() for y in shifts.values()):
                self._held[name, number, i] = x, shifts


def _others(pipe: Any, transformers: Sequence[Any]) -> dict[str, Any]:
    """The models of a pipeline that are neither its transformers nor encode or decode its text or video."""
    found = dict(getattr(pipe, "components", None) or {})
    left = {id(plain(model)) for model in transformers}
    return {name: model for name, model in found.items() if name not in _LEFT and id(plain(model)) not in left}


def _moved(model: torch.nn.Module, run: Variant) -> contextlib.AbstractContextManager[None]:
    first = next(model.parameters(), None)
    if first is None or run.seed is None:
        return contextlib.nullcontext()
    return perturbed(model, seed_of(run.seed), first.device)


def _copied(x: Any, tensor: Callable[[torch.Tensor], torch.Tensor] = torch.clone) -> Any:
    """Arguments whose tensors and generators are copies: what is called may write to them, or draw."""
    if isinstance(x, dict):
        return {name: _copied(y, tensor) for name, y in x.items()}
    if type(x) in (tuple, list):
        return type(x)(_copied(y, tensor) for y in x)
    return same_draws(mapped(tensor, x))


def _tensors(result: Any) -> list[torch.Tensor]:
    """Floating tensors among a method's results, with more than a vector's values."""
    if _posteriors(result):
        return [posterior.mode() for posterior in _posteriors(result)]
    values = list(result.values()) if isinstance(result, Mapping) else result
    nested = values if isinstance(values, (tuple, list)) else [values]
    flat = [y for x in nested for y in (x if isinstance(x, (tuple, list)) else [x])]
    return [x for x in flat if isinstance(x, torch.Tensor) and x.is_floating_point() and x.ndim > 1]


def _posteriors(result: Any) -> list[Any]:
    """The distribution of latents that a VAE gives, alone, in a tuple or in an output object."""
    values = result if isinstance(result, (tuple, list)) else [result, getattr(result, "latent_dist", None)]
    return [x for x in values if hasattr(x, "sample") and hasattr(x, "mode")]
