"""A change as parity sees it: two ports compared as `parity run` does, or two recordings as `parity diff` does.

Where they differ, `parity explain` is asked why. Nothing of the product is replaced: sides are opened in this process,
as the library form does it.
"""

from __future__ import annotations

import fnmatch
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from change import Change, Scene

import parity
from parity.causes.explain import ExplainRequest, explain, of_run
from parity.commands.keep import KeepRun
from parity.compare.diff import diff
from parity.compare.result import Result
from parity.errors import ParityError
from parity.paths.live import Host
from parity.runs import compare
from parity.runs.request import Request, load_ports

PORTS = Path(__file__).with_name("ports.py")
GAUGES = {
    "schedule": ("schedule", "timesteps", "sigma"), "order": ("another order", "with a patch's"), "noise": ("noise",),
}  # fmt: skip
"""Words of the gauges, where a cause has no setting."""
PLANTED = "scheduler.class"
"""How some changes are made here: in a class of one's own."""


def quiet(text: str, done: int | None = None, total: int | None = None) -> None:
    del text, done, total


@contextmanager
def silent() -> Iterator[None]:
    """What a recording says on stderr is of its script, not of these programs."""
    with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        yield


def run(change: Change, where: Path) -> tuple[Result, Result | None]:
    """Two ports, compared as `parity run` does: the result, and if it fails what was found to explain it.

    Args:
        where: an empty folder for the records.
    """
    openers = Host()
    after, before = (f"{PORTS}:{change.name}_{version}" for version in ("after", "before"))
    ports = load_ports(after, before, None, openers)
    request = Request(after, *ports.settings([], []), ports=ports)
    kept = KeepRun(where, request)
    result = compare.run(request, quiet, kept, openers=openers)
    kept.result(result)
    if result.verdict != "fail" or result.failed == "preflight":
        return result, None
    return result, explain(of_run(where, openers, {"reference": after, "candidate": before}), openers, quiet)


def recorded(sides: Callable[[bool], Scene], where: Path) -> tuple[Result, Result | None]:
    """The same of two scripts, as `parity diff` compares their records."""
    record(sides, where)
    reference, candidate = str(where / "reference"), str(where / "candidate")
    result = diff(reference, candidate)
    if result.verdict != "fail":
        return result, None
    return result, explain(ExplainRequest(reference, candidate), Host(), quiet)


def record(sides: Callable[[bool], Scene], where: Path) -> None:
    """Both sides of a script, recorded; `sides` takes whether the reference is wanted."""
    scene = sides(True)
    for _ in parity.record(where / "reference", **scene.parts):
        scene.go()
    scene = sides(False)
    with parity.record(where / "candidate", **scene.parts, like=where / "reference"):
        scene.go()


def row(change: Change, where: Path) -> dict[str, Any]:
    """What is kept of a change: verdict, place, causes, and whether each is right."""
    try:
        result, why = run(change, where) if change.script is None else recorded(change.script, where)
    except ParityError as error:
        return {"verdict": "refused", "reason": str(error)}
    except Exception as error:  # of parity's: shown as such
        return {"verdict": "crashed", "reason": f"{type(error).__name__}: {error}"}
    causes, notes = ((), ()) if why is None else (why.causes, why.notes)
    shares = [None if math.isnan(c.share) else round(c.share, 3) for c in causes]
    return {
        **told(result),
        "causes": [{"cause": c.cause, "setting": c.setting, "share": x} for c, x in zip(causes, shares, strict=True)],
        "unknown": [note.text for note in notes if "unknown" in note.text],
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
    return any(fnmatch.fnmatchcase(name, at) for at in change.at for name in ([site] if ":" in at else modules))


def named(change: Change, found: dict[str, Any]) -> str:
    """`right`, `wrong`, or `unknown` where nothing was named although a cause was meant.

    A measured fact that is no setting (a gain, another order) is evidence: it is wrong only where a cause was meant
    and a share is claimed for another.
    """
    causes = [c for c in found.get("causes") or [] if c["setting"] != PLANTED]
    told = [f"{c['setting']} {c['cause']}" for c in causes]
    if change.cause == "unknown":
        return "wrong" if any(c["setting"] for c in causes) else "right"
    words = GAUGES.get(change.cause, (change.cause,))
    if any(word in text for word in words for text in told):
        return "right"
    return "wrong" if any(c["setting"] for c in causes) else "unknown"
