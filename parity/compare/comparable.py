"""Whether two goldens can be compared at all, and what they differ in before any number is looked at.

Problem. Two goldens come from two machines, months apart. Other weights, another seed or another prompt make every
site differ, and a table of a thousand failures hides the one sentence that explains them.

How. A pure planner over two provenances: each aspect gives one check: it passes, it differs with a declared
setting behind it or is not known (`explained`), or nothing computed from it is comparable (`fail`). Weights and inputs
are compared as before a live run (`parity.compare.preflight`). Nothing here reads a part.

Cost. One pass over the fingerprints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import cast, get_args

from parity.compare.preflight import ABSENT, Factors, Weights, compare_inputs, compare_weights, few, laid_out
from parity.compare.result import Check
from parity.errors import shown
from parity.golden import Golden
from parity.records import PORT, Provenance
from parity.settings import AUTO, BY_NAME, Backend, Difference, default_of, render


def comparable(
    reference: Golden, candidate: Golden, *, rename: Callable[[str], str] | None = None
) -> tuple[Check, ...]:
    """What differs between two runs, checks that fail among them: then nothing is comparable.

    Args:
        rename: candidate's module path -> reference's, where implementations are mapped onto each other; the two may
            then have parameters that the other has not.
    """
    a, b = reference.provenance, candidate.provenance
    if rename is None and b.backend == PORT:
        rename = str  # the port's rules were applied where it ran
    declared = {d.setting for d in settings_differences(a, b)}
    mapped = rename is not None
    weights = compare_weights(*_parameters(a, b, rename), declared, mapped=mapped, own=b.backend == PORT)
    return (
        *_shards(a, b),
        _model(a, b, weights, mapped=mapped),
        _number("seed", a.seed, b.seed, "the initial noise is another"),
        _steps(a, b),
        *compare_inputs(a.inputs, b.inputs, declared),
        weights,
        *_modules(a, b, mapped=mapped),
        _held(reference, candidate),
    )


def settings_differences(reference: Provenance, candidate: Provenance) -> tuple[Difference, ...]:
    """The settings in which two runs differ; where both keep the default of their own backend they do not.

    A setting that one golden does not name (an older parity wrote it) is at its backend's default there; one that
    this parity does not know counts as it is written. Where a golden names no settings at all, nothing is known.
    """
    ours, theirs = reference.settings, candidate.settings
    if not ours or not theirs:
        return ()
    held = ours.keys() | theirs.keys()
    # A config of a component that only one script has is left out.
    configs = (name for name in held - BY_NAME.keys() if all(_of_component(name, side) for side in (ours, theirs)))
    names = (*(name for name in BY_NAME if name in held), *sorted(configs))
    pairs = ((name, _value(name, reference), _value(name, candidate)) for name in names)
    other = (Difference(name, x, y) for name, x, y in pairs if x != y)
    sides = (reference, candidate)
    return tuple(d for d in other if (d.reference, d.candidate) != tuple(_default(d.setting, side) for side in sides))


COMPONENTS = ("transformer", "transformer_2", "unet", "vae", "scheduler", "guider", "text_encoder", "text_encoder_2")
"""Of a pipeline, whose configs a script's recording keeps among its settings."""


def of_script(golden: Provenance) -> bool:
    """Whether a golden was recorded in a script: its settings are the configs of components, if they have any."""
    configs = golden.settings.keys() - BY_NAME.keys()
    bare = golden.backend == PORT and golden.settings.keys() <= {"dtype"}
    return bare or any(name.partition(".")[0] in COMPONENTS for name in configs)


def _of_component(name: str, settings: Mapping[str, str]) -> bool:
    """Whether anything is known of the component that a config's value belongs to (`scheduler.shift`)."""
    component, _, value = name.partition(".")
    return not value or any(other.startswith(f"{component}.") for other in settings)


def _value(name: str, side: Provenance) -> str:
    """A setting's value; a config leaves out what it has no value for."""
    return side.settings.get(name) or _default(name, side) or (ABSENT if name in BY_NAME else "none")


def _default(name: str, side: Provenance) -> str | None:
    backend = "torchax" if side.backend == PORT else side.backend
    if name not in BY_NAME or backend not in get_args(Backend):
        return None
    return render(default_of(BY_NAME[name], cast(Backend, backend), side.settings.get("device", AUTO)))


def common_steps(reference: Sequence[int], candidate: Sequence[int]) -> tuple[int, ...]:
    """The steps that both hold, rising."""
    return tuple(sorted(set(reference) & set(candidate)))


def _shards(a: Provenance, b: Provenance) -> Iterator[Check]:
    shards = (("reference", *a.shard), ("candidate", *b.shard))
    partial = " and ".join(f"the {side} is shard {index} of {count}" for side, index, count in shards if count > 1)
    if partial:
        what = "its sketches are partial; name the folder that holds all of its shards"
        yield Check("shards", "fail", f"{partial}: {what}")


def _number(what: str, a: int, b: int, means: str) -> Check:
    return Check(what, "pass", f"{a}") if a == b else Check(what, "fail", f"{a} against {b}: {means}")


def _steps(a: Provenance, b: Provenance) -> Check:
    """The length of the schedule, which is not known where no scheduler was recorded."""
    if a.steps and b.steps:
        return _number("number of steps", a.steps, b.steps, "the schedule is another")
    return Check("number of steps", "explained", "not known where no scheduler was recorded")


def _model(a: Provenance, b: Provenance, weights: Check, *, mapped: bool) -> Check:
    """The same checkpoint may be called by a folder here and by a hub name there: the weights decide."""
    if a.model == b.model:
        return Check("model", "pass", a.model)
    names = f"{shown(a.model)} against {shown(b.model)}"
    if weights.verdict == "pass":
        return Check("model", "explained", f"{names}, with equal weights")
    if PurePosixPath(a.model).name == PurePosixPath(b.model).name:
        return Check("model", "explained", f"{names}: taken for the same by the last part of the name")
    if mapped:
        return Check("model", "explained", f"{names}: taken for the same in another implementation")
    return Check("model", "fail", names)


def layouts(a: Provenance, b: Provenance, rename: Callable[[str], str] | None) -> Factors:
    """The modules whose parameters a port holds otherwise; see `parity.compare.preflight.laid_out`."""
    return laid_out(*_parameters(a, b, rename)) if b.backend == PORT else {}


def _parameters(a: Provenance, b: Provenance, rename: Callable[[str], str] | None) -> tuple[Weights, Weights]:
    """Both sides' parameters under the reference's names."""
    ours = {n: ((), w) for n, w in a.weights.items()}
    return ours, {_parameter(n, rename or str): ((), w) for n, w in b.weights.items()}


def _modules(a: Provenance, b: Provenance, *, mapped: bool) -> Iterator[Check]:
    """Other names are no fault by themselves, but what only one side has will be taken for one."""
    one_sided = a.modules.keys() ^ b.modules.keys()
    if one_sided and a.modules and b.modules and not mapped:
        detail = f"{len(one_sided)} on one side only: {few(one_sided)}; where only the names differ: --map auto"
        yield Check("module names", "explained", detail)


def _parameter(name: str, rename: Callable[[str], str]) -> str:
    module, _, parameter = name.rpartition(".")
    renamed = rename(module)
    return f"{renamed}.{parameter}" if renamed else parameter


def _held(reference: Golden, candidate: Golden) -> Check:
    """Which steps there are: a killed recording is compared up to the last common one, anything else must match."""
    common = common_steps(reference.steps, candidate.steps)
    both = f"{_listed(reference)} against {_listed(candidate)}"
    if not common:
        return Check(HELD, "fail", f"{both}: none in common")
    unfinished = [n for n, side in (("reference", reference), ("candidate", candidate)) if not side.complete]
    ours, theirs, walked = (tuple(n for n in steps if n >= 0) for steps in (reference.steps, candidate.steps, common))
    if unfinished:
        upto = f"up to step {walked[-1]} ({len(walked)} steps)" if walked else "outside the loop alone"
        detail = (
            f"the recording of the {' and the '.join(unfinished)} was not finished: compared {upto}; go on with parity "
            f"record --resume (of a script: record it anew), or compare that part alone: --steps {len(walked)}"
        )
    elif reference.steps == candidate.steps:
        return Check(HELD, "pass", f"{len(common)} on both sides")
    elif ours == theirs != ():
        holds = "reference" if len(reference.steps) > len(ours) else "candidate"
        detail = f"the {holds} alone holds what is outside the loop: {len(common)} steps of the loop compared"
    elif ours[: len(theirs)] == theirs[: len(ours)] != ():
        both = f"the reference holds {len(ours)} steps of the loop, the candidate {len(theirs)}"
        detail = f"{both}: the first {len(walked)} compared; to judge by these alone: --steps {len(walked)}"
    else:
        return Check(HELD, "fail", f"{both}: both are finished, but hold other steps")
    return Check(HELD, "explained", detail)


HELD = "steps held"
"""Name of the check of steps."""


def _listed(side: Golden) -> str:
    if not side.steps:
        return "none"
    few = ", ".join(map(str, side.steps[:4]))
    return few if len(side.steps) <= 4 else f"{few}, ..., {side.steps[-1]}"
