"""Ports of the tiny model's transformer, traced for devices that are not here; here for the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torchax")

import jax

from parity.errors import UsageError
from parity.models.registry import family_of
from parity.models.spec import Case
from parity.paths.port.load import load_entry
from parity.paths.port.settings import chosen
from parity.tpu.abstract import Abstract
from parity.tpu.ported import abstract_port

pytestmark = pytest.mark.slow

JAX = """
import jax
import jax.numpy as jnp

from parity.port import Port, tap

SETTINGS = {"attention.block_q": "128"}


def forward(w, inputs):
    x = tap("x_embedder", inputs["hidden_states"][:, :32].astype(jnp.float32))
    return tap("proj_out", x * w["scale"] * float(w["block"].shape[0]))


def build(case):
    block = jnp.ones(int(case.settings["attention.block_q"]))
    return Port(call=forward, weights=PLACED({"scale": jnp.float32(2.0), "block": block}))
"""
SPLIT = """
from jax.sharding import NamedSharding, PartitionSpec as P


def placed(weights):
    mesh = jax.make_mesh((2,), ("chips",), axis_types=(jax.sharding.AxisType.Auto,))
    return {**weights, "block": jax.device_put(weights["block"], NamedSharding(mesh, P("chips")))}


"""
WHOLE = JAX.replace("PLACED", "dict")
TORCH = """
import torch

from parity.port import Port


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.proj_out = torch.nn.Conv3d(65, 32, 1)

    def forward(self, hidden_states, **others):
        return self.proj_out(hidden_states[:, :65])


def build(case):
    return Port(module=Net(), runs="RUNS")
"""


def port(folder: Path, case: Case, text: str, *settings: str) -> Abstract:
    (folder / "port.py").write_text(text)
    entry = load_entry("--candidate-path", f"{folder}/port.py:build")
    return abstract_port(entry, family_of(case.folder), case, chosen(entry, "torchax", settings), jax.devices("cpu"))


def test_a_port_in_jax(tiny_case: Case, tmp_path: Path) -> None:
    found = port(tmp_path, tiny_case, WHOLE, "attention.block_q=64")
    assert {"x_embedder", "proj_out"} <= found.modules
    assert found.backend.params["block"].shape == (64,)
    assert isinstance(found.backend.params["block"], jax.ShapeDtypeStruct)
    plain, observed = (len(jax.tree.leaves(found.lowered(sites).out_info)) for sites in ("none", "proj_out"))
    assert observed > plain


def test_a_torch_module_through_torchax(tiny_case: Case, tmp_path: Path) -> None:
    channels = tiny_case.config["in_channels"]
    out = tiny_case.config["out_channels"]
    text = TORCH.replace("RUNS", "torchax").replace("65", str(channels)).replace("32", str(out))
    found = port(tmp_path, tiny_case, text)
    assert found.devices == 1
    assert "/proj_out/" in found.lowered("none").as_text(debug_info=True)


def test_a_port_in_torch_has_no_program(tiny_case: Case, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="runs in torch: no program of it is compiled for a TPU"):
        port(tmp_path, tiny_case, TORCH.replace("RUNS", "torch"))


SCRIPT = """
import json, sys
from pathlib import Path
from parity.models.registry import make_case, resolve_model
from parity.models.spec import GenerationSpec
from tests.tpu.test_ported import JAX, SPLIT, port
folder = resolve_model("tiny-hunyuan-video-1.5")
case = make_case("tiny", folder, GenerationSpec.load(folder))
text = JAX.replace("PLACED", "placed").replace("def forward", SPLIT + "def forward")
found = port(Path(sys.argv[1]), case, text)
found.lowered("none")
shard = {name: str(x.sharding.spec) for name, x in found.backend.params.items()}
print(json.dumps({"devices": found.devices, "specs": shard}))
"""


def test_a_port_with_a_mesh_of_its_own(tmp_path: Path) -> None:
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == {"devices": 2, "specs": {"block": "P('chips',)", "scale": "P()"}}
