"""Ports of models that parity has never seen, in each form that a port can take; and ports that misbehave."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from parity.compare.independent import differences
from parity.compare.reason import inputs_compared
from parity.compare.result import Result
from parity.errors import InconclusiveError, UsageError
from parity.hooks.sites import plan_sites
from parity.paths.plan import Plan
from parity.paths.worker import process
from parity.paths.worker.process import Workers
from parity.runs.request import Request, load_ports
from parity.runs.sides import ready
from tests.support import linen_port, nnx_port
from tests.support.cli import cli
from tests.support.lab import quiet
from tests.support.ports import check, compare, inside, modules, origin
from tests.support.tiny_dit import PORT, REFERENCE, write

pytest.importorskip("torchax")


def edited(text: str, *changes: tuple[str, str]) -> str:
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    return text


QKV = 'linear(w, name + ".qkv", h)'
OUT = 'return linear(w, "out", x).reshape(1, *grid, -1)'
TORCH = (
    REFERENCE
    + r"""

class Other(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = TinyDiT()


def build(case):
    other = Other()
    other.net.blocks[1].proj.weight.data *= FACTOR
    return Port(module=other, call=lambda i: other.net(**i), runs="RUNS", rename={r"net\.(.+)": r"\1"})
"""
)
WRITES = edited(
    TORCH,
    ("FACTOR", "1.0"),
    ("RUNS", "torch"),
    ("other.net(**i)", "(other.net(**i), i['hidden_states'].mul_(0.5))[0]"),
)
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
JITTED = edited(
    PORT,
    ("def block(w, name", "import functools\n\n\n@functools.partial(jax.jit, static_argnums=1)\ndef block(w, name"),
)
MISNAMED = edited(
    PORT,
    ("# LAYER NORM", "* 1.01"),
    (r'rename = {r"layers', r'rename = {r"layer'),
    ('return linear(w, "out", x)', 'x = tap("out", linear(w, "out", x)); return x'),
)
LINEN_FAULT = (
    "    net, weights =",
    '    layers["lin"]["bias"] = layers["lin"]["bias"].at[1].add(0.01)\n    net, weights =',
)

# --- verdicts


@pytest.mark.parametrize(
    ("text", "site"),
    [
        (PORT, None),
        (edited(PORT, (QKV, f'{QKV} * (1.01 if name == "layers.1" else 1)')), "blocks.1.qkv:out"),
        pytest.param(JITTED, None, marks=pytest.mark.slow),
        (edited(TORCH, ("FACTOR", "1.0"), ("RUNS", "torch")), None),
        (edited(TORCH, ("FACTOR", "1.01"), ("RUNS", "torch")), "blocks.1.proj:out"),
        (WRITES, "loop:latents.after"),
        pytest.param(edited(TORCH, ("FACTOR", "1.0"), ("RUNS", "torchax")), None, marks=pytest.mark.slow),
        pytest.param(
            edited(TORCH, ("FACTOR", "1.01"), ("RUNS", "torchax")), "blocks.1.proj:out", marks=pytest.mark.slow
        ),
        (OBJECTS, ":out"),
    ],
    ids=[
        "jax",
        "jax fault",
        "own jit",
        "torch",
        "torch fault",
        "writes to latents",
        "torchax",
        "torchax fault",
        "objects",
    ],
)
def test_port_verdict(text: str, site: str | None, tmp_path: Path) -> None:
    result = compare(*write(tmp_path, text))
    assert origin(result) == ("pass" if site is None else "fail", site), result.reason
    if text != OBJECTS:
        assert {"blocks.0", "blocks.1"} <= modules(result)


@pytest.mark.parametrize(
    ("candidate", "settings", "site"),
    [
        ((nnx_port, nnx_port.PORT), ("attention.mask=exact",), None),
        pytest.param((nnx_port, nnx_port.PORT), (), "blocks.0:in.keep", marks=pytest.mark.slow),
        pytest.param((linen_port, linen_port.PORT), (), None, marks=pytest.mark.slow),
        ((linen_port, edited(linen_port.PORT, LINEN_FAULT)), (), "blocks.1.lin:out"),
    ],
    ids=["nnx", "nnx without its mask", "linen", "linen fault"],
)
def test_flax_port_is_observed_by_its_own_names(
    candidate: tuple[object, str], settings: tuple[str, ...], site: str | None, tmp_path: Path
) -> None:
    model, text = candidate
    result = inside(*model.write(tmp_path, text), *settings, sites="all")  # type: ignore[attr-defined]
    assert origin(result) == ("pass" if site is None else "fail", site), result.reason
    layers = {f"blocks.{i}{at}" for i in range(3) for at in ("", ".norm")}
    assert layers <= modules(result)
    if model is nnx_port:  # in torch's names and layout
        assert check(result, "weights").detail == "24 equal; 1 parameters on one side only: 'drop.rngs.count'"
    if model is linen_port:  # its layers are one stack
        assert ("'blocks.1.lin.bias'" in check(result, "weights").detail) == (site is not None)


HALVES = (
    "leaf.set_value(value.T",
    """if name.startswith("blocks.0.qkv"):  # q and k turned round within each head: their products stay
                turned = value.reshape(3, 4, 8, -1)
                value = turned.at[:2].set(turned[:2, :, ::-1]).reshape(value.shape)
            leaf.set_value(value.T""",
)
GATE = ("x + self.proj(", "x + 1.01 * self.proj(")
OTHERS = ("value = jnp.asarray(held[name]", 'value = jnp.asarray(held[name.replace("blocks.2.proj", "blocks.1.proj")]')


@pytest.mark.parametrize(
    ("edits", "reason", "listed"),
    [
        pytest.param((HALVES,), "agree", [], marks=pytest.mark.slow),
        pytest.param((HALVES, GATE), "blocks.0 output", ["blocks.*"], marks=pytest.mark.slow),
        (
            (OTHERS,),
            "2 of 24 parameters hold others of the reference's, 'blocks.2.proj.bias' those of 'blocks.1",
            ["the weights"],
        ),
    ],
    ids=["in another order", "in another order beside a fault", "another's"],
)
def test_flax_parameters_are_compared_with_torch_s(
    edits: tuple[tuple[str, str], ...], reason: str, listed: list[str], tmp_path: Path
) -> None:
    paths = nnx_port.write(tmp_path, edited(nnx_port.PORT, *edits))
    result = inside(*paths, "attention.mask=exact", sites="all")
    assert reason in result.reason
    assert [d.place for d in differences(result)] == listed


@pytest.mark.slow
def test_a_mask_pairs_the_rows_under_the_name_that_a_port_gives_it(tmp_path: Path) -> None:
    """The port has zeros where text is padded, and calls the mask otherwise."""
    renamed = ('rename={r"', 'rename={r"layers\\.(\\d+):in\\.valid": r"blocks.\\1:in.attention_mask", r"')
    changes = [
        ("x: jax.Array, keep: jax.Array | None) -> jax.Array:", "x, valid):\n        keep = valid"),
        ("self.text(encoder_hidden_states)]", "self.text(encoder_hidden_states) * keep[..., None]]"),
    ]
    paths = nnx_port.write(tmp_path, edited(nnx_port.PORT, *changes, renamed))
    named = ("def forward(self, x, keep):", "def forward(self, x, attention_mask):\n        keep = attention_mask")
    (tmp_path / "model.py").write_text(edited(nnx_port.REFERENCE, named))
    result = inside(*paths, "attention.mask=exact")
    assert result.verdict == "pass", result.reason
    assert {"blocks.0", "blocks.2"} <= modules(result)


@pytest.mark.slow
def test_modules_below_one_that_is_called_by_other_methods_are_observed(tmp_path: Path) -> None:
    other = ("def __call__(self, x: jax.Array, keep", "def run(self, x: jax.Array, keep")
    text = edited(nnx_port.PORT, other, ("layer(x, keep)", "layer.run(x, keep)"), ("epsilon=1e-5", "epsilon=1e-2"))
    result = inside(*nnx_port.write(tmp_path, text), "attention.mask=exact", sites="all")
    assert origin(result) == ("fail", "blocks.0.norm:out")


SUPER = """
class Wide(Block):
    def __call__(self, x, keep):
        return super().__call__(x, keep)


class Net("""


@pytest.mark.slow
def test_a_call_of_a_base_s_is_none_of_its_own(tmp_path: Path) -> None:
    text = edited(
        nnx_port.PORT, ("class Net(", SUPER), ("Block(width, rngs) for _", "(Wide if i else Block)(width, rngs) for i")
    )
    result = inside(*nnx_port.write(tmp_path, text), "attention.mask=exact", sites="all")
    assert result.verdict == "pass", result.reason
    assert "of the reference, 0 of the candidate" in result.notes[0].text


TOP = """
class Top(nnx.Module):
    def __init__(self, net):
        self.net = net

    def __call__(self):
        raise NotImplementedError

    def run(self, inputs):
        return self.net(**inputs)


def build("""


@pytest.mark.slow
def test_modules_below_a_top_one_that_is_never_called_are_observed(tmp_path: Path) -> None:
    text = edited(
        nnx_port.PORT,
        ("epsilon=1e-5", "epsilon=1e-2"),
        ("def build(", TOP),
        ("    graph,", "    net = Top(net)\n    graph,"),
        ("(graph, state)(**inputs)", "(graph, state).run(inputs)"),
        ('.replace("layers"', '.removeprefix("net.").replace("layers"'),
        ('{r"layers', '{r"net\\.(patch|text|out)": r"\\1", r"net\\.layers'),
    )
    result = inside(*nnx_port.write(tmp_path, text), "attention.mask=exact", sites="all")
    assert origin(result) == ("fail", "blocks.0.norm:out")


def test_an_argument_that_hands_on_what_differs_in_an_inner_module_is_no_second_difference(tmp_path: Path) -> None:
    """The block's input is compared, and the module that makes it is named one level deeper than any that is."""
    wrong = 'tap("time.0", 1.01 * linear(w, "time.0", inputs["timestep"][:, None]))'
    port = edited(PORT, ('tap("time", linear(w, "time", inputs["timestep"][:, None]))', wrong))
    paths = write(tmp_path, port)
    inner = ("torch.nn.Linear(1, width)", "torch.nn.Sequential(torch.nn.Linear(1, width))")
    (tmp_path / "model.py").write_text(edited(REFERENCE, inner))
    result = inside(*paths)
    assert origin(result) == ("fail", "time.0:out")
    assert [d.place for d in differences(result)] == ["time.0"]


def test_a_fault_of_a_block_that_gives_a_carry_is_one_difference(tmp_path: Path) -> None:
    """Flax's scan wants `(x, None)` of it, torch's block gives `x`."""
    paths = linen_port.write(tmp_path, edited(linen_port.PORT, ("return x + jnp.tanh(", "return x + 1.01 * jnp.tanh(")))
    result = inside(*paths)
    assert [d.place for d in differences(result)] == ["blocks.*"]
    assert not result.causes


def test_port_that_agrees_says_what_was_compared(tmp_path: Path) -> None:
    result = inside(*write(tmp_path))
    note, attention = result.notes
    assert attention.text == "attention of the reference: torch's own, 1 call each at blocks.0 to blocks.1 (2 modules)"
    assert (result.verdict, note.text.partition(";")[0]) == ("pass", "4 of the reference's 7 modules were compared")
    assert check(result, "candidate port").verdict == "pass"
    assert check(result, "weights").detail == "18 parameters equal"
    embed = next(d for d in result.sites if d.key.site == "embed:out")
    assert embed.shapes == ((1, 16, 6, 8), (1, 16, 6, 8)), "channels are moved to where the reference has them"


def test_reference_alone_is_compiled_by_torchax(tmp_path: Path) -> None:
    result = inside(write(tmp_path)[0], None)
    assert result.verdict == "pass"
    assert "blocks.1" in modules(result)


WITHIN = """

def tap(name, x):
    return named(name, x) if name.endswith(".qkv") else x
"""


def test_a_port_may_name_what_attention_is_given(tmp_path: Path) -> None:
    before = "    a = jax.nn.softmax("
    text = edited(PORT, (before, f'    q = tap(name + ".attention:in.query", q)\n{before}'))
    result = inside(*write(tmp_path, text), sites="all")
    assert result.verdict == "pass", result.reason
    assert not any("meet no module" in note.text for note in result.notes)


@pytest.mark.parametrize(
    ("text", "verdict", "said"),
    [
        (
            edited(PORT, ("rename=rename", "rename={}"), ('"embed"', '"e"'), ('tap("time"', 'tap("t"')),
            "inconclusive",
            "no site in common",
        ),
        (
            edited(
                TORCH,
                ("self.embed(h", "self.embed.forward(h"),
                ("self.time(t", "self.time.forward(t"),
                ("block(x, temb)", "block.forward(x, temb)"),
                ("self.out(x)", "self.out.forward(x)"),
                ("FACTOR", "1.0"),
                ("RUNS", "torch"),
            ),
            "inconclusive",
            "no site in common: it has embed, time, blocks.0, ",
        ),
        (edited(PORT, ("import Port, tap", "import Port\n\ntap = lambda name, x: x")), "pass", "names no site"),
        pytest.param(
            edited(PORT, ("import Port, tap", f"import Port\nfrom parity.port import tap as named\n{WITHIN}")),
            "pass",
            "blocks.0.qkv and 1 more named by the port and not observed (--sites all observes them): only noise_pred",
            marks=pytest.mark.slow,
        ),
        (MISNAMED, "fail", "6 of the port's 9 names meet no module of the reference"),
    ],
    ids=["no names", "no calls", "no taps", "names within blocks", "some names"],
)
def test_port_whose_names_meet_nothing_is_told_so(text: str, verdict: str, said: str, tmp_path: Path) -> None:
    result = inside(*write(tmp_path, text))
    assert result.verdict == verdict
    assert said in " ".join([result.reason, *(n.text for n in result.notes)])
    if verdict == "fail":
        assert "its own inputs were not compared" in result.reason
        assert not inputs_compared(result.why)


def test_a_fault_is_placed_at_what_a_port_names_though_it_is_not_observed(tmp_path: Path) -> None:
    imports = ("import Port, tap", f"import Port\nfrom parity.port import tap as named\n{WITHIN}")
    fault = ('linear(w, name + ".qkv", h)', '1.01 * linear(w, name + ".qkv", h)')
    result = inside(*write(tmp_path, edited(PORT, imports, fault)))
    assert origin(result) == ("fail", "blocks.0.qkv:out")
    assert [d.place for d in differences(result)] == ["blocks.0.qkv"]


@pytest.mark.parametrize("text", [PORT, pytest.param(OBJECTS, marks=pytest.mark.slow)], ids=["taps", "objects"])
def test_observing_a_port_changes_no_bit(text: str, tmp_path: Path) -> None:
    with Workers() as workers:
        ports = load_ports(*write(tmp_path, text), None, workers)
        request = Request("model", *ports.settings([], []), ports=ports)
        with ready(request, workers, quiet) as pair:
            plan = plan_sites(["", *pair.modules], "all")

            def predicted(observed: Plan) -> object:
                (step,) = pair.sides.candidate.observe(observed)
                return next(r.value for r in step.records if r.key.site == "loop:noise_pred" and r.key.branch == "")

            np.testing.assert_array_equal(predicted(Plan(sites=plan)), predicted(Plan()))


COMPILED = edited(
    TORCH,
    ("    other.net.blocks[1].proj.weight.data *= FACTOR\n", "    block = other.net.blocks[1]\n    PATCH\n"),
    ('runs="RUNS"', 'runs="torch"'),
)
RIGHT = 'block.compile(backend="eager")'
WRONG = "block.compile(backend=lambda gm, given: lambda *a: tuple(1.01 * x for x in gm(*a)))"


@pytest.mark.parametrize(
    ("patch", "verdict", "first"),
    [
        pytest.param(RIGHT, "pass", "", marks=pytest.mark.slow),
        pytest.param(
            f"block.proj.register_forward_hook(lambda m, i, y: 1.01 * y); {RIGHT}", "fail", "blocks.1.proj:out",
            marks=pytest.mark.slow,
        ),
        (WRONG, "fail", "loop:noise_pred"),
    ],
    ids=["right", "its own fault", "the compiler's fault"],
)  # fmt: skip
def test_a_compiled_torch_port_is_judged_as_it_runs(
    patch: str, verdict: str, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(process.LAUNCHERS, "candidate")  # the tests' processes have imported torchax already
    result = compare(*write(tmp_path, COMPILED.replace("PATCH", patch)))
    assert result.verdict == verdict, result.reason
    assert first == (origin(result)[1] if verdict == "fail" else "")


RENAMED = """
import model
from parity.port import Port


class Net(model.TinyDiT):
    def __init__(self):
        super().__init__()
        self.layers = self.blocks
        del self.blocks

    def forward(self, hidden_states, timestep):
        x = self.embed(hidden_states)
        grid = x.shape[2:]
        x, temb = x.flatten(2).transpose(1, 2), self.time(timestep[:, None])
        for block in self.layers:
            x = block(x, temb)
        return self.out(x).transpose(1, 2).unflatten(2, grid)


def build(case):
    return Port(module=Net(), runs="torch", rename={r"layers\\.(\\d+)(\\..+)?": r"blocks.\\1\\2"})
"""


def test_weights_of_a_torch_port_are_compared_under_the_names_it_is_given(tmp_path: Path) -> None:
    result = inside(*write(tmp_path, RENAMED))
    weights = check(result, "weights")
    assert (result.verdict, weights.verdict, weights.detail) == ("pass", "pass", "18 parameters equal")


OWN_FLEX = """
from torch.nn import functional as F

import model
from own import attend
from parity.port import Port


class Block(model.Block):
    def forward(self, x, temb):
        shift, scale, gate = self.mod(F.silu(temb))[:, None].chunk(3, dim=-1)
        h = F.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(h).chunk(3, dim=-1))
        return x + gate * self.proj(attend(q, k, v).transpose(1, 2).flatten(2))


def build(case):
    net = model.TinyDiT()
    for block in net.blocks:
        block.__class__ = Block
    return Port(module=net, runs="torch")
"""


OWN = """
from torch.nn.attention import flex_attention as home


def flex(q, k, v):
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


vars(flex)["_torchdynamo_orig_callable"] = home.flex_attention  # as torch.compile leaves it


def attend(*tensors):
    return flex(*tensors)
"""


def test_flex_attention_in_a_file_of_the_port_s_own_is_seen(tmp_path: Path) -> None:
    texts = write(tmp_path, OWN_FLEX)
    (tmp_path / "own.py").write_text(OWN)
    result = inside(*texts)
    assert result.verdict == "pass", result.reason
    assert "blocks.0.attention:out" in {d.key.site for d in result.sites}


def test_a_port_in_training_mode_runs_as_it_is(tmp_path: Path) -> None:
    text = edited(
        TORCH,
        ("FACTOR", "1.0"),
        ("RUNS", "torch"),
        (
            "self.net = TinyDiT()",
            "self.net = TinyDiT(); self.net.out = torch.nn.Sequential(self.net.out, torch.nn.Dropout(0.1))",
        ),
    )
    result = inside(*write(tmp_path, text))
    assert result.verdict == "fail", result.reason
    (said,) = [check.detail for check in result.preflight if check.check == "training mode"]
    assert "net.out.1 drops values at random: call its .eval()" in said


def test_a_kernel_that_nothing_calls_is_no_pass(tmp_path: Path) -> None:
    kernel = "\n\nF.glu = lambda x: x  # of a model that has none\n"
    reference, candidate = write(tmp_path, edited(TORCH, ("FACTOR", "1.0"), ("RUNS", "torch")) + kernel)
    result = compare(reference, candidate)
    assert (result.verdict, "torch.nn.functional.glu and was called 0 times" in result.reason) == ("inconclusive", True)
    cli("record", tmp_path / "golden", "--reference-port", reference, code=0)
    done = cli("diff", tmp_path / "golden", candidate, "--reference-port", reference, code=125)
    assert "torch.nn.functional.glu and was called 0 times" in done.out


# --- recordings, explanations, searches


def test_goldens_of_ports_are_diffed(tmp_path: Path) -> None:
    reference, candidate = write(tmp_path)
    _, broken = write(tmp_path, edited(PORT, (QKV, f'{QKV} * (1.01 if "1" in name else 1)')), "broken.py")
    where = {name: tmp_path / name for name in ("reference", "candidate", "broken")}
    cli("record", where["reference"], "--reference-port", reference, "--sites", "all", code=0)
    for name, port in (("candidate", candidate), ("broken", broken)):
        words = ("--side", "candidate", "--reference-port", reference, "--port", port, "--sites", "all")
        cli("record", where[name], *words, code=0)
    same = cli("diff", "--format", "json", where["reference"], where["candidate"], code=0)
    assert "blocks.1.qkv:out" in {s["site"] for s in same.json["sites"]}
    other = cli("diff", "--format", "json", where["reference"], where["broken"], code=1)
    assert other.json["origin"]["site"] == "blocks.1.qkv:out"
    alone = cli("record", tmp_path / "golden", "--port", candidate, code=2)
    assert "--side candidate" in alone.said


@pytest.mark.slow
def test_setting_of_a_port_is_the_cause(tmp_path: Path) -> None:
    reference, candidate = nnx_port.write(tmp_path)
    paths = ("--reference-port", reference, "--port", candidate)
    cli("run", "--format", "json", *paths, "--out", tmp_path / "run", code=1)
    cause = cli("explain", "--format", "json", tmp_path / "run", *paths, code=1).json["causes"][0]
    assert (cause["setting"], cause["reference"], cause["candidate"]) == ("attention.mask", "exact", "none")
    assert cause["share"] == pytest.approx(1.0, abs=1e-3)
    found = cli("bisect", "--settings", "--format", "json", *paths, code=0)
    assert [c["setting"] for c in found.json["culprits"]] == ["attention.mask"]


@pytest.mark.slow
def test_fault_that_is_no_setting_is_measured(tmp_path: Path) -> None:
    reference, candidate = write(tmp_path, edited(PORT, (QKV, f'{QKV} * (1.25 if "1" in name else 1)')))
    paths = ("--reference-port", reference, "--port", candidate)
    cli("run", "--format", "json", *paths, "--sites", "all", "--out", tmp_path / "run", code=1)
    told = cli("explain", "--format", "json", tmp_path / "run", *paths, code=1)
    assert told.json["origin"]["site"] == "blocks.1.qkv:out"
    assert [c["cause"] for c in told.json["causes"]] == ["blocks.1.qkv: the candidate's is the reference's times 1.25"]
    port = tmp_path / "port.py"
    port.write_text(port.read_text() + "# mended\n")
    changed = cli("explain", tmp_path / "run", *paths, code=2)
    assert "is not the port that was run" in changed.said


# --- settings and state

CACHED = "deepcache:0,2,2"
CACHE_REFERENCE = edited(
    REFERENCE,
    (
        "def forward(self, hidden_states, timestep):",
        "def forward(\n        self, hidden_states, timestep, kept=None, keeps=False\n    ):",
    ),
    (
        "        for block in self.blocks:",
        "        before = x\n        for block in self.blocks if kept is None else ():",
    ),
    (
        "        return self.out(x).transpose(1, 2).unflatten(2, grid)",
        "        kept = (x - before,) if kept is None else kept\n"
        "        out = self.out(before + kept[0]).transpose(1, 2).unflatten(2, grid)\n"
        "        return (out, kept) if keeps else out",
    ),
    (
        "def reference(case):\n    return Port(module=TinyDiT(), inputs=inputs())",
        'SETTINGS = {"cache": "CACHE"}\n\n\ndef reference(case):\n'
        '    net, keeps = TinyDiT(), case.settings["cache"] != "off"\n'
        "    call = lambda inputs, kept=None: net(**inputs, kept=kept, keeps=keeps)\n"
        "    return Port(module=net, call=call, inputs=inputs())",
    ),
    ("torch.tensor([0.7])", "torch.linspace(0.9, 0.3, 3)"),
)
CACHE_PORT = edited(
    PORT,
    ("def forward(w, inputs):", "def forward(w, inputs, kept=None, keeps=False):"),
    ("    for i in range(2):", "    before = x\n    for i in range(2 if kept is None else 0):"),
    (
        OUT,
        "kept = (x - before,) if kept is None else kept\n"
        '    out = linear(w, "out", before + kept[0]).reshape(1, *grid, -1)\n'
        "    return (out, kept) if keeps else out",
    ),
    ("SETTINGS = {", 'SETTINGS = {"cache": "CACHE", '),
    ("call=forward", 'call=partial(forward, keeps=True) if case.settings["cache"] != "off" else forward'),
    ("import jax\n", "from functools import partial\n\nimport jax\n"),
)


def with_cache(folder: Path, ours: str, theirs: str, port: str = CACHE_PORT) -> Result:
    (folder / "model.py").write_text(CACHE_REFERENCE.replace("CACHE", ours))
    (folder / "port.py").write_text(port.replace("CACHE", theirs))
    return inside(f"{folder / 'model.py'}:reference", f"{folder / 'port.py'}:build", steps=3)


@pytest.mark.slow
def test_feature_cache_of_both_sides_skips_at_the_same_steps(tmp_path: Path) -> None:
    same = with_cache(tmp_path, CACHED, CACHED)
    assert same.verdict == "pass", same.reason
    assert {d.key.step for d in same.sites if d.key.module == "blocks.0"} == {0, 2}


def test_feature_cache_of_one_side_differs_where_it_skips(tmp_path: Path) -> None:
    other = with_cache(tmp_path, "off", CACHED)
    assert ([d.setting for d in other.differing_settings], other.verdict) == (["cache"], "fail")
    assert other.steps[0].noise_pred.ratio < 3 < other.steps[1].noise_pred.ratio


def test_feature_cache_that_is_not_returned_is_an_error(tmp_path: Path) -> None:
    text = edited(CACHE_PORT, ("return (out, kept) if keeps else out", "return out"))
    with pytest.raises(UsageError, match=r"with a cache `call\(..., kept\)` returns \(prediction, kept\)"):
        with_cache(tmp_path, "off", CACHED, text)


def test_settings_of_a_port_must_be_declared_and_read(tmp_path: Path) -> None:
    paths = write(tmp_path)
    with pytest.raises(UsageError, match=r"does not know the setting 'rope'; it knows attention.softmax_dtype"):
        compare(*paths, "rope=cached")
    with pytest.raises(InconclusiveError, match="never reached the code"):
        compare(*paths, "attention.softmax_dtype=bfloat16", checks="precision")


@pytest.mark.parametrize(
    ("lines", "noted"),
    [
        (
            "import jax, torch\ntorch.set_default_dtype(torch.bfloat16)\ntorch.set_float32_matmul_precision('medium')\n"
            "torch.nn.modules.module.register_module_forward_hook(lambda m, a, o: None)\n",
            ("torch's default dtype from torch.float32 to torch.bfloat16", "_global_forward_hooks"),
        ),
        pytest.param(
            "import jax, torchax\ntorchax.enable_globally()\n", ("turned torchax on",), marks=pytest.mark.slow
        ),
        pytest.param(
            "import jax, torch\ntorch.autocast('cpu', torch.bfloat16).__enter__()\n",
            ("torch's autocast on cpu from False to True",),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["import", "modes", "autocast"],
)
def test_what_a_port_changes_for_its_process_is_noted(lines: str, noted: tuple[str, ...], tmp_path: Path) -> None:
    result = compare(*write(tmp_path, edited(PORT, ("import jax\n", lines))))
    assert result.verdict == "pass", "the sides run clean"
    found = check(result, "candidate port")
    assert found.verdict == "explained"
    assert all(part in found.detail for part in noted)
    assert torch.get_default_dtype() == torch.float32


def test_port_takes_no_module_of_the_other_sides_folder(tmp_path: Path) -> None:
    for side in ("a", "b"):
        (tmp_path / side).mkdir()
    reference, _ = write(tmp_path / "a")
    text = edited(TORCH, ("FACTOR", "1.0"), ("RUNS", "torch"), (REFERENCE, "from model import *\n"))
    _, candidate = write(tmp_path / "b", text)
    (tmp_path / "b" / "model.py").write_text(edited(REFERENCE, ("F.silu(temb)", "F.silu(2 * temb)")))
    assert compare(reference, candidate).verdict == "fail"


FEW = [*((f'tap(name + ".{name}", ', "(") for name in ("qkv", "proj")), ('    tap(name + ":in.x", x)\n', ""),
       ('    tap(name + ":in.temb", temb)\n', "")]  # fmt: skip
"""Of a port that names the outputs of its blocks alone."""


def test_a_block_that_shares_what_no_port_hands_out_with_another_has_a_fault_of_its_own(tmp_path: Path) -> None:
    """The time embedding may be why both differ, and one of them may as well."""
    fault = ("return tap(name, x + gate", "return tap(name, 1.01 * x + gate")
    time = (
        'tap("time", linear(w, "time", inputs["timestep"][:, None]))',
        'linear(w, "time", inputs["timestep"][:, None])',
    )
    result = inside(*write(tmp_path, edited(PORT, *FEW, fault, time)))
    assert [d.place for d in differences(result)] == ["blocks.*"]


STREAMS = """
import jax
import jax.numpy as jnp
import torch

from parity.port import Port, tap


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x, y):
        return x + torch.tanh(self.a(x + y)), y + torch.tanh(self.b(x - y))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))

    def forward(self, hidden_states):
        x, y = hidden_states, 0.5 * hidden_states
        for block in self.blocks:
            x, y = block(x, y)
        return x


def reference(case):
    return Port(module=Net(), inputs={"hidden_states": torch.linspace(-1, 1, 96).reshape(1, 12, 8)})


def forward(w, inputs):
    x, y = inputs["hidden_states"], 0.5 * inputs["hidden_states"]
    for i in range(3):
        a, b = (z @ w[f"blocks.{i}.{n}.weight"].T + w[f"blocks.{i}.{n}.bias"] for n, z in (("a", x + y), ("b", x - y)))
        x, y = tap(f"blocks.{i}:out.0", x + FACTOR * jnp.tanh(a)), y + FACTOR * jnp.tanh(b)
    return x


def build(case):
    return Port(call=forward, weights={k: jnp.asarray(v.numpy()) for k, v in Net().state_dict().items()})
"""


@pytest.mark.parametrize(
    ("factor", "listed"), [("(1.1 if i == 0 else 1)", "blocks.0"), pytest.param("1.0", "", marks=pytest.mark.slow)]
)
def test_a_stream_that_no_port_hands_out_is_one_difference(factor: str, listed: str, tmp_path: Path) -> None:
    """The next blocks differ by what the first has made of it."""
    (tmp_path / "model.py").write_text(STREAMS.replace("FACTOR", factor))
    result = inside(f"{tmp_path / 'model.py'}:reference", f"{tmp_path / 'model.py'}:build")
    assert [d.place for d in differences(result)] == [listed][: bool(listed)]


MODULATED = """
import jax
import jax.numpy as jnp
import torch

from parity.port import Port, tap


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(8, 8) for _ in range(3))
        self.table = torch.nn.Parameter(torch.randn(32))

    def forward(self, x, temb):
        scale, gate, scale_c, gate_c = (self.table + temb.float()).chunk(4, -1)
        x = x + gate * self.a(x * (1 + scale))
        x = x + self.b(x)
        return x + gate_c * self.c(x * (1 + scale_c))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.patch, self.time = torch.nn.Conv2d(4, 8, 1), torch.nn.Linear(1, 32)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))

    def forward(self, hidden_states, timestep):
        x, temb = self.patch(hidden_states).flatten(2).transpose(1, 2), self.time(timestep)
        for block in self.blocks:
            x = block(x, temb)
        return x


def reference(case):
    return Port(module=Net(), inputs={"hidden_states": torch.randn(1, 4, 3, 5), "timestep": torch.tensor([[0.7]])})


def forward(w, inputs):
    def linear(name, x):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    x = jnp.einsum("bchw,dc->bhwd", inputs["hidden_states"], w["patch.weight"][:, :, 0, 0]) + w["patch.bias"]
    x, temb = tap("patch:out", x.reshape(1, 15, 8)), tap("time:out", TIME * linear("time", inputs["timestep"]))
    for i in range(3):
        scale, gate, scale_c, gate_c = jnp.split(w[f"blocks.{i}.table"] + temb, 4, -1)
        x = x + gate * tap(f"blocks.{i}.a:out", linear(f"blocks.{i}.a", x * (1 + scale)))
        x = x + tap(f"blocks.{i}.b:out", B * linear(f"blocks.{i}.b", x))
        x = x + gate_c * tap(f"blocks.{i}.c:out", C * linear(f"blocks.{i}.c", x * (1 + scale_c)))
        x = tap(f"blocks.{i}:out", OUT * x)
    return x


def build(case):
    return Port(call=forward, weights={k: jnp.asarray(v.numpy()) for k, v in Net().state_dict().items()})
"""


@pytest.mark.parametrize(
    ("time", "b", "c", "out", "listed"),
    [
        ("1.0", "1.1", "(1.1 if i == 1 else 1)", "1.0", ["blocks.*.b", "blocks.1.c"]),
        pytest.param("1.1", "1.0", "1.1", "1.0", ["time", "blocks.*.c"], marks=pytest.mark.slow),
        pytest.param("1.0", "1.0", "1.0", "1.1", ["blocks.*"], marks=pytest.mark.slow),
        pytest.param("1.0", "1.0", "1.0", "1.0", [], marks=pytest.mark.slow),
    ],
)
def test_what_a_value_that_agrees_was_made_by_is_not_in_doubt(
    time: str, b: str, c: str, out: str, listed: list[str], tmp_path: Path
) -> None:
    """A block makes its modulation itself, and hands out what its modules give; tokens are a convolution's pixels."""
    text = MODULATED.replace("TIME", time).replace(" B *", f" {b} *").replace(" C *", f" {c} *").replace("OUT", out)
    (tmp_path / "model.py").write_text(text)
    result = inside(f"{tmp_path / 'model.py'}:reference", f"{tmp_path / 'model.py'}:build")
    assert [d.place for d in differences(result)] == listed
    assert result.origin is None or result.origin.key.module == listed[0].replace("*", "0")


def test_a_value_that_a_function_and_its_caller_name_is_of_one_call(tmp_path: Path) -> None:
    made = 'linear(w, "time", inputs["timestep"][:, None])'
    twice = (f'tap("time", {made})', f'tap("time", tap("time:out", 1.1 * {made}))')
    result = inside(*write(tmp_path, edited(PORT, *FEW, twice)))
    assert [d.place for d in differences(result)] == ["time"]


def test_what_was_compared_before_the_block_that_is_looked_at_is_named(tmp_path: Path) -> None:
    """The closer look observes that block alone, and the port names its output alone."""
    fault = ("return tap(name, x + gate", 'return tap(name, (1.01 if "1" in name else 1) * x + gate')
    result = inside(*write(tmp_path, edited(PORT, *FEW, fault)))
    assert origin(result) == ("fail", "blocks.1:out")
    assert "its own inputs were not compared, blocks.0 output (step 0, cond) before it matches" in result.reason


@pytest.mark.parametrize(
    "returned", [pytest.param('(OUT, {"aux": x})', marks=pytest.mark.slow), '{"aux": x, "sample": OUT}']
)
def test_prediction_is_taken_from_what_a_model_returns(returned: str, tmp_path: Path) -> None:
    """As Flax models do: a tuple, or a dict with `return_dict=True`."""
    made = returned.replace("OUT", OUT.removeprefix("return "))
    assert inside(*write(tmp_path, edited(PORT, (OUT, f"return {made}")))).verdict == "pass"


SOUND = """
import jax.numpy as jnp
import torch

from parity.port import Port, tap


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.video, self.sound = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, hidden_states):
        return self.video(hidden_states), self.sound(hidden_states)


def reference(case):
    return Port(module=Net(), inputs={"hidden_states": torch.linspace(-1, 1, 96).reshape(1, 12, 8)})


def forward(w, inputs):
    x = inputs["hidden_states"]
    video, sound = (tap(n, x @ w[f"{n}.weight"].T + w[f"{n}.bias"]) for n in ("video", "sound"))
    return tap("", {"sample": video, "audio_sample": sound[:, ::STEP]})


def build(case):
    return Port(call=forward, weights={k: jnp.asarray(v.numpy()) for k, v in Net().state_dict().items()})
"""


@pytest.mark.parametrize(
    ("step", "found"), [pytest.param("1", ("pass", None), marks=pytest.mark.slow), ("-1", ("fail", ":out.1"))]
)
def test_all_that_a_port_returns_in_a_dict_is_compared(step: str, found: object, tmp_path: Path) -> None:
    """Where the reference returns a tuple."""
    (tmp_path / "model.py").write_text(SOUND.replace("STEP", step))
    result = inside(f"{tmp_path / 'model.py'}:reference", f"{tmp_path / 'model.py'}:build")
    assert origin(result) == found, result.reason


# --- ports that misbehave

NO_KERNEL = "__import__('jax.experimental.pallas').experimental.pallas.pallas_call(print, out_shape=x)"
"""A kernel for TPUs, which no CPU compiles: JAX says so after the port's own code has returned."""
BOOM = "lambda x: (_ for _ in ()).throw(ValueError('of a callback'))"
HUGE = "jnp.arange(2.0**20)[:, None] * jnp.arange(2.0**20)"
RETURN = "return Port(call=forward"
OF_A_PROCESS = ("return jax.pure_callback", "return x + jnp.sort")
"""Errors that JAX raises where a program runs, of which a worker's process makes one line."""
IMPORT = "import jax\n"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (RETURN, "return None and Port(call=forward", "build(case) returned None; return a parity.port.Port"),
        (RETURN, "return 3 and 'a port' or Port(call=forward", "build(case) returned of type str"),
        (RETURN, "return Port(call=None and forward", "`call` is missing"),
        (OUT, "return None", "`call` returned None; return the prediction, a jax array"),
        (OUT, "return x.astype(int)", "`call` returned int32 values"),
        (
            OUT,
            "raise ValueError('no such thing\\nand more')",
            "raised at port.py:35: ValueError: no such thing (PARITY_DEBUG",
        ),
        (
            OUT,
            f"return {NO_KERNEL}(x)",
            "compiling what `call` computes raised at port.py: ValueError: Only interpret mode",
        ),
        pytest.param(
            OUT,
            f"return jax.pure_callback({BOOM}, x, x)",
            "CpuCallback error calling callback: ValueError: of a callback",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            OUT,
            f"return x + jnp.sort({HUGE} * x.mean()).sum()",
            "RESOURCE_EXHAUSTED: Out of memory",
            marks=pytest.mark.slow,
        ),
        ("def build(case):", "def build(case):\n    raise KeyError('gone')", "raised at port.py:39: KeyError: 'gone'"),
        ("SETTINGS = {", "SETTINGS = {'nothing': 1, ", "'nothing', no setting"),
        (
            IMPORT,
            "import jax\nraise RuntimeError('at import')\n",
            "'port.py' raised at port.py:3: RuntimeError: at import",
        ),
        (IMPORT, "import jax\nthis is no python\n", "raised at port.py:3: SyntaxError"),
        (IMPORT, "import jax\nimport sys; sys.exit(0)\n", "raised at port.py:3: SystemExit"),
        ("def build(", "def built(", "has no 'build'; functions in it: linear, block, forward, built"),
        ('tap("embed", x @', 'jax.vmap(lambda y: tap("embed", y))(x @', "tap('embed') is inside a jax transformation"),
        pytest.param(
            "    grid = x.shape[1:3]",
            "    import torch; torch.set_default_dtype(torch.float64)\n    grid = x.shape[1:3]",
            "`call` changed torch's default dtype from",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_port_that_misbehaves_is_an_error_of_one_line(before: str, after: str, said: str, tmp_path: Path) -> None:
    sides = compare if after.startswith(OF_A_PROCESS) else inside
    with pytest.raises(UsageError) as told:
        sides(*write(tmp_path, edited(PORT, (before, after))))
    assert said in str(told.value)
    assert "\n" not in str(told.value)


def test_port_that_hangs_at_import_ends_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARITY_PORT_TIMEOUT", "0.5")
    hanging = "import time\nwhile True:\n    try:\n        time.sleep(60)\n    except Exception:\n        pass\n" + PORT
    with pytest.raises(UsageError, match=r"did not end within 0.5 s, at port.py:4; .*PARITY_PORT_TIMEOUT"):
        compare(*write(tmp_path, hanging))
