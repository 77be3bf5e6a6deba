"""One line records the pipelines of other families, and another implementation's rounding passes along their loops."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import parity
from parity.compare.diff import diff
from parity.golden import Golden
from tests.recorder import pipelines, script


@pytest.mark.parametrize(
    ("make", "branches"),
    [(pipelines.wan, {"", "cond", "uncond"}), (pipelines.ltx, {"", "cond", "uncond"}), (pipelines.flux, {"", "cond"})],
)
def test_two_recordings_of_which_one_adds_in_another_order_agree(
    make: Callable[[], pipelines.Made], branches: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipe, call = make()
    pipe.set_progress_bar_config(disable=True)
    plain = call()
    with parity.record(tmp_path / "a", pipe):
        seen = call()
    assert np.array_equal(plain, seen)
    monkeypatch.setattr(torch.nn.functional, "linear", script.split_linear)
    with parity.record(tmp_path / "b", pipe, like=tmp_path / "a"):
        call()
    found = diff(tmp_path / "a", tmp_path / "b")
    assert found.verdict == "pass", found.reason
    golden = Golden.open(tmp_path / "a")
    assert (golden.steps, golden.complete) == ((-1, 0, 1, 2), True)
    assert {r.key.branch for r in golden.read_step(2).records} == branches
    last = [d for d in found.sites if d.key.step == 2 and d.key.site == "loop:latents.after"]
    assert 0 < last[0].distance.ratio < 1


def test_a_weight_that_is_wrong_is_found_at_its_module(tmp_path: Path) -> None:
    pipe, call = pipelines.wan()
    pipe.set_progress_bar_config(disable=True)
    with parity.record(tmp_path / "a", pipe, sites="all"):
        call()
    hooked = pipe.transformer.blocks[1].attn2.to_out[0].register_forward_hook(lambda module, args, out: out * 1.001)
    with parity.record(tmp_path / "b", pipe, sites="all", like=tmp_path / "a"):
        call()
    hooked.remove()
    found = diff(tmp_path / "a", tmp_path / "b")
    assert found.verdict == "fail"
    assert found.origin is not None
    assert (found.origin.key.step, found.origin.key.site) == (0, "blocks.1.attn2.to_out.0:out")
