"""Ports for several chips: they split their weights over a mesh of their own and name it in their calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_dit import PORT, REFERENCE

pytestmark = pytest.mark.slow

pytest.importorskip("torchax")

MESH = """
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

MESH = jax.make_mesh((2,), ("tp",), axis_types=(AxisType.Auto,))


def place(name, x):
    return jax.device_put(x, NamedSharding(MESH, P("tp") if name.endswith("qkv.weight") else P()))


"""
ATTENTION = """
    a = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(1.0 * q.shape[-1]), axis=-1)
    h = jnp.einsum("bhqk,bkhd->bqhd", a, v).reshape(x.shape)
"""
BY_HEAD = """
    def attend(q, k, v):
        a = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(1.0 * q.shape[-1]), axis=-1)
        return jnp.einsum("bhqk,bkhd->bqhd", a, v)

    heads = P(None, None, "tp")
    h = jax.shard_map(attend, mesh=MESH, in_specs=(heads,) * 3, out_specs=heads)(q, k, v).reshape(x.shape)
"""
SPLIT = PORT.replace("def linear", f"{MESH}def linear").replace(
    "    rename =", "    w = {k: place(k, x) for k, x in w.items()}\n    rename ="
)
PROJECTED = 'tap(name + ".proj", linear(w, name + ".proj", h))'
BY_ROW = """tap(name + ".proj", by_row(w[name + ".proj.weight"], h) + w[name + ".proj.bias"])"""
ROWS = """
def by_row(weight, h):
    given = P(None, "tp"), P(None, None, "tp")
    added = lambda w, h: jax.lax.psum(h @ w.T, "tp")
    return jax.shard_map(added, mesh=MESH, in_specs=given, out_specs=P(), check_vma=False)(weight, h)


"""
BY_ROWS = SPLIT.replace("def block", f"{ROWS}def block").replace(PROJECTED, BY_ROW)
TWO_MESHES = """
    import numpy as np
    from jax.sharding import Mesh, PartitionSpec as P
    devices = np.array(jax.devices())
    one, two = Mesh(devices, ("a",)), Mesh(devices.reshape(2, 2), ("a", "b"))
    for mesh, spec in (one, P(None, "a")), (two, P(None, "a", "b")):
        x = jax.shard_map(lambda x: x + 0, mesh=mesh, in_specs=spec, out_specs=spec)(x)
"""
PORTS = {
    "two_meshes": PORT.replace("    for i in range(2):", f"{TWO_MESHES}    for i in range(2):"),
    "by_row": BY_ROWS,
    "by_row_and_not_added": BY_ROWS.replace('jax.lax.psum(h @ w.T, "tp")', "h @ w.T"),
    "split": SPLIT,
    "by_head": SPLIT.replace(ATTENTION, BY_HEAD),
    "by_head_and_wrong": SPLIT.replace(ATTENTION, BY_HEAD.replace("1.0 *", "1.1 *")),
}
TWO_STEPS = REFERENCE.replace("torch.tensor([0.7])", "torch.tensor([0.7, 0.4])")
SCRIPT = """
import json, sys
from parity.paths.live import Host
from tests.support.ports import compare
for name in sys.argv[2:]:
    found = compare(f"{sys.argv[1]}/model.py:reference", f"{sys.argv[1]}/{name}.py:build", openers=Host(), steps=2)
    where = found.origin and found.origin.key.module
    print(json.dumps({"name": name, "verdict": found.verdict, "origin": where, "reason": found.reason,
                      "notes": [note.text for note in found.notes]}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """What was said of each port, in one process of four devices."""
    folder = tmp_path_factory.mktemp("ports")
    (folder / "model.py").write_text(TWO_STEPS)
    for name, text in PORTS.items():
        (folder / f"{name}.py").write_text(text)
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", SCRIPT, str(folder), *PORTS]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", ["split", "by_head", "by_row", "two_meshes"])
def test_a_port_that_is_placed_by_itself_runs_as_it_is(name: str, found: Mapping[str, Any]) -> None:
    assert found[name]["verdict"] == "pass", found[name]["reason"]


def test_its_fault_is_found_where_it_is(found: Mapping[str, Any]) -> None:
    assert found["by_head_and_wrong"]["verdict"] == "fail"
    assert found["by_head_and_wrong"]["origin"] == "blocks.0.proj"


def test_a_sum_over_devices_that_is_left_out_is_found_where_it_is(found: Mapping[str, Any]) -> None:
    """Each device goes on from its own part: there is no one value."""
    row = found["by_row_and_not_added"]
    assert (row["verdict"], row["origin"]) == ("fail", "blocks.0.proj"), row["reason"]
    assert any("a psum or an all_gather is missing" in note for note in row["notes"]), row["notes"]
