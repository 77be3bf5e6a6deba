"""Sharding rules as data: what each set splits, and what it says of rules that come to nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

from parity.errors import UsageError
from parity.paths.jax.mesh import AXES, RULES, Devices, make_devices, use_compilation_cache
from parity.settings import SETTINGS, parse

pytestmark = pytest.mark.slow

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
    return Devices(mesh, tuple((re.compile(p), spec) for p, spec in RULES[sharding]))  # type: ignore[arg-type]


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


def test_every_named_set_has_rules() -> None:
    assert set(next(c for c in SETTINGS if c.name == "sharding").values) == set(RULES)


def test_rules_that_match_nothing_and_weights_that_cannot_be_split_are_told() -> None:
    told = devices("tp").placement([*WEIGHTS.items(), ("x.to_k.weight", (3, 128))])
    assert told.startswith("5 of 8 parameters are split over tp=2; 1 that a rule names are whole")
    assert "7 of 12 rules match nothing: " in told
    assert "add_q_proj" in told
    assert "to_q|to_k" not in told
    assert devices("tp", tp=1).placement(WEIGHTS.items()) == ""
    assert "no rules" in devices("replicated").placement(WEIGHTS.items())


def test_a_set_that_matches_nothing_at_all_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"no rule of the sharding set matches any of the 1 parameters .*'conv.weight'"
    ):
        devices("tp").placement([("conv.weight", (4, 4))])


def test_a_mesh_of_one_is_made() -> None:
    assert isinstance(make_devices(parse("torchax")).mesh, Mesh)


SCRIPT = """
from tests.models.test_feature_cache import CACHE, MODELS, side
from tests.paths.sides import apart, walk
alone = walk(side(MODELS[0], "torch", CACHE))
found = walk(side(MODELS[0], "torchax", CACHE, "mesh=dp=2,sp=1,tp=2"))
print(max(apart(alone.value("noise_pred", step=i), found.value("noise_pred", step=i)) for i in range(4)))
print(found.side.backend.placement)
"""


def test_the_cache_is_kept_on_a_mesh() -> None:
    """In a process of four devices: what one program keeps there, the next is given."""
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    far, told = done.stdout.splitlines()
    assert float(far) < 1e-5
    assert "are split over tp=2" in told


def test_a_user_s_own_cache_of_compiled_programs_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = jax.config.jax_compilation_cache_dir
    try:
        for variable, where in (("PARITY_CACHE", tmp_path / "jax"), ("JAX_COMPILATION_CACHE_DIR", tmp_path)):
            monkeypatch.setenv(variable, str(tmp_path))
            use_compilation_cache()
            assert jax.config.jax_compilation_cache_dir == str(where)
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
