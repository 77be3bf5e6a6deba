"""Today's code against the goldens of its own models that are committed in `golden/`; `make goldens` renews them.

The golden may come from another machine and other versions: its floors decide, and its embeddings are given, because
text encoders round otherwise everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from parity.compare.diff import diff
from parity.golden import Golden, GoldenWriter, Provenance, Record, verify

ROOT = Path(__file__).resolve().parents[1] / "golden"
MODELS = ("tiny-hunyuan-video-1.5",)
LIMIT = 2_000_000
"""Bytes a model, embeddings included."""

Side = Literal["reference", "candidate"]


@pytest.fixture(scope="module")
def today(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Side], Path]:
    """Records a model's path with today's code, once; without floors, which are the golden's to give."""
    pytest.importorskip("torchax")
    from parity.runs.recording.record import RecordRequest, record
    from parity.runs.request import Request
    from parity.settings import parse

    made: dict[tuple[str, str], Path] = {}

    def make(model: str, side: Side) -> Path:
        if (model, side) not in made:
            where = tmp_path_factory.mktemp(f"{model}-{side}")
            stage1 = ROOT / f"{model}.embeddings.safetensors"
            run = Request(model, parse("torch"), parse("torchax"), stage1=stage1)
            request = RecordRequest(where=str(where), side=side, run=run, floors=())
            record(request, lambda text, done=None, total=None: None)
            made[model, side] = where
        return made[model, side]

    return make


def changed(golden: Path, where: Path, scale: float, provenance: Callable[[Provenance], Provenance]) -> Path:
    """A copy with every sketch and value scaled."""

    def scaled(record: Record) -> Record:
        if "float" not in record.dtype or record.kind != "tensor" or record.sketch is None:
            return record
        value = record.value
        return replace(
            record,
            sketch=(record.sketch.astype(np.float64) * scale).astype(np.float32),
            value=(value.astype(np.float64) * scale).astype(value.dtype) if isinstance(value, np.ndarray) else value,
        )

    held = Golden.open(golden)
    with GoldenWriter(where, provenance(held.provenance)) as writer:
        for step in held.steps:
            records = held.read_step(step)
            writer.write_step(replace(records, records=tuple(map(scaled, records.records))))
    return where


def test_every_golden_here_is_tested() -> None:
    assert sorted(p.parent.name for p in ROOT.glob("*/golden.json")) == sorted(MODELS)


@pytest.mark.parametrize("model", MODELS)
def test_the_golden_is_whole_small_and_has_floors(model: str) -> None:
    assert verify(ROOT / model) == []
    files = [*(ROOT / model).iterdir(), ROOT / f"{model}.embeddings.safetensors"]
    assert sum(f.stat().st_size for f in files) < LIMIT
    assert {f.name for f in (ROOT / model).iterdir()} == {"golden.json", "step-0000.safetensors"}
    golden = Golden.open(ROOT / model)
    assert golden.provenance.command == (
        f"parity record golden/{model} --model {model} --steps 1 --stage1 golden/{model}.embeddings.safetensors "
        "--overwrite"
    )
    step = golden.read_step(0)
    assert {r.key for r in step.records if r.kind == "tensor"} == set(step.floors)
    assert all(np.isfinite(floor.l2) for floor in step.floors.values())


@pytest.mark.parametrize("side", ["reference", "candidate"])
@pytest.mark.parametrize("model", MODELS)
def test_today_is_the_same(model: str, side: Side, today: Callable[[str, Side], Path]) -> None:
    result = diff(ROOT / model, today(model, side))
    assert result.verdict == "pass", f"{result.reason}; where the change is meant: make goldens"
    assert len(result.steps) == 1
    assert len([d for d in result.sites if d.verdict == "pass"]) > 200


@pytest.mark.parametrize("model", MODELS)
def test_another_machine_and_other_versions_pass_and_a_fault_does_not(
    model: str, today: Callable[[str, Side], Path], tmp_path: Path
) -> None:
    def elsewhere(provenance: Provenance) -> Provenance:
        versions = {name: "999.0" for name in provenance.versions} | {"cuda": "13.1"}
        return replace(
            provenance, versions=versions, devices=("TPU v9 x 8",), command="parity record x", commit="0" * 40
        )

    candidate = today(model, "candidate")
    other = changed(candidate, tmp_path / "other", 1 + 3e-8, elsewhere)  # half an ulp everywhere
    assert diff(ROOT / model, other).verdict == "pass"
    fault = changed(candidate, tmp_path / "fault", 1 + 1e-3, elsewhere)
    result = diff(ROOT / model, fault)
    assert result.verdict == "fail"
    assert result.origin is not None


@pytest.mark.parametrize("model", MODELS)
def test_another_seed_is_not_compared(model: str, today: Callable[[str, Side], Path], tmp_path: Path) -> None:
    other = changed(today(model, "candidate"), tmp_path / "other", 1.0, lambda p: replace(p, seed=1))
    result = diff(ROOT / model, other)
    assert (result.verdict, result.exit_code) == ("unjudged", 125)
    assert "seed" in result.reason
