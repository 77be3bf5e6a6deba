"""What `parity run` and `parity explain` say to type next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from parity.commands import explain, run
from parity.commands.parts.options import Sides
from parity.compare.result import NAN, UNKNOWN, Cause, Origin, Result, StageDiff, Witness
from parity.golden.records import Key
from tests.support.made import because

KEPT = Path("my run")
PREFLIGHT = Result("fail", "preflight", because("timesteps repeat"))
ORIGIN = Origin(Key("transformer", 0, "cond", "proj_out:out"), "module")
STAGE = StageDiff("vae", "frames", UNKNOWN, UNKNOWN, "fail", because("frames"))
WHY, PAGE = "parity explain 'my run'   # why", "parity report 'my run'   # the page"
SWAPPED = Cause("mask", "attention.mask", "exact", "none", 1.0, (Witness("counterfactual", 1.0, ""),))
COUNTED = Cause("64 phantom keys", "", "", "", NAN, (Witness("gauge", 64.0, ""),))


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (replace(PREFLIGHT, failed="structure", origin=ORIGIN), (WHY, PAGE)),
        (replace(PREFLIGHT, failed="structure", stages=(STAGE,)), (WHY, PAGE)),
        (PREFLIGHT, (PAGE,)),
        (replace(PREFLIGHT, verdict="pass", failed=None), ()),
    ],
)
def test_of_a_run(result: Result, said: tuple[str, ...]) -> None:
    assert run._following(result, KEPT, Sides()) == said
    assert len(run._following(result, None, Sides())) == len(said) // 2, "only where there are causes to find: keep it"


@pytest.mark.parametrize(
    ("second", "again", "page"),
    [(None, "the same run with --candidate", "parity report 'my run'"),
     ("b", "record the candidate again with --setting", "parity explain 'my run' b --format html > explain.html")],
)  # fmt: skip
def test_of_causes(second: str | None, again: str, page: str) -> None:
    confirm = f"{again} attention.mask=exact"
    for causes, commands in (((), ()), ((COUNTED,), (page,)), ((SWAPPED, COUNTED), (confirm, page))):
        found = explain._following(replace(PREFLIGHT, causes=causes), "my run", second)
        assert tuple(command.partition("   #")[0] for command in found) == commands
