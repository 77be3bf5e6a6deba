"""The commands of docs/compile.md with the compiler itself, on a model as small as they come."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parity import cli
from parity.models.spec import Case
from parity.tpu.compiler import ENVIRONMENT

pytestmark = pytest.mark.slow

pytest.importorskip("torchax")
DOCUMENT = (Path(__file__).parents[2] / "docs" / "compile.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^parity (compile .*)$", DOCUMENT, re.MULTILINE)

ENCODERS = ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")

needs_the_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu, the TPU compiler, is not installed (extra aot)"
)


@pytest.fixture(scope="module")
def small(tiny_case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's configs with one block, whose heads are as wide as the large ones'."""
    folder = tmp_path_factory.mktemp("small")
    for part in ("transformer", "vae", "scheduler", "guider", *ENCODERS, "."):
        (folder / part).mkdir(exist_ok=True)
        for file in (tiny_case.folder / part).iterdir():
            if file.suffix in (".json", ".jinja"):
                shutil.copy(file, folder / part)
    path = folder / "transformer" / "config.json"
    wide = {"attention_head_dim": 128, "num_attention_heads": 2, "num_layers": 1, "num_refiner_layers": 1}
    path.write_text(json.dumps({**json.loads(path.read_text()), **wide, "rope_axes_dim": [16, 56, 56]}))
    return folder


def test_the_document_s_commands_are_told() -> None:
    assert [len(shlex.split(c)) > 2 for c in COMMANDS] == [True] * 5
    assert "--candidate-path my_port.py:build" in COMMANDS[2]


@needs_the_compiler
@pytest.mark.parametrize("command", [c for c in COMMANDS if "my_port.py" not in c and "--stage" not in c])
def test_a_command_of_the_document(command: str, small: Path) -> None:
    """On the small model in the built-in one's place."""
    words = [w for w in shlex.split(command) if w not in ("--model", "tiny-hunyuan-video-1.5")]
    done = CliRunner().invoke(cli.app, [*words, "--model", str(small), "--json"])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    programs = found["programs"]
    assert [p["program"] for p in programs] == {
        COMMANDS[0]: ["unobserved"],
        COMMANDS[1]: ["unobserved", "observed"],
        COMMANDS[4]: ["unobserved", "against"],
    }[command]
    for program in programs:
        memory = program["memory"]
        assert 0 < memory["temporaries"] < memory["total"] < memory["limit"] == 32 << 30
        assert {p["module"] for p in program["products"]} >= {"transformer_blocks.*.attn.to_q", "proj_out"}
    met = {p["precision"] for p in programs[0]["products"]}
    if "default" in command:  # in one pass; some operands the compiler rounds beforehand, and keeps in bfloat16
        assert met == {"float32 rounded to bfloat16, one pass", "bf16, one pass"}
    else:
        assert met == {"float32, six passes"}
    units = (found["observer_effect"] or found["against"] or {}).get("product_units")
    assert units is None or 0 <= units["same"] <= units["before"]
    if found["observer_effect"] is not None:  # the same operations, wherever an observed tensor is written down
        assert found["observer_effect"]["changed"] == []
    if "--against" in words:  # every product is made of other passes
        assert units["same"] == 0


@needs_the_compiler
def test_an_encoder(small: Path) -> None:
    """From its config alone: the folder has no weights."""
    words = [w for w in shlex.split(COMMANDS[3]) if w not in ("--model", "tiny-hunyuan-video-1.5")]
    done = CliRunner().invoke(cli.app, [*words, "--model", str(small), "--json"])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["stage"], found["calls"]) == ("text_encoder_2", 1)
    (program,) = found["programs"]
    assert {p["module"] for p in program["products"]} >= {"text_encoder_2.block.*.layer.*.SelfAttention.q"}


@needs_the_compiler
def test_blocks_that_are_too_large_are_refused_in_words(small: Path) -> None:
    blocks = [f"attention.block_{x}=4096" for x in ("q", "kv")]
    settings = ["attention.kernel=splash", "dtype=bfloat16", "matmul_precision=default", *blocks]
    chosen = [word for setting in settings for word in ("--candidate", setting)]
    done = CliRunner().invoke(
        cli.app, ["compile", "--model", str(small), "--topology", "v6e:2x2", "--sites", "none", *chosen]
    )
    assert done.exit_code == 1, done.stderr
    assert "the kernel splash_mha_fwd_segmented_no_residuals in transformer_blocks.0.attn needs" in done.stdout
    assert "its blocks are 4096 x 4096: choose smaller ones with attention.block_q" in done.stdout


OPTIONS = """
import jax, jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding
from parity.paths.jax.program import PACKED
chip = topologies.get_topology_desc("v6e:2x2", platform="tpu").devices[0]
x = jax.ShapeDtypeStruct((8, 128), jnp.float32, sharding=SingleDeviceSharding(chip))
jax.jit(lambda x: x + 1).lower(x).compile(compiler_options=dict(PACKED))
"""


@needs_the_compiler
def test_the_compiler_knows_what_observed_programs_ask_for() -> None:
    """Where it does not, they are compiled without, so nothing else would tell."""
    done = subprocess.run(
        [sys.executable, "-c", OPTIONS], env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


KERNEL = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from parity.port import Port


def scale(x_ref, w_ref, out_ref):
    out_ref[...] = x_ref[...] * w_ref[...]


def call(w, inputs):
    x = inputs["hidden_states"][:, :32].astype(jnp.float32)
    rows = -(-x.size // (ROWS * 128)) * ROWS
    flat = jnp.pad(x.reshape(-1), (0, rows * 128 - x.size)).reshape(rows, 128)
    block = pl.BlockSpec((ROWS, 128), lambda i: (i, 0))
    scaled = pl.pallas_call(
        scale,
        grid=(rows // ROWS,),
        in_specs=[block, pl.BlockSpec((1, 128), lambda i: (0, 0))],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(flat.shape, flat.dtype),
    )(flat, w["scale"])
    return scaled.reshape(-1)[: x.size].reshape(x.shape)


def build(case):
    return Port(call=call, weights={"scale": jnp.ones((1, 128))})
"""


@needs_the_compiler
@pytest.mark.parametrize("rows", [256, 1 << 18])
def test_a_port_s_own_kernel(rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled for the TPU, or refused in words."""
    (tmp_path / "my_port.py").write_text(KERNEL.replace("ROWS", str(rows)))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli.app, [*shlex.split(COMMANDS[2]), "--json"])
    assert done.exit_code in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert found["port"] == "my_port.py:build"
    (program,) = found["programs"]
    if rows == 256:
        assert done.exit_code == 0, done.stderr
        assert [k["count"] for k in program["kernels"]] == [1]
    else:
        assert done.exit_code == 1, done.stderr
        assert program["refusal"]["memory"] == "vmem"
        assert program["refusal"]["advice"] == "choose smaller blocks in the port"
