"""`parity compile`: its document, what it reads in a program, the program it compiles, and the compiler itself."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from parity.commands.compile import listing
from parity.errors import UsageError
from parity.tpu.child import kernels, products
from parity.tpu.compiler import Answer, Request, topology
from tests.paths.sides import side, tiny
from tests.support.cli import cli

REQUEST = Request(model="tiny", topology="v6e:2x2")
FACTS: Any = {"settings": {}, "versions": {"libtpu": "0.0.42.1"}, "devices": 4, "kind": "TPU v6 lite"}
MEMORY = {"arguments": 6 << 20, "temporaries": 3 << 20, "output": 2 << 20, "code": 1 << 20, "aliased": 1 << 20}
HBM = "RESOURCE_EXHAUSTED: Ran out of memory on HBM, HLO temporaries (97.32G) exceed (31.25G)."


def compile(*words: str) -> tuple[int, dict[str, Any], str]:
    done = cli("compile", "--topology", "v6e:2x4", "--format", "json", *words)
    return done.code, json.loads(done.out or "{}"), done.err


def test_a_program_that_compiles_has_memory_and_products() -> None:
    found = listing(REQUEST, Answer(refusal="", memory=MEMORY, products=(("proj", "bf16, one pass", 2),), **FACTS))
    assert found.json()["compiles"] is True
    assert found.json()["memory"] == {**MEMORY, "total": 11 << 20, "limit": 32 << 30}
    assert found.json()["products"] == [{"module": "proj", "precision": "bf16, one pass", "count": 2}]


def test_a_refusal_is_told_in_the_compiler_s_words() -> None:
    found = listing(REQUEST, Answer(refusal=HBM, **FACTS))
    assert (found.json()["compiles"], found.json()["refusal"]) == (False, HBM)
    assert "97.32G" in repr(found.sections())


@pytest.mark.parametrize(
    ("name", "devices"), [("v6e:2x2", 4), ("v6e:2x4", 8), ("v5p:2x2x2", 8), ("v4:2x2x1", 8), ("tpu7x:2x2x1", 8)]
)
def test_topologies(name: str, devices: int) -> None:
    assert topology(name)[0] == devices


@pytest.mark.parametrize("name", ["v6e", "v6:2x2", "v6e:2x2x1", "v5p:2x2", "v6e:1x1", "v6e:0x2", "x" * 500])
def test_what_is_no_topology_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"--topology .*such as v"):
        topology(name)


def test_a_candidate_of_torch_s_is_refused() -> None:
    code, _, err = compile("--candidate", "device=cpu")
    assert (code, "device=... is torch's" in err) == (2, True)


def test_products_by_module_and_precision() -> None:
    """relu(x a) in float32 at the highest precision, times b in bfloat16, as libtpu 0.0.42.1 wrote it."""
    text = (Path(__file__).parent / "plain.hlo").read_text("utf-8")
    modules = frozenset({"", "blocks.0", "blocks.0.up", "blocks.0.down"})
    six, one, rounded = "float32, six passes", "bf16, one pass", "float32 rounded to bfloat16, one pass"
    assert products(text, modules) == {("blocks.*.up", six): 1, ("blocks.*.down", one): 1}
    high = text.replace("{highest,highest}", "{high,high}")
    assert products(high, modules)["blocks.*.up", "float32, three passes"] == 1
    assert products(text.replace("{highest,highest}", "{default,default}"), modules)["blocks.*.up", rounded] == 1
    call = '  %scale.2 = (f32[8]{0}) custom-call(%a), custom_call_target="tpu_custom_call", backend={\n'
    assert kernels(text + 2 * call) == {"scale": 2}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's configs with one block, without a weight or a tokenizer."""
    folder = tmp_path_factory.mktemp("small")
    for part in ("transformer", "vae", "scheduler", "guider", "."):
        (folder / part).mkdir(exist_ok=True)
        for file in (tiny().case.folder / part).glob("*.json"):
            shutil.copy(file, folder / part)
    path = folder / "transformer" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_layers": 1, "num_refiner_layers": 1}))
    return folder


@pytest.mark.slow
def test_its_program_is_that_of_the_candidate_with_weights() -> None:
    import jax
    import torchax

    from parity.settings import parse
    from parity.tpu.abstract import abstract_candidate

    family, case, devices = tiny().family, tiny().case, jax.devices("cpu")
    found = abstract_candidate(family, case, parse("torchax"), devices)
    backend: Any = side("torchax").backend
    with backend.scope():
        given = {k: None if x is None else jax.numpy.zeros(x.shape, x.dtype) for k, x in found.arguments.items()}
        _, frames = backend.batch(backend.groups[0])
        placed = backend.placed({k: None if x is None else torchax.interop.torch_view(x) for k, x in given.items()})
        forward = backend.forward(("",), backend.rules["cond"], None)
        other, _ = backend.programs.lowered(forward, backend.params, placed, frames, None)
    assert found.lowered().as_text() == other.as_text()
    with pytest.raises(UsageError, match="jit=false"):
        abstract_candidate(family, case, parse("torchax", ["jit=false"]), devices)


needs_the_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu, the TPU compiler, is not installed (extra tpu)"
)


@pytest.mark.slow
@needs_the_compiler
def test_the_compiler_compiles_and_refuses(small: Path) -> None:
    code, found, err = compile("--model", str(small), "--candidate", "mesh=dp=1,sp=2,tp=2")
    assert code == 0, err
    assert 0 < found["memory"]["temporaries"] < found["memory"]["total"] < found["memory"]["limit"] == 32 << 30
    assert (found["devices"], found["settings"]) == (4, {"mesh": "dp=1,sp=2,tp=2"})
    assert {p["module"] for p in found["products"]} >= {"transformer_blocks.*.attn.to_q", "proj_out"}
    assert {p["precision"] for p in found["products"]} == {"float32, six passes"}
    code, _, err = compile("--model", str(small), "--candidate", "mesh=dp=1,sp=4,tp=4")
    assert (code, "needs 16 devices, and v6e:2x4 has 8" in err) == (2, True)


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
    specs = [block, pl.BlockSpec((1, 128), lambda i: (0, 0))]
    out = jax.ShapeDtypeStruct(flat.shape, flat.dtype)
    scaled = pl.pallas_call(scale, grid=(rows // ROWS,), in_specs=specs, out_specs=block, out_shape=out)(
        flat, w["scale"])
    return scaled.reshape(-1)[: x.size].reshape(x.shape)


def build(case):
    return Port(call=call, weights={"scale": jnp.ones((1, 128))})
"""


@pytest.mark.slow
@needs_the_compiler
@pytest.mark.parametrize("rows", [256, 1 << 18])
def test_a_port_s_kernel_compiles_or_is_refused(rows: int, tmp_path: Path) -> None:
    (tmp_path / "my_port.py").write_text(KERNEL.replace("ROWS", str(rows)))
    code, found, err = compile("--port", f"{tmp_path}/my_port.py:build")
    assert code == int(rows > 256), err
    if code:
        assert "vmem" in found["refusal"]
    else:
        assert [k["count"] for k in found["kernels"]] == [1]


@pytest.mark.slow
@needs_the_compiler
def test_a_port_whose_import_does_not_end_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_port.py").write_text("import time\n\ntime.sleep(600)\n")
    monkeypatch.setenv("PARITY_PORT_TIMEOUT", "1")
    code, _, err = compile("--port", f"{tmp_path}/my_port.py:build")
    assert (code, "importing 'my_port.py' did not end within 1 s, at my_port.py:3" in err) == (2, True), err
