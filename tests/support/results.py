"""A failing result with something in every part."""

from __future__ import annotations

from parity.compare.reason import Note
from parity.compare.result import (
    NAN,
    Birth,
    Cause,
    Check,
    Distance,
    Origin,
    Result,
    SettingDifference,
    SiteDiff,
    SiteVerdict,
    StepDiff,
    Witness,
)
from parity.records import Key
from tests.support.made import because

INF = float("inf")
KEY = Key("transformer", 0, "cond", "transformer_blocks.0.attn.attention:out", 1)
FAR, NEAR = Distance(6.7e-2, 1 / 3, INF), Distance(1.0, 2.0, 0.5)
SITE = SiteDiff(
    KEY, FAR, cosine=0.5, max_abs=-INF, shapes=((1, 2), (1, 3)), dtypes=("float32", "bfloat16"), nonfinite=(0, 2),
    bins=(1.0, NAN), birth="module", verdict="fail", note="q, k, v agree",
)  # fmt: skip
STEP = StepDiff(0, (999.0, 1000.0), (1.0, 0.9), (-0.1, NAN), FAR, NEAR, FAR, {"cond": FAR})
RESULT = Result(
    "fail",
    "logic",
    because("attention parts first"),
    model="tiny",
    differing_settings=(SettingDifference("attention.mask", "exact", "none"),),
    preflight=(Check("weights", "pass", "812 tensors"),),
    steps=(STEP,),
    sites=(SITE, SiteDiff(Key("text", -1, "", "a:out"), Distance(0.0, NAN, NAN), bins=(1.0,))),
    origin=Origin(KEY, "module"),
    causes=(Cause("mask", "attention.mask", "exact", "none", 0.98, (Witness("measured", 64.0, "phantom keys"),)),),
    notes=(Note("one"), Note("two")),
)


def site(
    name: str,
    ratio: float = 0.8,
    verdict: SiteVerdict = "pass",
    *,
    step: int = 0,
    branch: str = "cond",
    birth: Birth | None = None,
    note: str = "",
) -> SiteDiff:
    """A site whose difference is so many floors of 1e-6."""
    key = Key("transformer", step, branch, name)
    return SiteDiff(key, Distance(ratio * 1e-6, 1e-6, ratio), birth=birth, verdict=verdict, note=note)
