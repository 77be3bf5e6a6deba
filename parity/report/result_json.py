"""A comparison as a JSON document, the contract that other people's scripts read.

Everything that a `Result` holds in full precision, keys in a fixed order, nothing computed, nothing of the clock or the
machine. A type is written by its fields unless `_SHAPES` says otherwise. What was not measured is null; an
infinity, which JSON has no number for, is the largest double.

Cost. About 600 bytes a site; a site that does not pass carries its row bins too, at most 64 numbers more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from parity.compare.independent import differences
from parity.compare.reason import Birth
from parity.compare.result import (
    Cause,
    Check,
    Checked,
    Distance,
    FrameDiff,
    Note,
    Origin,
    Result,
    SiteDiff,
    StageDiff,
    StepDiff,
)
from parity.records import Key
from parity.report.document import finite

FORMAT = 2
"""Version of the document; raised when a key changes its meaning or goes."""

KEYS = (
    "verdict", "failed", "reason", "model", "differing_settings", "preflight", "steps", "sites", "origin", "causes",
    "checks", "stages", "frames", "closer", "notes",
)  # fmt: skip
"""Of a `Result`, in their order."""


def to_json(result: Result) -> dict[str, Any]:
    """The document as plain dicts, lists, strings and finite numbers."""
    found = {key: _plain(getattr(result, key)) for key in KEYS}
    return {"format": FORMAT, **found, "differences": _differences(result)}


def _differences(result: Result) -> list[dict[str, Any]]:
    found = differences(result)
    return [{"place": d.place, "branches": d.branches, "causes": d.causes} for d in found]


@dataclass(frozen=True, slots=True)
class Lines(Sequence[Any]):
    """Sites in JSON's types, each made when it is read: a result may hold more than memory does."""

    sites: Sequence[SiteDiff]

    def __len__(self) -> int:
        return len(self.sites)

    def __iter__(self) -> Iterator[Any]:
        return map(_site, self.sites)

    def __getitem__(self, index: Any) -> Any:
        found = self.sites[index]
        return list(map(_site, found)) if isinstance(index, slice) else _site(found)


def written(result: Result) -> Mapping[str, Any]:
    """`to_json`, its `sites` a sequence that is made as it is read."""
    document = to_json(replace(result, sites=()))
    return {**document, "sites": Lines(result.sites), "differences": _differences(result)}


def _plain(value: Any) -> Any:
    """A value of a result in JSON's types."""
    shape = _SHAPES.get(type(value))
    if shape is not None:
        return shape(value)
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return _fields(value) if is_dataclass(value) else value


def _fields(value: Any, *without: str) -> dict[str, Any]:
    return {f.name: _plain(getattr(value, f.name)) for f in fields(value) if f.name not in without}


def _step(step: StepDiff) -> dict[str, Any]:
    """The loop's numbers are the reference's; the candidate's stand under `candidate`."""
    loop = {name: [finite(side) for side in getattr(step, name)] for name in ("timestep", "sigma", "dt")}
    return {
        "step": step.step,
        **{name: pair[0] for name, pair in loop.items()},
        "candidate": {name: pair[1] for name, pair in loop.items()},
        "latents_before": _plain(step.latents_before),
        "noise_pred": _plain(step.noise_pred),
        "branches": _plain(step.branches),
        "latents": _plain(step.latents),
        "bits": finite(step.bits),
        "bits_of": step.bits_of,
    }


def _site(site: SiteDiff) -> dict[str, Any]:
    document = {
        **_plain(site.key),
        **_distance(site.distance),
        **{f"local_{name}": value for name, value in _distance(site.local).items()},
        "cosine": finite(site.cosine),
        "max_abs": finite(site.max_abs),
        "linf_ratio": finite(site.linf_ratio),
        "shapes": _plain(site.shapes),
        "dtypes": list(site.dtypes),
        "nonfinite": list(site.nonfinite),
        "introduced": _introduced(site.birth),
        "verdict": site.verdict,
        "note": site.remark,
    }
    if site.verdict != "pass":
        document["bins"] = _plain(site.bins)
    return document


def _introduced(birth: Birth | None) -> Birth | None:
    """Where a difference begins: in a module's `input` or in the `module`; None where it is propagated, or is none."""
    return None if birth == "propagated" else birth


def _distance(distance: Distance) -> dict[str, Any]:
    return {name: finite(getattr(distance, name)) for name in ("rel_l2", "floor", "ratio")}


def _frame(frame: FrameDiff) -> dict[str, Any]:
    """The numbers of the decoder by itself, and under `in_chain` those of each side's own latents."""
    alone, chain = (
        None if error is None else {**_distance(error.distance), **_fields(error, "distance")}
        for error in (frame.by_itself, frame.in_chain)
    )
    return {"frame": frame.frame, **(alone or {}), "in_chain": chain}


def _checked(judged: Checked) -> dict[str, Any]:
    order = ("verdict", "reason", "origin", "steps")
    return {"check": judged.name, **{name: _plain(getattr(judged, name)) for name in order}}


def _cause(cause: Cause) -> dict[str, Any]:
    return {"cause": cause.cause, "fix": cause.fix, **_fields(cause, "cause", "fix", "evidence")} | {
        "evidence": _plain(cause.evidence)
    }


def _stage(stage: StageDiff) -> dict[str, Any]:
    order = ("stage", "verdict", "reason", "output", "by_itself", "in_chain")
    return {name: _plain(getattr(stage, name)) for name in order}


_SHAPES: Mapping[type, Callable[[Any], Any]] = {
    Key: lambda key: {name: getattr(key, name) for name in ("stage", "step", "branch", "site", "call")},
    Origin: lambda origin: {**_plain(origin.key), "introduced": _introduced(origin.birth)},
    Distance: _distance,
    StepDiff: _step,
    SiteDiff: _site,
    FrameDiff: _frame,
    Checked: _checked,
    StageDiff: _stage,
    Cause: _cause,
    Check: lambda check: {name: getattr(check, name) for name in ("check", "verdict", "detail")},
    Note: lambda note: note.text,
}
"""Types that are not written by their fields alone."""
