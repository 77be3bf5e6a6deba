"""A comparison as what experiment trackers take: scalars over steps, texts, pictures. A pure function of the document.

Names are paths, so that a tracker groups them: `structure/noise_pred/rel_l2`, its `floor` and its `limit` in one chart.
Numbers that are not finite are left out; the verdict, which has them, is a text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parity.report.document import Json
from parity.report.page.build import LIMIT

TOP = 10
"""Sites that are logged: those farthest beyond their floors, where a divergence is introduced first."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number at a denoising step (frames: at the frame's number)."""

    name: str
    step: int
    value: float


@dataclass(frozen=True, slots=True)
class Image:
    """A picture: PNG bytes at a frame's number."""

    name: str
    step: int
    png: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """What is logged of a run.

    Attributes:
        name: of the run. scalars, images: in order. texts: by name. settings: of both sides, by `side/setting`.
    """

    name: str
    scalars: tuple[Scalar, ...]
    texts: Mapping[str, str]
    settings: Mapping[str, str]
    images: tuple[Image, ...] = ()


def tracked(
    document: Json, name: str, settings: Mapping[str, str], images: Sequence[Image] = (), causes: Sequence[Json] = ()
) -> Tracked:
    """What a comparison has for a tracker.

    Args:
        document: of `--json`. name: of the run. settings: of both sides. causes: of `parity explain`.

    Raises:
        LookupError, TypeError, ValueError: it is no such document.
    """
    rounds = document["rounds"] or [{"round": "comparison", "steps": document["steps"]}]
    found: list[tuple[str, int, Any]] = [("failed", 0, 0.0 if document["verdict"] == "pass" else 1.0)]
    for judged in rounds:
        for step in judged["steps"]:
            found += _step(f"{judged['round']}/", step)
    found += _sites(document["closer"] or document["sites"])
    found += _frames(document["frames"])
    causes = causes or document["causes"]
    found += [(f"causes/{cause['setting'] or cause['cause']}", 0, cause["share"]) for cause in causes]
    scalars = tuple(Scalar(n, int(at), x) for n, at, value in found if math.isfinite(x := float(value)))
    return Tracked(name=name, scalars=scalars, texts=_texts(document, causes), settings=settings, images=tuple(images))


def _step(prefix: str, step: Json) -> Iterator[tuple[str, int, Any]]:
    at = step["step"]
    outputs = {"noise_pred": step["noise_pred"], "latents": step["latents"]}
    outputs |= {f"branches/{branch}": distance for branch, distance in step["branches"].items()}
    for output, distance in outputs.items():
        yield from _distance(f"{prefix}{output}", at, distance)
    yield f"{prefix}bits", at, step["bits"]


def _distance(name: str, at: int, distance: Json) -> Iterator[tuple[str, int, Any]]:
    yield f"{name}/rel_l2", at, distance["rel_l2"]
    yield f"{name}/floor", at, distance["floor"]
    yield f"{name}/limit", at, LIMIT * float(distance["floor"])
    yield f"{name}/ratio", at, distance["ratio"]


def _sites(sites: Sequence[Json]) -> Iterator[tuple[str, int, Any]]:
    """The worst sites, each over all steps: first where a divergence is introduced, then by their ratio."""
    worst: dict[str, tuple[bool, float]] = {}
    for site in sites:
        if site["verdict"] == "fail":
            rank = (site["birth"] not in (None, "amplified"), float(site["ratio"]))
            worst[_name(site)] = max(worst.get(_name(site), rank), rank)
    top = set(sorted(worst, key=lambda name: worst[name], reverse=True)[:TOP])
    for site in sites:
        if _name(site) in top:
            yield from _distance(f"sites/{_name(site)}", max(site["step"], 0), site)  # -1: outside the loop


def _name(site: Json) -> str:
    call = f".{site['call']}" if site["call"] else ""
    return f"{site['site']}{call}" + (f" {site['branch']}" if site["branch"] else "")


def _frames(frames: Sequence[Json]) -> Iterator[tuple[str, int, Any]]:
    for frame in frames:
        numbers = frame["in_chain"] or frame
        for name in ("rel_l2", "floor", "psnr", "ssim"):
            yield f"frames/{name}", frame["frame"], numbers[name]


def _texts(document: Json, causes: Sequence[Json]) -> dict[str, str]:
    failed = f" ({document['failed']})" if document["failed"] else ""
    texts = {"verdict": f"{document['verdict']}{failed}", "reason": str(document["reason"])}
    if document["origin"] is not None:
        texts["first divergence"] = f"{_name(document['origin'])}, step {document['origin']['step']}"
    if causes:
        texts["causes"] = "; ".join(str(cause["cause"]) for cause in causes)
    return texts
