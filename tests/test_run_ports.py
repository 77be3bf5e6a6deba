"""`parity run` on ports: a model never seen before, in each form that a port can take, and ports that misbehave."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from parity.compare.result import Result
from parity.errors import UnjudgedError, UsageError
from parity.paths.worker.openers import Openers, Workers
from parity.runs.compare import run
from parity.runs.load import load_ports
from parity.runs.request import Request
from tests.ports import PORT, REFERENCE, write
from tests.test_run import parity


def _say(text: str, done: int | None = None, total: int | None = None) -> None:
    return


def compare(
    reference: str | None,
    candidate: str | None,
    *settings: str,
    model: str | None = None,
    openers: Openers | None = None,
    **options: Any,
) -> Result:
    """Compare two ports, each in a process of its own."""
    openers = openers or Workers()
    ports = load_ports(reference, candidate, model, options.pop("timeout", 30.0), openers)
    ours, theirs = ports.settings([], list(settings))
    return run(Request(model or "model", ours, theirs, ports=ports, **options), _say)


def modules(result: Result) -> set[str]:
    return {d.key.module for d in result.sites if all(d.dtypes) and d.dtypes}


def check(result: Result, name: str) -> Any:
    return next(c for c in result.preflight if c.check == name)


def test_a_port_of_a_model_never_seen_agrees(tmp_path: Path) -> None:
    assert len(PORT.strip().splitlines()) < 60
    result = compare(*write(tmp_path))
    assert (result.verdict, result.notes) == ("pass", ())
    assert {"embed", "blocks.0", "blocks.1", "time"} <= modules(result)
    assert check(result, "candidate port").verdict == "pass"
    assert check(result, "weights").detail == "6 parameters of the same names equal; 24 on one side only"
    embed = next(d for d in result.sites if d.key.site == "embed:out")
    assert embed.shapes == ((1, 16, 6, 8), (1, 16, 6, 8)), "channels are moved to where the reference has them"


def test_a_fault_in_it_is_placed(tmp_path: Path) -> None:
    faulty = (
        PORT.replace('f"layers.{i}", x, temb)', 'f"layers.{i}", x, temb * (1 + i * 0.01))')
        .replace('linear(w, name + ".qkv", h)', 'linear(w, name + ".qkv", h) * (1.01 if name == "layers.1" else 1)')
        .replace("temb * (1 + i * 0.01)", "temb")
    )
    result = compare(*write(tmp_path, faulty))
    assert (result.verdict, result.failed) == ("fail", "structure")
    assert result.origin is not None
    assert (result.origin.key.module, result.origin.birth) == ("blocks.1.qkv", "module")


def test_taps_inside_its_own_jit_are_seen(tmp_path: Path) -> None:
    jitted = PORT.replace(
        "def block(w, name", "import functools\n\n\n@functools.partial(jax.jit, static_argnums=1)\ndef block(w, name"
    )
    result = compare(*write(tmp_path, jitted))
    assert result.verdict == "pass"
    assert {"blocks.0", "blocks.1"} <= modules(result)


def test_a_tap_inside_vmap_is_an_error_that_names_it(tmp_path: Path) -> None:
    mapped = PORT.replace('tap("embed", x @', 'jax.vmap(lambda y: tap("embed", y))(x @')
    with pytest.raises(UsageError, match=r"tap\('embed'\) is inside a jax transformation"):
        compare(*write(tmp_path, mapped))


TORCH = (
    REFERENCE
    + """

class Other(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = TinyDiT()
        self.net.blocks[1].proj.weight.data *= FACTOR


FACTOR = 1.0


def build(case):
    other = Other()
    return Port(module=other, call=lambda i: other.net(**i), runs="RUNS", rename={r"net\\\\.(.+)": r"\\\\1"})
""".replace("\\\\\\\\", "\\\\")
)


@pytest.mark.parametrize("runs", ["torch", "torchax"])
def test_a_torch_module_runs_eagerly_or_compiled(runs: str, tmp_path: Path) -> None:
    text = TORCH.replace("RUNS", runs).replace("\\\\", "\\")
    result = compare(*write(tmp_path, text))
    assert result.verdict == "pass"
    assert "blocks.1" in modules(result)
    broken = compare(*write(tmp_path, text.replace("FACTOR = 1.0", "FACTOR = 1.01"), "broken.py"))
    assert broken.origin is not None
    assert broken.origin.key.module == "blocks.1.proj"


@pytest.mark.parametrize("runs", ["torch", "torchax"])
def test_modules_of_a_torch_port_are_run_on_the_references_inputs(runs: str, tmp_path: Path) -> None:
    text = TORCH.replace("RUNS", runs).replace("\\\\", "\\").replace("FACTOR = 1.0", "FACTOR = 1.01")
    text = text.replace("self.net.blocks[1]", "self.net.blocks[0].mod.weight.data *= 1.01; self.net.blocks[1]")
    result = compare(*write(tmp_path, text), forcing="module", sites="all" if runs == "torch" else "blocks")
    local = {d.key.site: d.local for d in result.sites if d.local is not None and d.local.ratio == d.local.ratio}
    beyond = {site for site, error in local.items() if error.ratio > 3}
    inside = {"blocks.0.mod:out", "blocks.1.proj:out"} if runs == "torch" else set()
    assert beyond == {"blocks.0:out", "blocks.1:out"} | inside, "each by its own error"
    assert "out:out" in local, "an inherited error is no local one"
    assert result.origin is not None
    assert result.origin.key.module == "blocks.0.mod"


def test_modules_of_a_jax_port_cannot_be_run_alone_and_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"port.py:build is a port in JAX: its names are of values, not of modules"):
        compare(*write(tmp_path), forcing="module")


def test_a_reference_alone_is_compiled_by_torchax(tmp_path: Path) -> None:
    reference, _ = write(tmp_path)
    result = compare(reference, None)
    assert result.verdict == "pass"
    assert "blocks.1" in modules(result)


OBJECTS = '''
import jax.numpy as jnp
from model import TinyDiT

from parity.port import Port


class Linear:
    def __init__(self, w, name):
        self.weight, self.bias = w[name + ".weight"], w[name + ".bias"]

    def __call__(self, x):
        return x @ self.weight.T + self.bias


class Net:
    """As Flax NNX has it: callable objects in attributes and lists, without hooks."""

    def __init__(self, w):
        self.time = Linear(w, "time")
        self.rest = [Linear(w, "out")]

    def __call__(self, hidden_states, timestep):
        temb = self.time(timestep[:, None])
        return hidden_states + 0 * self.rest[0](temb)[:, :, None, None]


def build(case):
    w = {k: jnp.asarray(v.numpy()) for k, v in TinyDiT().state_dict().items()}
    return Port(module=Net(w), rename={"rest.0": "other"})
'''


def test_a_tree_of_callable_objects_is_observed_and_left_as_it_was(tmp_path: Path) -> None:
    result = compare(*write(tmp_path, OBJECTS))
    sites = {d.key.site: d for d in result.sites}
    assert sites["time:out"].verdict == "pass"
    assert result.verdict == "fail", "it is another model"
    assert result.origin is not None
    assert result.origin.key.site == ":out"


def test_names_that_meet_nothing_are_unjudged_and_none_at_all_is_said(tmp_path: Path) -> None:
    other = PORT.replace("rename=rename", "rename={}").replace('"embed"', '"e"').replace('tap("time"', 'tap("t"')
    lost = compare(*write(tmp_path, other))
    assert lost.verdict == "unjudged"
    assert "no site in common" in lost.reason
    assert "layers.0" in lost.reason
    without = PORT.replace("import Port, tap", "import Port\n\ntap = lambda name, x: x")
    silent = compare(*write(tmp_path, without, "silent.py"))
    assert silent.verdict == "pass"
    assert "names no site" in silent.notes[0].text


def test_settings_that_it_declares_are_differing_settings_and_must_be_read(tmp_path: Path) -> None:
    paths = write(tmp_path)
    with pytest.raises(UsageError, match=r"does not know the setting 'rope'; it knows attention.softmax_dtype"):
        compare(*paths, "rope=cached")
    with pytest.raises(UnjudgedError, match="never reached the code"):
        compare(*paths, "attention.softmax_dtype=bfloat16", rounds="precision")


NO_KERNEL = "__import__('jax.experimental.pallas').experimental.pallas.pallas_call(print, out_shape=x)"
"""A kernel of a TPU's, which no CPU compiles: JAX says so after the port's own code has returned."""

CLEAN = {"default dtype": torch.get_default_dtype, "precision": torch.get_float32_matmul_precision}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("return Port(call=forward", "return None and Port(call=forward"),
        ("return Port(call=forward", "return 3 and 'a port' or Port(call=forward"),
        ("return Port(call=forward", "return Port(call=None and forward"),
        ('return linear(w, "out", x).reshape(1, *grid, -1)', "return None"),
        ('return linear(w, "out", x).reshape(1, *grid, -1)', "return x.astype(int)"),
        ('return linear(w, "out", x).reshape(1, *grid, -1)', "raise ValueError('no such thing\\nand more')"),
        ('return linear(w, "out", x).reshape(1, *grid, -1)', "return NO_KERNEL(x)"),
        ("def build(case):", "def build(case):\n    raise KeyError('gone')"),
        ("SETTINGS = {", "SETTINGS = {'nothing': 1, "),
        ("import jax\n", "import jax\nraise RuntimeError('at import')\n"),
        ("import jax\n", "import jax\nthis is no python\n"),
        ("import jax\n", "import jax\nimport sys; sys.exit(0)\n"),
        ("def build(", "def built("),
    ],
)
def test_a_port_that_misbehaves_is_told_in_one_line(change: str, message: str, tmp_path: Path) -> None:
    assert change in PORT
    reference, candidate = write(tmp_path, PORT.replace(change, message).replace("NO_KERNEL", NO_KERNEL))
    with pytest.raises(UsageError) as told:
        compare(reference, candidate)
    expected = {
        "return None and Port(call=forward": "build(case) returned None; return a parity.port.Port",
        "return 3 and 'a port' or Port(call=forward": "build(case) returned of type str",
        "return Port(call=None and forward": "`call` is missing",
        "return None": "`call` returned None; return the prediction, a jax array",
        "return x.astype(int)": "`call` returned int32 values",
        "raise ValueError('no such thing\\nand more')": "raised at port.py:35: ValueError: no such thing (PARITY_DEBUG",
        "return NO_KERNEL(x)": "compiling what `call` computes raised at port.py: ValueError: Only interpret mode",
        "def build(case):\n    raise KeyError('gone')": "raised at port.py:39: KeyError: 'gone'",
        "SETTINGS = {'nothing': 1, ": "'nothing', which is no setting",
        "import jax\nraise RuntimeError('at import')\n": "'port.py' raised at port.py:3: RuntimeError: at import",
        "import jax\nthis is no python\n": "raised at port.py:3: SyntaxError",
        "import jax\nimport sys; sys.exit(0)\n": "raised at port.py:3: SystemExit",
        "def built(": "has no 'build'; functions in it: linear, block, forward, built",
    }[message]
    assert expected in str(told.value)
    assert "\n" not in str(told.value)


def test_one_that_hangs_at_import_ends_at_the_limit(tmp_path: Path) -> None:
    hanging = "import time\nwhile True:\n    try:\n        time.sleep(60)\n    except Exception:\n        pass\n" + PORT
    with pytest.raises(UsageError, match=r"did not end within 0.5 s, at port.py:4; .*--path-timeout"):
        compare(*write(tmp_path, hanging), timeout=0.5)


STATE = {
    "import": (
        "import jax\n",
        "import jax, torch\ntorch.set_default_dtype(torch.bfloat16)\ntorch.set_float32_matmul_precision('medium')\n"
        "torch.nn.modules.module.register_module_forward_hook(lambda m, a, o: None)\n"
        "jax.config.update('jax_default_matmul_precision', 'bfloat16')\n",
    ),
    "modes": ("import jax\n", "import jax, torchax\ntorchax.enable_globally()\n"),
}


@pytest.mark.parametrize("name", STATE)
def test_what_it_changes_for_its_process_is_noted(name: str, tmp_path: Path) -> None:
    result = compare(*write(tmp_path, PORT.replace(*STATE[name])))
    assert result.verdict == "pass", "the sides run clean"
    note = check(result, "candidate port")
    assert note.verdict == "explained"
    changes = {
        "import": (
            "torch's default dtype from torch.float32 to torch.bfloat16",
            "_global_forward_hooks",
            "matmul_precision",
        ),
        "modes": ("turned torchax on",),
    }[name]
    assert all(part in note.detail for part in changes)
    assert torch.get_default_dtype() == torch.float32
    assert type(torch.ones(1)) is torch.Tensor


def test_a_call_that_changes_the_process_is_an_error(tmp_path: Path) -> None:
    line = "    grid = x.shape[1:3]"
    changing = PORT.replace(line, "    import torch; torch.set_default_dtype(torch.float64)\n" + line)
    with pytest.raises(UsageError, match="`call` changed torch's default dtype from"):
        compare(*write(tmp_path, changing))
    assert torch.get_default_dtype() == torch.float32


def test_the_template_is_short_runs_as_it_is_and_is_never_overwritten(tmp_path: Path) -> None:
    where = tmp_path / "mine.py"
    assert parity("init", str(where)).code == 0
    assert len(where.read_text().splitlines()) < 60
    done = parity("run", "--json", "--reference-path", f"{where}:reference", "--candidate-path", f"{where}:build")
    assert (done.code, done.json["verdict"], done.json["model"]) == (0, "pass", f"{where}:reference")
    assert {"blocks.0:in.input", "blocks.1:out"} <= {s["site"] for s in done.json["sites"]}
    assert "exists" in parity("init", str(where)).err
    where.write_text(where.read_text().replace("jnp.tanh(x @", "jnp.tanh(1.01 * x @"))
    done = parity("run", "--json", "--reference-path", f"{where}:reference", "--candidate-path", f"{where}:build")
    assert (done.code, done.json["origin"]["site"]) == (1, "blocks.0:out")


def test_loading_a_port_takes_no_module_of_the_other_sides_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    reference, _ = write(tmp_path / "a")
    text = TORCH.replace("RUNS", "torch").replace("\\\\", "\\").replace(REFERENCE, "from model import *\n")
    _, candidate = write(tmp_path / "b", text)
    (tmp_path / "b" / "model.py").write_text(REFERENCE.replace("F.silu(temb)", "F.silu(2 * temb)"))
    assert compare(reference, candidate).verdict == "fail"


def test_parity_port_needs_neither_torch_nor_jax() -> None:
    program = "import sys, parity.port; print(*sorted({'torch', 'jax', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("text", [PORT, OBJECTS], ids=["taps", "objects"])
def test_observing_a_port_changes_no_bit(text: str, tmp_path: Path) -> None:
    import numpy as np

    from parity.hooks.sites import plan_sites
    from parity.paths.plan import Plan
    from parity.runs.sides import ready

    with Workers() as workers:
        ports = load_ports(*write(tmp_path, text), None, 30.0, workers)
        request = Request("model", *ports.settings([], []), ports=ports)
        with ready(request, workers, _say) as pair:
            plan = plan_sites(["", *pair.modules], "all")

            def predicted(observed: Plan) -> Any:
                (step,) = pair.sides.candidate.observe(observed)
                return next(r.value for r in step.records if r.key.site == "loop:noise_pred" and r.key.branch == "")

            np.testing.assert_array_equal(predicted(Plan(sites=plan)), predicted(Plan()))


def test_names_that_meet_nothing_are_listed_and_no_agreement_is_claimed_that_was_not_seen(tmp_path: Path) -> None:
    """A fault in every block, whose taps are misnamed: the first place seen to differ lies behind all of them."""
    text = PORT.replace("# LAYER NORM", "* 1.01").replace(r'rename = {r"layers', r'rename = {r"layer')
    text = text.replace('return linear(w, "out", x)', 'x = tap("out", linear(w, "out", x)); return x')
    result = compare(*write(tmp_path, text))
    assert result.verdict == "fail"
    assert result.origin is not None
    assert result.origin.key.site == "out:out"
    assert "its own inputs were not compared, time output (step 0, cond) before it matches" in result.reason
    assert not result.inputs_compared
    (note,) = (n.text for n in result.notes if "meet no module" in n.text)
    assert note.startswith("6 of the port's 9 names meet no module of the reference: 'layers.0' (nearest: 'blocks.0')")
