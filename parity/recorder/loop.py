"""What a loop does around the transformer: the scheduler's steps, the decoder, the frames, and the values it names.

Everything is seen on its way into and out of the script's own objects.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from parity.errors import UsageError, summary
from parity.hooks.methods import all_of, replaced, watched
from parity.hooks.reduce.on_torch import widen16
from parity.hooks.sites import matches
from parity.hooks.torchtools import mapped
from parity.port import listening
from parity.recorder.rerun import Again
from parity.records import FRAMES, LOOP, LOOP_STAGE, READ, SCHEDULE, Key, Record
from parity.sketch import shown_record, value_record

if TYPE_CHECKING:
    from parity.recorder.parts import Parts
    from parity.recorder.record import Recording

PICTURE, VIDEO = 4, 5
"""Axes of a batch of pictures, and of videos."""

NOT_CALLED = (
    "no call of the transformer was seen in the first step; was it replaced or compiled within the block, or its "
    "forward called by name? Record what the script calls, from where it is ready"
)


@dataclass
class Loop:
    """Watches a script's loop; `recording`: that goes on. `inside`: whether its pipeline is being called."""

    recording: Recording
    inside: bool = False
    _decoded: Counter[str] = field(default_factory=Counter)
    _named: Counter[str] = field(default_factory=Counter)
    _stood: tuple[np.ndarray, float] = (np.zeros(0), math.nan)

    def __post_init__(self) -> None:
        self.kind, self.steps = self.recording.kind, self.recording.steps

    # --- the scheduler

    @contextlib.contextmanager
    def stepping(self, scheduler: Any) -> Iterator[None]:
        """Within it, the scheduler's steps are recorded, and end the recording's."""
        names = _step_arguments(scheduler)

        @self.recording.seeing
        def before(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            if lacks := [name for name in _STEP if name not in given]:
                raise UsageError(f"the scheduler's step was not given {', '.join(lacks)}, by these names or in order")
            kept = {n: given.get(n) for n in (*_STEP, OLD, BACK) if n in names}
            for name in ("model_output", "sample", OLD):  # some schedulers write there
                if (x := kept.get(name)) is not None:
                    kept[name] = x.detach().clone()
            return kept, _remembered(scheduler)

        @self.recording.seeing
        def stepped(held: tuple[Mapping[str, Any], int | None], result: Any) -> None:
            given, remembered = held
            models = self.recording.parts.models
            if models and not (self.steps.calls or self.steps.traced) and self.steps.number == 0:
                if not hasattr(given["model_output"], "jax"):
                    raise UsageError(NOT_CALLED)
                self.steps.inside_jit(self.recording.tell)  # compiled before the block, by torchax
            schedule = {name: self.kind.numbers(getattr(scheduler, name, None)) for name in ("timesteps", "sigmas")}
            place = self._place(getattr(scheduler, "step_index", None), given["timestep"], **schedule)
            first, back = self._numbers({} if remembered is None else {"history": remembered}), given.get(BACK)
            first += self._schedule(schedule) if self._begins(schedule["timesteps"], place) else []
            first += self._numbers(place if back is None else {**place, "timestep_back": float(back)})
            before, *values = self._values({**given, "after": _first(result)})
            self.steps.part += values
            self.steps.stepped = True
            self.steps.end_step(given["sample"], len(given["sample"]), (*first, before))

        def after(held: Any, args: Any, kwargs: Any, result: Any) -> None:
            if held is not None:
                stepped(held, result)
                self.recording.ended()

        with watched(scheduler, "step", before, after):
            yield

    def _values(self, values: Mapping[str, Any]) -> list[Record]:
        return [
            Record(Key(LOOP_STAGE, self.steps.number, "", f"{LOOP}:{port}"), "none")
            if values[name] is None
            else self.steps.value(port, self.kind.host(values[name]), _dtype(values[name]))
            for name, port in _PORTS.items()
            if name in values
        ]

    def _numbers(self, found: Mapping[str, float]) -> list[Record]:
        return [self.steps.value(port, np.asarray(np.float64(x)), "float64") for port, x in found.items()]

    def _schedule(self, schedule: Mapping[str, np.ndarray]) -> list[Record]:
        """The whole schedule, as it was set."""
        step, held = self.steps.number, {name: values for name, values in schedule.items() if values.size}
        return [value_record(Key(LOOP_STAGE, step, "", f"{SCHEDULE}:{n}"), x, "float64") for n, x in held.items()]

    def _place(self, index: Any, timestep: Any, timesteps: np.ndarray, sigmas: np.ndarray) -> dict[str, float]:
        """Where in the schedule the step was: its timestep, its index, and sigma where there is one."""
        at, number = self.steps.number, self.kind.numbers(timestep)
        found = {"timestep": float(number[0])} if number.size else {}
        if index is not None:
            at = int(index) - 1
            found["step_index"] = float(at)
        elif not number.size or not np.isclose(timesteps[at : at + 1], number[0]).any():
            at = -1  # one's own scheduler, which does not stand where the step does
        if 0 <= at < sigmas.size - 1:
            found |= {"sigma": float(sigmas[at]), "dt": float(sigmas[at + 1] - sigmas[at])}
        return found

    def _begins(self, times: np.ndarray, at: Mapping[str, float]) -> bool:
        """Whether a generation begins: at the first step, in another schedule, and where the scheduler goes back."""
        now = at.get("step_index")
        if now is None:
            held = np.isclose(times, at.get("timestep", math.nan))
            now = float(held.argmax()) if held.any() else math.nan
        (before, stood), self._stood = self._stood, (times, now)
        return self.steps.number == 0 or not np.array_equal(before, times) or now <= stood

    @contextlib.contextmanager
    def calling(self, parts: Parts) -> Iterator[None]:
        """Within it, the calls of a pipeline are noted, where they may be made again; and a scheduler or a VAE that it
        has been given since is watched in them too."""
        if not callable(parts.pipe):
            yield
            return
        kind, known = type(parts.pipe), {id(parts.scheduler), id(parts.vae)}
        own = kind.__call__

        @functools.wraps(own)
        def called(pipe: Any, *args: Any, **kwargs: Any) -> Any:
            if pipe is not parts.pipe or self.inside:
                return own(pipe, *args, **kwargs)
            with contextlib.ExitStack() as stack:
                stack.enter_context(replaced(self, "inside", True))
                if self.recording.calls is not None:
                    with self.recording.guard():
                        self.recording.calls.append(Again.of(pipe, args, kwargs))
                new = parts.now
                for part, watching in ((new.scheduler, self.stepping), (new.vae, self.decoding)):
                    if id(part) not in known:
                        stack.enter_context(watching(part))
                return own(pipe, *args, **kwargs)

        with replaced(kind, "__call__", called):
            yield

    # --- the decoder and the frames

    @contextlib.contextmanager
    def decoding(self, vae: Any) -> Iterator[None]:
        """Within it, calls of the VAE's `decode` are recorded, each with its number: by video, by frame or by tile."""

        @self.recording.seeing
        def after(held: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
            records = self._decoded_records(_latents_of(args, kwargs), _first(result))
            self.steps.outside += records
            self._decoded["decode"] += sum(r.key.is_input for r in records)

        with watched(vae, "decode", lambda args, kwargs: None, after):
            yield

    def _decoded_records(self, latents: Any, frames: Any) -> list[Record]:
        """Records of a call of the decoder, as of one for each video or picture that it is given, whatever the size of
        the batch: the latents, what they gave, and what a picture shows of that."""
        z, given = self._placed(latents), self._placed(frames)
        many = len(z) if z.ndim == given.ndim >= PICTURE and len(z) == len(given) else 1
        found: list[Record] = []
        for i in range(many):
            call, own = self._decoded["decode"] + i, slice(i, i + 1) if many > 1 else slice(None)
            found.append(self.steps.after_loop("in.z", z[own], _dtype(latents), call, held=True))
            # A video [B, C, T, H, W] as [B, T, C, H, W], so that row bins are of frames; a picture as it is.
            shown = np.moveaxis(given[own], 2, 1) if given.ndim == VIDEO else given[own]
            whole = self.steps.after_loop("out", shown, _dtype(frames), call, held=False)
            found += [whole, shown_record(whole, shown)]
        return found

    def _placed(self, x: Any) -> np.ndarray:
        """A tensor, or an array of numpy's or JAX's, on the host with the channels in their place."""
        held = self._values_of(x)
        return np.moveaxis(held, -1, 1) if self.recording.asked.layout == "channels_last" and held.ndim > 2 else held

    def finishing(self, processor: Any) -> contextlib.AbstractContextManager[None]:
        """Within it, the frames that a pipeline's processor gives are recorded, video by video: what it gives at last,
        not what one of its methods takes from another."""

        def before(args: Any, kwargs: Any) -> tuple[int, int]:
            return len(self.steps.outside), self._decoded["frames"]

        @self.recording.seeing
        def after(begin: tuple[int, int], args: Any, kwargs: Any, result: Any) -> None:
            if (frames := self._array(result)) is not None:
                start, self._decoded["frames"] = begin
                self.steps.outside[start:] = [
                    r for r in self.steps.outside[start:] if not r.key.site.startswith(FRAMES)
                ]
                for video in frames if frames.ndim == VIDEO else (frames,):
                    call = self._decoded["frames"]
                    self._decoded["frames"] += 1
                    # Once more as what is decoded lies, so that one can be fitted to the other.
                    laid = np.moveaxis(video, -1, -3) if video.ndim > 2 else video
                    for port, x in (("frames", video), (f"frames@{READ}", laid)):
                        self.steps.outside.append(self.steps.after_loop(port, x, x.dtype.name, call, held=False))

        return all_of(watched(processor, name, before, after) for name in ("postprocess_video", "postprocess"))

    def _array(self, frames: Any) -> np.ndarray | None:
        """Frames as numbers, channels last: an array, a tensor, or lists of these or of pictures; None for others."""
        if isinstance(frames, torch.Tensor):
            array = self._values_of(frames)
            first = array.ndim >= 4 and array.shape[-3] in CHANNELS and array.shape[-1] not in CHANNELS
            return np.moveaxis(array, -3, -1) if first else array  # output_type="pt" has the channels first
        try:
            array = np.asarray(mapped(self._array, frames))
        except ValueError:  # of several shapes
            return None
        return array if array.dtype != object and array.ndim and array.size else None

    # --- what the script names itself

    @contextlib.contextmanager
    def naming(self) -> Iterator[None]:
        """Within it, `parity.tap` records what it is given."""

        @self.recording.seeing
        def named(name: str, x: Any) -> None:
            module, _, port = name.partition(":")
            try:
                value = self._named_value(name, x)
            except Exception as error:  # of an object that only looks like an array
                why = error if isinstance(error, UsageError) else f"x is not recorded: {summary(error)}"
                self.recording.tell(f"parity.tap('{name[:MOST_NAMED]}', x): {why}")
                return
            cut = self.steps.calling or (lambda module, value: [("", value)])
            for branch, piece in cut(module, value):
                counted = f"{self.steps.number} {branch} {name}"
                call = self._named[counted]
                self._named[counted] += 1
                key = Key(LOOP_STAGE, self.steps.number, branch, f"{module}:{port or 'out'}", call)
                record = value_record(key, piece, _dtype(x))
                held = [glob for glob in self.recording.asked.values if matches(glob, key.module, key.port)]
                self.recording.met.update(held)
                self.steps.part.append(record if held else replace(record, value=None))
                self.steps.named |= set() if self.steps.calling else {key.site}

        with listening(named):
            yield

    def _named_value(self, name: str, x: Any) -> np.ndarray:
        """The numbers of what a script names.

        Raises:
            UsageError: it has none, or its name is none. What a library raises that cannot read it.
        """
        traced = self.kind.is_traced(x) if isinstance(x, torch.Tensor) else _is_traced(x)
        if traced or not hasattr(x, "dtype"):
            what = "a value of a compiled function" if traced else f"of type {type(x).__name__}"
            raise UsageError(f"x is {what} and is not recorded")
        if len(name) > MOST_NAMED or name.partition(":")[0] in OWN_NAMES:
            raise UsageError("x is not recorded: its name is too long, or begins as those of the recording itself do")
        value = np.ascontiguousarray(self._values_of(x))
        value = value.view(value.real.dtype) if np.iscomplexobj(value) else value
        return value.astype(np.float32) if value.dtype.kind not in "biuf" else value

    def _values_of(self, x: Any) -> np.ndarray:
        """Of a tensor, or an array of numpy's or JAX's; 16-bit floats as float32."""
        return np.asarray(self.kind.host(x)) if isinstance(x, torch.Tensor) else widen16(np.asarray(_whole(x)))


MOST_NAMED = 256
"""Characters of a name that a script gives."""
OWN_NAMES = (LOOP, SCHEDULE, "decode")
"""What the names of the recording's own values begin with."""


def _latents_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What a decoder is given: it comes first, or is called z or latents, or is the first tensor or array with a
    name."""
    named = (kwargs.get(name) for name in ("z", "latents", *kwargs))
    return args[0] if args else next(x for x in named if hasattr(x, "shape"))


_STEP = ("model_output", "timestep", "sample")
OLD, BACK = "old_pred_original_sample", "timestep_back"
"""Further arguments of a step that remembers nothing itself, as CogVideoX's DPM: what the step before predicted, and
where it stood."""
_PORTS = {
    "sample": "latents.before",
    "model_output": "noise_pred",
    OLD: "pred_original.before",
    "after": "latents.after",
}
"""Value of a step -> the name under which the loop's is recorded."""


def _whole(x: Any) -> Any:
    """An array of numpy's or JAX's as this process can read it; see `parity.hooks.reduce.on_jax.whole`."""
    if "jax" not in sys.modules:
        return x
    from parity.hooks.reduce.on_jax import whole  # jax, for a script that has it

    return whole(x)


def _is_traced(x: Any) -> bool:
    return "jax" in sys.modules and isinstance(x, sys.modules["jax"].core.Tracer)


def _dtype(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


def _first(result: Any) -> Any:
    """What a decoder or a scheduler returns: the tensor or array, or the first in a tuple or an output object."""
    if hasattr(result, "shape"):
        return result
    values = result if isinstance(result, (tuple, list)) else vars(result).values()
    return next(x for x in values if hasattr(x, "shape"))


def _step_arguments(scheduler: Any) -> tuple[str, ...]:
    """What a scheduler's step takes in its places, by name; a subclass that hands `*args` on has no names for them."""
    for kind in type(scheduler).__mro__:
        step = vars(kind).get("step")
        named = tuple(inspect.signature(step).parameters)[1:] if step is not None else ()
        if set(_STEP) <= set(named):
            return named
    return _STEP


def _remembered(scheduler: Any) -> int | None:
    """How many predictions of earlier steps a multistep scheduler of diffusers holds; None for another scheduler."""
    count = getattr(scheduler, "lower_order_nums", None)  # of DPM-Solver, UniPC, DEIS, SA
    if isinstance(count, int):
        return count
    kept = getattr(scheduler, "ets", None)  # of PNDM, iPNDM
    return len(kept) if isinstance(kept, list) else None


CHANNELS = (1, 3, 4)
"""Of pictures."""
