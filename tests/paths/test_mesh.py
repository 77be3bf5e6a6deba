"""Sharding rules as data: what each set splits, and what it says of rules that come to nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from jax.sharding import AxisType, PartitionSpec

from parity.errors import UsageError
from parity.paths.jax.mesh import AXES, RULES, Devices, use_compilation_cache


def test_a_platform_that_is_not_there_is_the_user_s_mistake() -> None:
    ask = "from parity.paths.jax.mesh import *; from parity.settings import parse; make_devices(parse('torchax', []))"
    environment = {**os.environ, "JAX_PLATFORMS": "tpu"}
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False, env=environment)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("parity.errors.UsageError: JAX finds no device (JAX_PLATFORMS=tpu)")
    assert last.endswith("JAX_PLATFORMS=cpu runs the candidate on the CPU")


WEIGHTS = {
    "transformer_blocks.0.attn.to_q.weight": (128, 128),
    "transformer_blocks.0.attn.to_q.bias": (128,),
    "transformer_blocks.0.attn.to_out.0.weight": (128, 128),
    "transformer_blocks.0.ff.net.0.proj.weight": (512, 128),
    "transformer_blocks.0.ff.net.2.weight": (128, 512),
    "transformer_blocks.0.ff.net.2.bias": (128,),
    "proj_out.weight": (64, 128),
}


def devices(sharding: str, tp: int = 2) -> Devices:
    """A mesh that is only named: no second device is needed to plan."""
    mesh = jax.sharding.AbstractMesh((1, 1, tp), AXES, axis_types=(AxisType.Auto,) * 3)
    return Devices(mesh, RULES[sharding])  # type: ignore[arg-type]


def split(sharding: str) -> set[str]:
    made = devices(sharding)
    return {
        name.removeprefix("transformer_blocks.0.")
        for name, shape in WEIGHTS.items()
        if "tp" in made.weight(name, shape).spec
    }


COLUMN = {"attn.to_q.weight", "attn.to_q.bias", "ff.net.0.proj.weight"}


def test_what_each_set_splits() -> None:
    assert split("tp") == COLUMN | {"attn.to_out.0.weight", "ff.net.2.weight"}
    assert split("tp_fc2_replicated") == COLUMN | {"attn.to_out.0.weight"}
    assert split("tp_proj_replicated") == COLUMN | {"ff.net.2.weight"}
    assert split("tp_column") == COLUMN
    assert split("replicated") == set()
    assert devices("tp").weight("a.to_out.0.weight", (8, 8)).spec == PartitionSpec(None, "tp")


def test_a_set_that_matches_nothing_at_all_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"no rule of the sharding set matches any of the 1 parameters .*'conv.weight'"
    ):
        devices("tp").placement([("conv.weight", (4, 4))])


def test_a_user_s_own_cache_of_compiled_programs_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = jax.config.jax_compilation_cache_dir
    try:
        for variable, where in (("PARITY_CACHE", tmp_path / "jax"), ("JAX_COMPILATION_CACHE_DIR", tmp_path)):
            monkeypatch.setenv(variable, str(tmp_path))
            use_compilation_cache()
            assert jax.config.jax_compilation_cache_dir == str(where)
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
