"""Floors that are measured by running a script's body again: innocent variants pass, faults fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

pytest.importorskip("diffusers")

import parity
from parity.compare.diff import diff
from parity.errors import UsageError
from parity.golden import Golden
from tests.support.scripts import flux, generate, load, recorded, split_linear


def test_floors_of_a_pipeline(tmp_path: Path) -> None:
    pipe, call = flux()
    with torch.no_grad():
        plain = call()
        frames = [call() for _ in parity.record(tmp_path / "gpu", pipe)]
    assert np.array_equal(frames[0], plain)
    golden = Golden.open(tmp_path / "gpu")
    assert golden.complete
    assert all(golden.read_step(step).floors for step in golden.steps)
    with torch.no_grad(), mock.patch("torch.nn.functional.linear", split_linear):
        recorded(tmp_path / "tpu", call, pipe, like=tmp_path / "gpu")
    found = diff(tmp_path / "gpu", tmp_path / "tpu")
    assert found.verdict == "pass", found.reason


def test_a_script_that_is_not_seeded_is_told_what_differed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts, noise = load(), torch.Generator().manual_seed(1)
    for _ in parity.record(tmp_path / "gpu", **parts.named):
        generate(parts, noise=lambda x: torch.randn(x.shape, generator=noise))
    assert "not deterministic. loop:latents.before (step 0) differed first" in capsys.readouterr().err
    assert not Golden.open(tmp_path / "gpu").read_step(0).floors


def test_a_body_that_is_left_keeps_what_was_recorded(tmp_path: Path) -> None:
    parts = load()
    for count, _ in enumerate(parity.record(tmp_path / "gpu", **parts.named)):
        generate(parts)
        if count:
            break
    golden = Golden.open(tmp_path / "gpu")
    assert golden.complete
    assert not golden.read_step(0).floors
    hooks = [h for m in parts.transformer.modules() for h in (m._forward_pre_hooks, m._forward_hooks)]
    assert not any(hooks)


def test_body_of_a_candidate_runs_once(tmp_path: Path) -> None:
    parts = load()
    assert len([generate(parts) for _ in parity.record(tmp_path / "tpu", **parts.named, like="gpu")]) == 1
    assert Golden.open(tmp_path / "tpu").complete


@pytest.mark.parametrize(
    ("option", "message"),
    [({"stop_after": 1}, "use `with`"), ({"like": "gpu", "causes": True}, "causes=True is for a reference")],
)
def test_what_a_body_cannot_have(option: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        iter(parity.record(tmp_path / "gpu", **load().named, **option))
