"""A change as parity sees it: two ports compared as `parity run` does, or two recordings as `parity diff` does.

Where they differ, `parity explain` is asked why. Nothing of the product is replaced: sides are opened in this process,
as the library form does it.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from change import Change

import parity
from parity.causes.explain import ExplainRequest, explain, of_run
from parity.commands.parts.keep import KeepRun
from parity.compare.diff import diff
from parity.compare.result import Result
from parity.errors import ParityError
from parity.paths.live import Host
from parity.paths.plan import Role
from parity.runs import compare
from parity.runs.load import load_ports
from parity.runs.request import Request

PORTS = Path(__file__).with_name("ports.py")
GAUGES = {"schedule": ("schedule", "timesteps", "sigma"), "order": ("another order",), "noise": ("noise",)}
"""Words of the gauges, where a cause has no setting."""


def quiet(text: str, done: int | None = None, total: int | None = None) -> None:
    del text, done, total


REFERENCE, CANDIDATE = "reference", "candidate"
"""Folders of the two versions of a script."""


@dataclass
class Here:
    """Opens sides in this process; see `parity.paths.worker.openers.Openers`."""

    host: Host = field(default_factory=Host)

    def of(self, role: Role) -> Any:
        return self.host


def judged(change: Change, where: Path) -> tuple[Result, Result | None]:
    """What the comparison came to, and where it failed what was found to explain it.

    Args:
        where: an empty folder for the records.
    """
    if change.script is None:
        return run(change, where)
    record(change, where)
    after, before = str(where / REFERENCE), str(where / CANDIDATE)
    result = diff(after, before)
    if result.verdict != "fail":
        return result, None
    return result, explain(ExplainRequest(after, before), Here(), quiet)


def run(change: Change, where: Path) -> tuple[Result, Result | None]:
    """Two ports, compared as `parity run` does; see `judged`."""
    openers = Here()
    after, before = (f"{PORTS}:{change.name}_{version}" for version in ("after", "before"))
    ports = load_ports(after, before, None, openers)
    request = Request(after, *ports.settings([], []), ports=ports)
    kept = KeepRun(where, request)
    result = compare.run(request, quiet, kept, openers=openers)
    kept.result(result)
    if result.verdict != "fail" or result.failed == "preflight":
        return result, None
    return result, explain(of_run(where, openers, {"reference": after, "candidate": before}), openers, quiet)


def record(change: Change, where: Path) -> None:
    """Both versions of a script, recorded."""
    assert change.script is not None
    scene = change.script(True, torch.float32)
    for _ in parity.record(where / REFERENCE, **scene.parts):
        scene.go()
    scene = change.script(False, torch.float32)
    with parity.record(where / CANDIDATE, **scene.parts, like=where / REFERENCE):
        scene.go()


def row(change: Change, where: Path) -> dict[str, Any]:
    """What is kept of a change: verdict, place, causes, and whether each is right."""
    try:
        result, why = judged(change, where)
    except ParityError as error:
        return {"verdict": "refused", "reason": str(error)}
    except Exception as error:  # of parity's: shown as such
        return {"verdict": "crashed", "reason": f"{type(error).__name__}: {error}"}
    causes = [] if why is None else [{"cause": c.cause, "setting": c.setting, "share": c.share} for c in why.causes]
    return {
        **told(result),
        "causes": [{**c, "share": None if c["share"] != c["share"] else round(c["share"], 3)} for c in causes],
        "unknown": [n.text for n in (why.notes if why else ()) if "unknown" in n.text],
    }


def told(result: Result) -> dict[str, Any]:
    """What is kept of a verdict."""
    origin = result.origin
    return {
        "verdict": result.verdict,
        "failed": result.failed,
        "place": "" if origin is None else origin.key.site,
        "birth": "" if origin is None else origin.birth,
        "step": -1 if origin is None else origin.key.step,
        "reason": result.reason,
    }


def placed(change: Change, found: dict[str, Any]) -> bool:
    """Whether the first divergence is where it was said to be.

    A place stands for the module's output, its attention call and its direct parent's own code; at an input, what is
    above it. A place with a colon is one site.
    """
    site = str(found.get("place", ""))
    module = site.partition(":")[0]
    modules = {module, module.removesuffix(".attention")}
    if found.get("birth") == "input":
        modules.add(module.rpartition(".")[0])
    for at in change.at:
        if (":" in at and fnmatch.fnmatchcase(site, at)) or (":" not in at and any(
            fnmatch.fnmatchcase(m, at) for m in modules)):  # fmt: skip
            return True
    return False


def named(change: Change, found: dict[str, Any]) -> str:
    """`right`, `wrong`, or `unknown` where nothing was named although a cause was meant.

    A measured fact that is no setting (a gain, another order) is evidence: it is wrong only where a cause was meant
    and a share is claimed for another.
    """
    causes = found.get("causes") or []
    told = [f"{c['setting']} {c['cause']}" for c in causes]
    if change.cause == "unknown":
        return "wrong" if any(c["setting"] for c in causes) else "right"
    words = GAUGES.get(change.cause, (change.cause,))
    if any(word in text for word in words for text in told):
        return "right"
    return "wrong" if any(c["setting"] for c in causes) else "unknown"
