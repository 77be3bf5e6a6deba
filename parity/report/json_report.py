"""A result as one JSON document, the contract that other people's scripts read.

Why. A script needs exact numbers under stable names; a person needs neither. So everything that a `Result` holds is
here in full precision, and the terminal report says where to find what it leaves out.

How. One dict per type of `parity.compare.result`, keys in a fixed order, nothing computed, nothing taken from the
clock or the machine: equal results give equal bytes. NaN and infinities, which JSON has no numbers for, are the
strings "nan", "inf" and "-inf". The text has one line for each item of a list, so that `grep` finds a site and a text
diff of two documents shows which items changed.

Cost. About 600 bytes a site; a site that does not pass carries its row bins too, at most 64 numbers more.
"""

from __future__ import annotations

import json
from typing import Any

from parity.compare.result import (
    Cause,
    Distance,
    FrameDiff,
    FrameError,
    Origin,
    Result,
    Round,
    SiteDiff,
    StageDiff,
    StepDiff,
)
from parity.golden.records import Key
from parity.golden.strict import number

FORMAT = 1
"""Version of the document; raised when a key changes its meaning or goes."""

Json = dict[str, Any]


def dumps(result: Result) -> str:
    """The document as text, ASCII only so that no locale can fail on a name; ends without a newline."""
    return "{" + ",".join(f"\n {_compact(key)}: {_member(value)}" for key, value in to_json(result).items()) + "\n}"


def to_json(result: Result) -> Json:
    """The document as plain dicts, lists, strings and finite numbers."""
    return {
        "format": FORMAT,
        "verdict": result.verdict,
        "failed": result.failed,
        "reason": result.reason,
        "model": result.model,
        "differing_settings": [
            {"setting": d.setting, "reference": d.reference, "candidate": d.candidate}
            for d in result.differing_settings
        ],
        "preflight": [{"check": c.check, "verdict": c.verdict, "detail": c.detail} for c in result.preflight],
        "steps": [_step(step) for step in result.steps],
        "sites": [_site(site) for site in result.sites],
        "origin": None if result.origin is None else _origin(result.origin),
        "causes": [_cause(cause) for cause in result.causes],
        "rounds": [_round(r) for r in result.rounds],
        "stages": [_stage(stage) for stage in result.stages],
        "frames": [_frame(frame) for frame in result.frames],
        "closer": [_site(site) for site in result.closer],
        "notes": [note.text for note in result.notes],
    }


def _member(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[" + ",".join(f"\n  {_compact(item)}" for item in value) + "\n ]"
    return _compact(value)


def _compact(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _distance(distance: Distance) -> Json:
    return {
        "rel_l2": number(distance.rel_l2),
        "floor": number(distance.floor),
        "ratio": number(distance.ratio),
    }


def _step(step: StepDiff) -> Json:
    """The loop's numbers are the reference's; the candidate's own stand under `candidate`."""
    timestep, sigma, dt = ([number(side) for side in pair] for pair in (step.timestep, step.sigma, step.dt))
    return {
        "step": step.step,
        "timestep": timestep[0],
        "sigma": sigma[0],
        "dt": dt[0],
        "candidate": {"timestep": timestep[1], "sigma": sigma[1], "dt": dt[1]},
        "latents_before": _distance(step.latents_before),
        "noise_pred": _distance(step.noise_pred),
        "branches": {branch: _distance(distance) for branch, distance in step.branches.items()},
        "latents": _distance(step.latents),
        "bits": number(step.bits),
        "bits_of": step.bits_of,
    }


def _round(found: Round) -> Json:
    return {
        "round": found.name,
        "verdict": found.verdict,
        "reason": found.reason,
        "origin": None if found.origin is None else _origin(found.origin),
        "steps": [_step(step) for step in found.steps],
    }


def _stage(stage: StageDiff) -> Json:
    return {
        "stage": stage.stage,
        "verdict": stage.verdict,
        "reason": stage.reason,
        "output": stage.output,
        "by_itself": _distance(stage.by_itself),
        "in_chain": _distance(stage.in_chain),
    }


def _frame(frame: FrameDiff) -> Json:
    """The numbers of the decoder by itself, and under `in_chain` those of each side's own latents."""
    chain = None if frame.in_chain is None else _frame_error(frame.in_chain)
    return {"frame": frame.frame, **_frame_error(frame.by_itself), "in_chain": chain}


def _frame_error(error: FrameError) -> Json:
    region = error.region
    return {
        **_distance(error.distance),
        "psnr": number(error.psnr),
        "ssim": number(error.ssim),
        "region": {
            "top": region.top,
            "left": region.left,
            "height": region.height,
            "width": region.width,
            "rel_l2": number(region.rel_l2),
        },
    }


def _place(key: Key) -> Json:
    return {"stage": key.stage, "step": key.step, "branch": key.branch, "site": key.site, "call": key.call}


def _site(site: SiteDiff) -> Json:
    document = {
        **_place(site.key),
        **_distance(site.distance),
        "local_rel_l2": number(site.local.rel_l2),
        "local_floor": number(site.local.floor),
        "local_ratio": number(site.local.ratio),
        "cosine": number(site.cosine),
        "max_abs": number(site.max_abs),
        "linf_ratio": number(site.linf_ratio),
        "shapes": [list(shape) for shape in site.shapes],
        "dtypes": list(site.dtypes),
        "nonfinite": list(site.nonfinite),
        "birth": site.birth,
        "verdict": site.verdict,
        "note": site.note,
    }
    if site.verdict != "pass":
        document["bins"] = [number(ratio) for ratio in site.bins]
    return document


def _origin(origin: Origin) -> Json:
    return {**_place(origin.key), "birth": origin.birth}


def _cause(cause: Cause) -> Json:
    return {
        "cause": cause.cause,
        "setting": cause.setting,
        "reference": cause.reference,
        "candidate": cause.candidate,
        "share": number(cause.share),
        "half": number(cause.half),
        "alike": list(cause.alike),
        "witnesses": [{"kind": w.kind, "value": number(w.value), "detail": w.detail} for w in cause.witnesses],
    }
