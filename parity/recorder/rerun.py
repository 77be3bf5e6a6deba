"""Calls and scripts that run again: with the same arguments, the same draws, and models that remember the same.

The floors of a script are measured so: it runs again with perturbed rounding, and each tensor's spread is its floor.
The first run is the script's own and is recorded as it is. In the runs after it the modules of the script round
differently (`parity.hooks.perturb`), and the script's own code carries that on: through guidance, filters, schedulers
with a memory, decoders, whatever it does. Nothing is inferred about the loop.
"""

from __future__ import annotations

import contextlib
import copy
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from parity.errors import UsageError
from parity.floors import STORED, Floors, least, of_schedule
from parity.golden import Golden, GoldenWriter
from parity.hooks.methods import all_of
from parity.hooks.perturb import perturbed
from parity.hooks.torchtools import mapped, plain
from parity.records import AFTER, LOOP, OUTSIDE, READ, Floor, Key, Record, StepRecords
from parity.sketch import Geometry, distance

if TYPE_CHECKING:
    from parity.recorder.parts import Parts


def draws() -> Callable[[], None]:
    """Returns what puts the generators back to where they stand now that a script may draw from without naming one:
    torch's, those of its CUDA devices, numpy's and Python's."""
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    devices = torch.cuda.get_rng_state_all() if cuda else []
    cpu, numpys, pythons = torch.get_rng_state(), np.random.get_state(), random.getstate()

    def put() -> None:
        torch.set_rng_state(cpu)
        if devices:
            torch.cuda.set_rng_state_all(devices)
        np.random.set_state(numpys)
        random.setstate(pythons)

    return put


MOST = 2**20
"""Elements of a tensor that is copied to be put back; larger ones are weights that stand in buffers."""


def memory(tops: Sequence[torch.nn.Module]) -> Callable[[], None]:
    """Returns what has modules remember again what they remember of their calls now, in attributes of their own, in
    buffers and in the hooks of diffusers' caches: counters, caches, tables. Generators stand where they stood.

    Raises:
        UsageError: when it is put back: weights are not those that they were, of which there is no copy.
    """
    every = {id(m): m for module in tops for m in module.modules()}.values()
    attributes = [(module, _own(module)) for module in every]
    held = [*(own.values() for _, own in attributes), *(module._buffers.values() for module in every)]
    contents = [(x, _content(x)) for values in held for x in values]
    hooked = [(state, copy.deepcopy(vars(state))) for module in every for state in _hooked(module)]
    weights = {name: (x, _some(x)) for module in tops for name, x in module.named_parameters()}
    drawn = draws()

    def put() -> None:
        for name, (x, some) in weights.items():
            now = _some(x)
            if now is not None and some is not None and not torch.equal(now, some):
                raise UsageError(f"the script changes weights while it runs ({name}), and they are not put back")
        drawn()
        for state, remembered in hooked:
            vars(state).clear()
            vars(state).update(copy.deepcopy(remembered))
        for module, own in attributes:
            for name in _own(module).keys() - own.keys():
                del vars(module)[name]
            vars(module).update(own)
        for x, content in contents:
            _put(x, content)

    return put


SOME = 16
"""Values of a parameter that are looked at: what scales or merges weights changes most of them."""


def _some(x: torch.Tensor) -> torch.Tensor | None:
    """Some values of a parameter, spread over it, on the host; None of one that is nowhere now or cannot be read."""
    try:
        held = x.detach() if x.is_contiguous() else x.detach()[:1]
        flat = held.reshape(-1)
        return None if x.is_meta else flat[:: max(1, flat.numel() // SOME)].float().nan_to_num().cpu()
    except (RuntimeError, TypeError, ValueError, NotImplementedError):  # a quantiser's own
        return None


def _hooked(module: torch.nn.Module) -> Iterator[Any]:
    """What the hooks of diffusers' caches remember of a module's calls."""
    hooks = getattr(vars(module).get("_diffusers_hook"), "hooks", {})
    for hook in hooks.values():
        yield from (x for name in ("state", "state_manager") if hasattr(x := getattr(hook, name, None), "__dict__"))


def _own(module: torch.nn.Module) -> dict[str, Any]:
    """Attributes that a module's class gave it; not its parts, and not what torch or a recording hooked on to it."""
    return {n: x for n, x in vars(module).items() if n == "_buffers" or not (n.startswith("_") or n == "forward")}


def _content(x: Any) -> Any:
    """A copy of what can be written to; None for anything else."""
    if isinstance(x, torch.Tensor):
        small = type(x) is torch.Tensor and x.numel() <= MOST and x.device.type != "meta"
        return x.detach().clone() if small else None
    return x.copy() if type(x) in (list, dict, set) else None


def _put(x: Any, content: Any) -> None:
    """Write what a copy holds into what it was made of."""
    if content is None:
        return
    if isinstance(x, torch.Tensor):
        if x.device == content.device and not torch.equal(x, content):
            with torch.no_grad():
                x.copy_(content)
    elif isinstance(x, list):
        x[:] = content
    else:
        x.clear()
        x.update(content)


@dataclass(frozen=True)
class Again:
    """A call as it was made: what it was given is copied, generators where they stood."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    drawn: Callable[[], None]

    @classmethod
    def of(cls, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Again:
        """The call that is about to be made."""
        return cls(function, _copied(args), _copied(dict(kwargs)), draws())

    def __call__(self) -> Any:
        """Make it again; may be done any number of times."""
        self.drawn()
        return self.function(*_copied(self.args), **_copied(self.kwargs))


def _copied(x: Any) -> Any:
    """Tensors are copied, and generators, which then draw what these will."""
    return mapped(torch.clone, x, lambda x: x.clone_state() if isinstance(x, torch.Generator) else x)


RUNS = 3
"""Perturbed runs; more narrow the floor's own spread, fewer widen it."""

DIFFERENT, DIFFERENT_IN_16_BITS = 1e-3, 0.25
"""Relative distance of a script's inputs or latents in two runs that no rounding explains: no floor is so wide."""

_HANDED_ON = (f"{LOOP}:latents.before", f"{LOOP}:latents.after", "decode:in.z")


def modules_of(parts: Parts) -> list[torch.nn.Module]:
    """The modules that round differently: transformers, VAE, and the pipeline's other models; none within another."""
    return modules_in((*parts.models.values(), parts.vae, *components_of(parts.pipe)))


def components_of(pipe: Any) -> list[Any]:
    """What a pipeline, or an object like one, is made of."""
    try:
        return list(pipe.components.values())
    except Exception:  # it has none, or registers them one after the other and has not all yet
        return list(getattr(pipe, "__dict__", {}).values())


def modules_in(things: Iterable[Any]) -> list[torch.nn.Module]:
    """The modules with weights among these, each once, none within another."""
    modules = (plain(x) for x in things if isinstance(x, torch.nn.Module))
    found = {id(module): module for module in modules if next(module.parameters(), None) is not None}
    inner = {id(child) for module in found.values() for child in module.modules() if child is not module}
    return [module for key, module in found.items() if key not in inner]


def rounding(modules: Iterable[torch.nn.Module], run: int, chip: str) -> contextlib.AbstractContextManager[None]:
    """Within it, calls of the modules round as drawn for this run, elementary functions as a chip's may, in float32 at
    least; nothing runs as torch.compile made it."""
    draws = (perturbed(module, 1_000_003 * (run + 1) + i, chip, wide=True) for i, module in enumerate(modules))
    return all_of((torch.compiler.set_stance("force_eager"), all_of(draws)))


def write_floors(where: str, runs: Sequence[str], chip: str, say: Callable[[str], None]) -> None:
    """Write the floors of a golden, as measured by perturbed runs of the same script, which makes it a reference.

    Args:
        where: the golden. runs: of the perturbed ones. chip: the TPU whose functions they allow
            for. say: tells the user why there are none.
    """
    own, others = Golden.open(where), [Golden.open(run) for run in runs]
    steps = [step for step in own.steps if all(step in other.steps for other in others)]
    if any(step != OUTSIDE for step in {*own.steps} - {*steps}):
        say("no floors: the script took fewer steps when it ran again; does it keep state between runs?")
        return
    for other in others:
        if found := _different(own, other):
            site, rounded = found
            why = (
                ", and what the model was given was not: in its dtype rounding is blown up, as a guidance of 3500 that "
                "bfloat16 makes 3504; record it in float32"
                if rounded
                else ": seed its generators where it begins, inside the loop's body; where they are, rounding itself "
                "is blown up before that, as by a norm of a picture of one colour"
            )
            say(f"no floors: {site} was another when the script ran again with perturbed rounding{why}")
            return
    writer = GoldenWriter(where, own.provenance, resume=True)
    bare: list[str] = []
    numbers: dict[str, Floor] = {}
    try:
        for step in steps:
            held = own.read_step(step)
            numbers |= of_schedule(held.records)
            step_of = floored(held, [other.read_step(step) for other in others], numbers)
            writer.replace_step(step_of)
            bare += [r.key.site for r in step_of.records if r.kind == "tensor" and r.key not in step_of.floors]
    except BaseException:  # a full disk: the steps are there, some with floors
        writer.finish()
        raise
    writer.finish(replace(own.provenance, side="reference", backend="torch", chip=chip))
    bare += [r.key.site for step in {*own.steps} - {*steps} for r in own.read_step(step).records]
    if bare:
        say(
            f"{bare[0]} and {len(bare) - 1} others have no floors, as the run again did not make them: "
            "`for _ in parity.record(...)` runs all of your own code again"
        )


def floored(own: StepRecords, others: Sequence[StepRecords], numbers: Mapping[str, Floor]) -> StepRecords:
    """A step with floors: what other runs of it gave otherwise. What they did not give has none.

    Args:
        numbers: floors of the loop's own, by name.
    """
    runs = [[r for r in other.records if r.dtype != "uint8"] for other in others]
    given = {r.key for records in runs for r in records}
    measured = Floors(own.records, {r.key: least(r) for r in own.records if r.kind == "tensor" and r.key in given})
    for records in runs:
        measured.add(records)
    floors = measured.done()
    of_loop = {key: numbers[key.port] for key in floors if key.module == LOOP and key.port in numbers}
    floors = floors | of_loop | _of_pictures(own.records, floors)
    return replace(own, floors=floors | _of_the_same(own.records, floors))


def _of_the_same(records: Sequence[Record], floors: Mapping[Key, Floor]) -> dict[Key, Floor]:
    """Floors of values behind the loop that the other runs did not give and that are those of a site, bit for bit: the
    frames that a script names behind its pipeline's call."""
    drawn = [(r.key, (r.frame, r.sketch.tobytes())) for r in records if r.key.stage == AFTER and r.sketch is not None]
    known = {value: floors[key] for key, value in drawn if key in floors and floors[key].l2 > 0}
    return {key: known[value] for key, value in drawn if key not in floors and value in known}


def _of_pictures(records: Sequence[Record], floors: dict[Key, Floor]) -> dict[Key, Floor]:
    """Floors of pictures of 8 bits, which few runs do not sample: most round alike, and then one becomes the next.

    Of values rounded to 255 levels, those within `e` of the middle between two, a share of 2 e, may become the next
    one, where `e` is what the floor of the decoder's output is in levels.
    """
    out = next((r for r in records if r.key.site == "decode:out" and r.key in floors), None)
    if out is None or out.moments is None:
        return {}
    levels = 127.5 * floors[out.key].l2 / math.sqrt(out.moments.count)
    counts = {r.key: r.moments.count for r in records if r.dtype == "uint8" and r.moments is not None}
    return {key: Floor(max(1.0, math.sqrt(2 * levels * count))) for key, count in counts.items()}


def _different(own: Golden, other: Golden) -> tuple[str, bool] | None:
    """The first of a script's latents and inputs that differs between two runs, in rows that are read, and whether what
    the model predicts in 16 bits does so before it; None without any.

    Of a row that may read nothing an encoder makes what it likes: rounding alone may turn it around.
    """
    most, predicted = DIFFERENT, False
    for step in sorted(own.steps, key=lambda step: (step == OUTSIDE, step)):
        again = {r.key: r for r in other.read_step(step).records} if step in other.steps else {}
        records = own.read_step(step).records
        most = DIFFERENT_IN_16_BITS if any(r.dtype in STORED for r in records) else most
        for record in records:
            key, read = record.key, replace(record.key, site=f"{record.key.site}@{READ}")
            given, made = key.site in _HANDED_ON or key.is_argument, key.site == f"{LOOP}:noise_pred"
            if (given or made) and read not in again and key in again and _distance(record, again[key]) > most:
                predicted |= made and most == DIFFERENT_IN_16_BITS
                site = key.site.removesuffix(f"@{READ}")
                if given:
                    return (f"{site} (step {step})" if step != OUTSIDE else site), predicted
    return None


def _distance(a: Record, b: Record) -> float:
    """Relative distance of two records by their sketches; 0 where there are none."""
    if a.sketch is None or b.sketch is None or a.moments is None or a.frame != b.frame:
        return 0.0
    with np.errstate(invalid="ignore"):  # of an added mask both hold -inf
        return distance(a.sketch, b.sketch, Geometry(*a.frame)) / max(a.moments.l2, 1e-30)
