"""Today's code against the golden of its own model that is committed in `golden/`; `make goldens` renews it.

The golden may come from another machine and other versions: its floors decide, and its embeddings are given, because
text encoders round differently everywhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from parity.compare.diff import diff
from parity.golden import Golden, verify
from tests.support.cli import cli
from tests.support.made import copied, scaled

MODEL = "tiny-hunyuan-video-1.5"
ROOT = Path(__file__).resolve().parents[1] / "golden"
STAGE1 = ROOT / f"{MODEL}.embeddings.safetensors"
LIMIT = 2_000_000
"""Bytes, embeddings included."""


def record(where: Path, side: Literal["reference", "candidate"]) -> Path:
    """A side's path with today's code, without floors, which are the golden's to give."""
    cli("record", where, "--model", MODEL, "--side", side, "--inputs", STAGE1, "--floors", "none", code=0)
    return where


@pytest.fixture(scope="module")
def today(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("today") / "reference", "reference")


def test_committed_golden_is_whole_small_and_has_floors() -> None:
    assert [p.parent.name for p in ROOT.glob("*/golden.json")] == [MODEL]
    assert verify(ROOT / MODEL) == []
    files = [*(ROOT / MODEL).iterdir(), STAGE1]
    assert sum(f.stat().st_size for f in files) < LIMIT
    assert {f.name for f in files[:-1]} == {"golden.json", "inputs.safetensors", "step-0000.safetensors"}
    golden = Golden.open(ROOT / MODEL)
    command = "parity record golden/{0} --model {0} --steps 1 --inputs golden/{0}.embeddings.safetensors --overwrite"
    assert golden.provenance.command == command.format(MODEL)
    step = golden.read_step(0)
    assert {r.key for r in step.records if r.kind == "tensor"} == set(step.floors)
    assert all(np.isfinite(floor.l2) for floor in step.floors.values())


ELSEWHERE = {"versions": {"torch": "999.0", "cuda": "13.1"}, "devices": ("TPU v9 x 8",), "commit": "0" * 40}


@pytest.mark.parametrize(
    ("scale", "provenance", "verdict", "said"),
    [
        (1, {}, "pass", ""),
        (1 + 3e-8, ELSEWHERE, "pass", ""),  # half an ulp everywhere
        (1 + 1e-3, ELSEWHERE, "fail", ""),
        (1, {"seed": 1}, "inconclusive", "seed"),
    ],
    ids=["as it is", "another machine", "a fault", "another seed"],
)
def test_today_against_the_committed_golden(
    scale: float, provenance: dict[str, object], verdict: str, said: str, today: Path, tmp_path: Path
) -> None:
    found = diff(ROOT / MODEL, copied(today, tmp_path / "other", lambda r: scaled(r, scale), **provenance))
    assert found.verdict == verdict, f"{found.reason}; if the change is intended: make goldens"
    assert said in found.reason
    assert (found.origin is not None) == (verdict == "fail")
    assert verdict != "pass" or len([d for d in found.sites if d.verdict == "pass"]) > 200


@pytest.mark.slow
def test_todays_candidate_agrees_with_the_committed_golden(tmp_path: Path) -> None:
    found = diff(ROOT / MODEL, record(tmp_path / "candidate", "candidate"))
    assert found.verdict == "pass", f"{found.reason}; if the change is intended: make goldens"
