"""Whether two goldens can be compared at all, and what they differ in before any number is looked at.

Problem. Two goldens come from two machines, months apart. Other weights, another seed or another prompt make every
site differ, and a table of a thousand failures hides the one sentence that explains them.

How. A pure planner over two provenances: each aspect gives one finding, which says that it agrees, that it differs
with a declared setting behind it, or that it differs and nothing computed from it is comparable (`blocks`). Unknowns
(no fingerprints were taken) are said. Nothing here reads a part.

Cost. One pass over the fingerprints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from parity.compare.result import Check
from parity.golden.records import PORT, Provenance
from parity.golden.strict import shown
from parity.settings import BY_NAME, Backend, Difference, changed_by, render

ABSENT = "not recorded"
"""How a differences table shows a setting that one golden's parity did not know."""

_BACKENDS = get_args(Backend)

_EXPLAINS = {
    "hidden_states": changed_by("embeddings"),
    "attention_mask": changed_by("masks"),
    "image_embeds": changed_by("image embeddings"),
    "noise": changed_by("noise"),
}
"""Part of an input's name -> settings that may change it; the first that fits."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One aspect of two runs.

    Attributes:
        what: the aspect: `seed`, `weights`, ...
        detail: one line with the values.
        state: `same`; `said`: differs or is unknown, and the comparison goes on; `blocks`: nothing is comparable.
    """

    what: str
    detail: str
    state: Literal["same", "said", "blocks"]

    @property
    def blocks(self) -> bool:
        return self.state == "blocks"

    def as_check(self) -> Check:
        """The finding as a line of the result."""
        verdicts: dict[str, Literal["pass", "fail", "explained"]]
        verdicts = {"same": "pass", "said": "explained", "blocks": "fail"}
        return Check(self.what, verdicts[self.state], self.detail)


@dataclass(frozen=True, slots=True)
class Side:
    """What is known of a golden without reading its parts.

    Attributes:
        provenance: of the run. steps: those held, rising. complete: whether the recording ended by itself.
    """

    provenance: Provenance
    steps: tuple[int, ...]
    complete: bool = True


def comparable(reference: Side, candidate: Side, *, rename: Callable[[str], str] | None = None) -> tuple[Finding, ...]:
    """What differs between two runs, blocking findings among them.

    Args:
        rename: candidate's module path -> reference's, where implementations are mapped onto each other; the two may
            then have parameters that the other has not.
    """
    a, b = reference.provenance, candidate.provenance
    if rename is None and b.backend == PORT:
        rename = str  # the port's rules were applied where it ran
    declared = {d.setting for d in settings_differences(a, b)}
    weights = _weights(a, b, declared, rename)
    return (
        *_shards(a, b),
        _model(a, b, weights, mapped=rename is not None),
        _number("seed", a.seed, b.seed, "the initial noise is another"),
        _number("number of steps", a.steps, b.steps, "the schedule is another"),
        *_inputs(a.inputs, b.inputs, declared),
        weights,
        *_modules(a, b, mapped=rename is not None),
        *_held(reference, candidate),
    )


def settings_differences(reference: Provenance, candidate: Provenance) -> tuple[Difference, ...]:
    """The settings in which two runs differ; where both keep the default of their own backend they do not.

    A setting that one golden does not name (an older parity wrote it) is at its backend's default there; one that
    this parity does not know counts as it is written. Where a golden names no settings at all, nothing is known.
    """
    ours, theirs = reference.settings, candidate.settings
    if not ours or not theirs:
        return ()
    names = [*BY_NAME, *sorted((ours.keys() | theirs.keys()) - BY_NAME.keys())]
    found = []
    for name in names:
        if name not in ours and name not in theirs:
            continue
        x, y = _value(name, reference), _value(name, candidate)
        if x != y and (_changed(name, x, reference.backend) or _changed(name, y, candidate.backend)):
            found.append(Difference(name, x, y))
    return tuple(found)


def _value(name: str, side: Provenance) -> str:
    return side.settings.get(name) or _default(name, side.backend) or ABSENT


def _default(name: str, backend: str) -> str | None:
    backend = "torchax" if backend == PORT else backend
    if name not in BY_NAME or backend not in _BACKENDS:
        return None
    return render(BY_NAME[name].default_for(cast(Backend, backend)))


def _changed(name: str, value: str, backend: str) -> bool:
    return value != _default(name, backend)


def common_steps(reference: Sequence[int], candidate: Sequence[int]) -> tuple[int, ...]:
    """The steps that both hold, rising."""
    return tuple(sorted(set(reference) & set(candidate)))


def _shards(a: Provenance, b: Provenance) -> list[Finding]:
    partial = [
        f"the {side} is shard {p.shard[0]} of {p.shard[1]}"
        for side, p in (("reference", a), ("candidate", b))
        if p.shard[1] > 1
    ]
    if not partial:
        return []
    detail = " and ".join(partial) + ": its sketches are partial; add the shards up first: parity merge OUT PART..."
    return [Finding("shards", detail, "blocks")]


def _number(what: str, a: int, b: int, means: str) -> Finding:
    if a == b:
        return Finding(what, f"{a}", "same")
    return Finding(what, f"{a} against {b}: {means}", "blocks")


def _model(a: Provenance, b: Provenance, weights: Finding, *, mapped: bool) -> Finding:
    """The same checkpoint may be called by a folder here and by a hub name there: the weights decide."""
    if a.model == b.model:
        return Finding("model", a.model, "same")
    names = f"{shown(a.model)} against {shown(b.model)}"
    if weights.state == "same":
        return Finding("model", f"{names}, with equal weights", "said")
    if mapped:
        return Finding("model", f"{names}, mapped onto each other by rename rules", "said")
    if _last(a.model) == _last(b.model):
        return Finding("model", f"{names}: taken for the same by the last part of the name", "said")
    return Finding("model", names, "blocks")


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]


def _inputs(ours: Mapping[str, str], theirs: Mapping[str, str], declared: set[str]) -> list[Finding]:
    if not ours or not theirs:
        return [Finding("inputs", _unknown("inputs were", ours, theirs), "said")]
    found = []
    for what, belongs in (
        ("prompt embeddings", lambda n: "hidden_states" in n or "image_embeds" in n),
        ("prompt masks", lambda n: "attention_mask" in n),
        ("prompt tokens", lambda n: "input_ids" in n),
        ("initial noise", lambda n: n == "noise"),
        ("other inputs", lambda n: True),
    ):
        x, y = ({n: v for n, v in side.items() if belongs(n)} for side in (ours, theirs))
        ours, theirs = ({n: v for n, v in side.items() if not belongs(n)} for side in (ours, theirs))
        if x or y:
            found.append(_input(what, x, y, declared))
    return found


def _input(what: str, ours: Mapping[str, str], theirs: Mapping[str, str], declared: set[str]) -> Finding:
    names = sorted(n for n in ours.keys() | theirs.keys() if ours.get(n) != theirs.get(n))
    if not names:
        prints = f", fingerprint {next(iter(ours.values()))}" if len(ours) == 1 else ""
        return Finding(what, f"{len(ours)} equal{prints}", "same")
    if Counter(ours.values()) == Counter(theirs.values()) and set(ours) != set(theirs):
        return Finding(what, f"{len(ours)} equal under other names; first: {shown(names[0])}", "said")
    first = names[0]
    detail = (
        f"{len(names)} of {len(ours.keys() | theirs.keys())} differ: {', '.join(map(shown, names[:4]))}"
        f"{', ...' if len(names) > 4 else ''}; first: {ours.get(first, ABSENT)} against {theirs.get(first, ABSENT)}"
    )
    return _explained(what, detail, [_explaining(n) for n in names], declared)


def _explaining(name: str) -> tuple[str, ...]:
    return next((settings for part, settings in _EXPLAINS.items() if part in name), ())


def _explained(what: str, detail: str, settings: Iterable[tuple[str, ...]], declared: set[str]) -> Finding:
    """Said only if every difference has a declared setting behind it."""
    by = [next((s for s in each if s in declared), None) for each in settings]
    if by and None not in by:
        names = ", ".join(dict.fromkeys(cast(list[str], by)))
        return Finding(what, f"{detail} (explained by {names})", "said")
    return Finding(what, detail, "blocks")


def _weights(a: Provenance, b: Provenance, declared: set[str], rename: Callable[[str], str] | None) -> Finding:
    if not a.weights or not b.weights:
        return Finding("weights", _unknown("weights were", a.weights, b.weights), "said")
    theirs = b.weights if rename is None else {_parameter(n, rename): v for n, v in b.weights.items()}
    one_sided = sorted(a.weights.keys() ^ theirs.keys())
    other = sorted(n for n in a.weights.keys() & theirs.keys() if a.weights[n] != theirs[n])
    if not one_sided and not other:
        return Finding("weights", f"{len(a.weights)} parameters equal", "same")
    if Counter(a.weights.values()) == Counter(b.weights.values()) and not other:
        return Finding("weights", f"{len(a.weights)} parameters equal, under other names", "said")
    told = []
    if other:
        told.append(f"{len(other)} of {len(a.weights)} parameters differ in value: {_few(other)}")
    if one_sided:
        told.append(f"{len(one_sided)} parameters on one side only: {_few(one_sided)}")
    detail = "; ".join(told)
    if one_sided and rename is None:
        return Finding("weights", detail, "blocks")
    if not other:
        # Mapped implementations may fuse or split parameters; what they compute is compared all the same.
        return Finding("weights", detail, "said")
    return _explained("weights", detail, [changed_by("weights")], declared)


def _modules(a: Provenance, b: Provenance, *, mapped: bool) -> list[Finding]:
    """Other names are no fault by themselves, but what only one side has will be taken for one."""
    one_sided = sorted(a.modules.keys() ^ b.modules.keys())
    if mapped or not a.modules or not b.modules or not one_sided:
        return []
    detail = f"{len(one_sided)} on one side only: {_few(one_sided)}; where only the names differ: --map auto"
    return [Finding("module names", detail, "said")]


def _parameter(name: str, rename: Callable[[str], str]) -> str:
    module, _, parameter = name.rpartition(".")
    renamed = rename(module)
    return f"{renamed}.{parameter}" if renamed else parameter


def _few(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names[:3])) + (", ..." if len(names) > 3 else "")


def _unknown(what: str, ours: object, theirs: object) -> str:
    sides = [side for side, held in (("reference", ours), ("candidate", theirs)) if not held]
    return f"{what} not fingerprinted on the {' and the '.join(sides)}: taken for equal"


def _held(reference: Side, candidate: Side) -> list[Finding]:
    """Which steps there are: a killed recording is compared up to the last common one, anything else must match."""
    common = common_steps(reference.steps, candidate.steps)
    if not common:
        return [Finding("steps held", f"{_listed(reference)} against {_listed(candidate)}: none in common", "blocks")]
    unfinished = [n for n, side in (("reference", reference), ("candidate", candidate)) if not side.complete]
    if unfinished:
        whose = " and the ".join(unfinished)
        detail = (
            f"the recording of the {whose} was not finished: compared up to step {common[-1]} "
            f"({len(common)} steps); go on with: parity record --resume"
        )
        return [Finding("steps held", detail, "said")]
    if reference.steps != candidate.steps:
        detail = f"{_listed(reference)} against {_listed(candidate)}: both are finished, but hold other steps"
        return [Finding("steps held", detail, "blocks")]
    return [Finding("steps held", f"{len(common)} on both sides", "same")]


def _listed(side: Side) -> str:
    if not side.steps:
        return "none"
    few = ", ".join(map(str, side.steps[:4]))
    return few if len(side.steps) <= 4 else f"{few}, ..., {side.steps[-1]}"
