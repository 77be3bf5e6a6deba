"""One JSON document, and a comparison as one: the contract that other people's scripts read.

The text is ASCII only, so that no locale can fail on a name. It has one line for each item of a list, so that `grep`
finds a site and a text diff of two documents shows which items changed. Equal documents give equal bytes.

Of a comparison it has everything that a `Result` holds in full precision, keys in a fixed order, nothing computed,
nothing of the clock or the machine. A type is written by its fields unless `_NAMES` or `_SHAPES` says otherwise. What
was not measured is null; an infinity, which JSON has no number for, is the largest double.

Cost. About 600 bytes a site; a site that does not pass carries its row bins too, at most 64 numbers more.
"""

from __future__ import annotations

import json as library
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from parity.compare import result as results
from parity.compare.independent import differences
from parity.compare.reason import Birth
from parity.report.document import Document, finite


def json(document: Document) -> Iterator[str]:
    """The text, bit by bit: lists are read as they are written."""
    between = "{"
    for key, value in document.json().items():
        yield f"{between}\n {_compact(key)}: "
        between = ","
        if isinstance(value, (str, Mapping)) or not isinstance(value, Iterable):
            yield _compact(value)
            continue
        before = "["
        for item in value:
            yield f"{before}\n  {_compact(item)}"
            before = ","
        yield "[]" if before == "[" else "\n ]"
    yield "\n}\n"


_compact = library.JSONEncoder(allow_nan=False).encode


# --- a comparison


FORMAT = 2
"""Version of the document; raised when a key changes its meaning or goes."""

KEYS = (
    "verdict", "failed", "reason", "model", "differing_settings", "preflight", "steps", "sites", "origin", "causes",
    "checks", "stages", "frames", "closer", "notes",
)  # fmt: skip
"""Of a `Result`, in their order."""


def to_json(result: results.Result) -> dict[str, Any]:
    """The document as plain dicts, lists, strings and finite numbers."""
    document = written(result)
    return {**document, "sites": [*document["sites"]]}


def written(result: results.Result) -> dict[str, Any]:
    """`to_json`, its `sites` made as they are read, once: a result may hold more than memory does."""
    found = {key: map(_site, result.sites) if key == "sites" else plain(getattr(result, key)) for key in KEYS}
    return {"format": FORMAT, **found, "differences": plain(differences(result))}


def plain(value: Any) -> Any:
    """A value of a result in JSON's types."""
    shape = _SHAPES.get(type(value))
    if shape is not None:
        return shape(value)
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if not is_dataclass(value):
        return value
    return named(value, _NAMES.get(type(value)) or [field.name for field in fields(value)])


def named(value: Any, names: Iterable[str]) -> dict[str, Any]:
    """These attributes in JSON's types, by name and in this order."""
    return {name: plain(getattr(value, name)) for name in names}


def _step(step: results.StepDiff) -> dict[str, Any]:
    """The loop's numbers are the reference's; the candidate's stand under `candidate`."""
    loop = named(step, ("timestep", "sigma", "dt"))
    return {
        "step": step.step,
        **{name: pair[0] for name, pair in loop.items()},
        "candidate": {name: pair[1] for name, pair in loop.items()},
        **named(step, ("latents_before", "noise_pred", "branches", "latents", "bits", "bits_of")),
    }


def _site(site: results.SiteDiff) -> dict[str, Any]:
    key, far, local = site.key, site.distance, site.local
    document = {  # of hundreds of thousands; `plain` takes far longer
        "stage": key.stage,
        "step": key.step,
        "branch": key.branch,
        "site": key.site,
        "call": key.call,
        "rel_l2": finite(far.rel_l2),
        "floor": finite(far.floor),
        "ratio": finite(far.ratio),
        "local_rel_l2": finite(local.rel_l2),
        "local_floor": finite(local.floor),
        "local_ratio": finite(local.ratio),
        "cosine": finite(site.cosine),
        "max_abs": finite(site.max_abs),
        "linf_ratio": finite(site.linf_ratio),
        "shapes": [[*shape] for shape in site.shapes],
        "dtypes": [*site.dtypes],
        "nonfinite": [*site.nonfinite],
        "introduced": _introduced(site.birth),
        "verdict": site.verdict,
        "note": site.remark,
    }
    if site.verdict != "pass":
        document["bins"] = plain(site.bins)
    return document


def _introduced(birth: Birth | None) -> Birth | None:
    """Where a difference begins: in a module's `input` or in the `module`; None where it is propagated, or is none."""
    return None if birth == "propagated" else birth


def _frame(frame: results.FrameDiff) -> dict[str, Any]:
    """The numbers of the decoder by itself, and under `in_chain` those of each side's own latents."""
    return {"frame": frame.frame, **plain(frame.by_itself), "in_chain": plain(frame.in_chain)}


_NAMES: Mapping[type, Sequence[str]] = {
    results.Cause: (
        "cause", "fix", "setting", "reference", "candidate", "share", "alike", "harmless", "at", "evidence",
    ),
    results.StageDiff: ("stage", "verdict", "reason", "output", "by_itself", "in_chain"),
    results.Check: ("check", "verdict", "detail"),
}  # fmt: skip
"""What is written of a type, in this order, where that is not its fields."""

_SHAPES: Mapping[type, Callable[[Any], Any]] = {
    results.Origin: lambda origin: {**plain(origin.key), "introduced": _introduced(origin.birth)},
    results.StepDiff: _step,
    results.SiteDiff: _site,
    results.FrameDiff: _frame,
    results.FrameError: lambda error: {**plain(error.distance), **named(error, ("psnr", "ssim", "region"))},
    results.Checked: lambda judged: {"check": judged.name, **named(judged, ("verdict", "reason", "origin", "steps"))},
    results.Note: lambda note: note.text,
}
"""Types that are written in another shape."""
