"""What `parity run` says to type next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from parity.commands.parts.options import Sides
from parity.commands.run import _following
from parity.compare.result import UNKNOWN, Origin, Result, StageDiff
from parity.golden.records import Key
from tests.support.made import because

KEPT = Path("my run")
NONE = Sides()
PREFLIGHT = Result("fail", "preflight", because("timesteps repeat"))
DIVERGED = replace(
    PREFLIGHT, failed="structure", origin=Origin(Key("transformer", 0, "cond", "proj_out:out"), "module")
)


def test_a_run_that_diverged_is_explained_and_shown() -> None:
    assert _following(DIVERGED, KEPT, NONE) == (
        "parity explain 'my run'   # why",
        "parity report 'my run'   # the page",
    )
    ported = _following(DIVERGED, KEPT, Sides(reference_path="a b.py:f", candidate_path="port.py:build"))
    assert ported[0] == "parity explain 'my run' --reference-path 'a b.py:f' --candidate-path port.py:build   # why"
    (keep,) = _following(DIVERGED, None, NONE)
    assert "--out RUN" in keep


def test_what_ended_in_preflight_has_no_causes_and_a_page() -> None:
    assert _following(PREFLIGHT, KEPT, NONE) == ("parity report 'my run'   # the page",)
    assert _following(PREFLIGHT, None, NONE) == ()
    assert _following(replace(PREFLIGHT, verdict="pass", failed=None), KEPT, NONE) == ()


def test_a_stage_outside_the_loop_that_differs_is_explained() -> None:
    stage = StageDiff("vae", "frames", UNKNOWN, UNKNOWN, "fail", because("frames"))
    for found in (
        replace(PREFLIGHT, failed="structure", stages=(stage,)),
        replace(PREFLIGHT, failed="structure", origin=Origin(Key("vae", -1, "", "decoder:out"), "module")),
    ):
        assert _following(found, KEPT, NONE)[0] == "parity explain 'my run'   # why"
