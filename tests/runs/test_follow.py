"""Closer looks: the reference on the candidate's own values, and a run with nothing observed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parity.compare.independent import differences
from parity.compare.result import Result
from parity.paths.jax.mesh import Devices
from parity.paths.live import Host
from parity.paths.plan import Pair, Plan
from parity.records import StepRecords
from parity.runs import follow
from parity.runs.follow import NOTE, unobserved
from parity.runs.request import Request
from parity.settings import parse
from tests.support import ports
from tests.support.made import because, moved, noise, step, tensor
from tests.support.tiny_dit import PORT, write

WAVY = """
class Wave(torch.nn.Module):
    def forward(self, x):
        return torch.sin(4000.0 * x)


class TinyDiT"""
"""An elementary function of a large argument, in front of the blocks."""


def compare(tmp_path: Path, port: str) -> Result:
    """A port in JAX against its reference, whose block is behind an elementary function of a large argument."""
    texts = write(tmp_path, port)
    model, made = tmp_path / "model.py", "self.time = torch.nn.Linear(1, width)"
    text = model.read_text().replace("class TinyDiT", WAVY).replace(made, f"{made}\n        self.wave = Wave()")
    model.write_text(text.replace("self.time(timestep[:, None])", "self.wave(self.time(timestep[:, None]))"))
    return ports.compare(*texts, openers=Host())


WAVE = PORT.replace(
    'tap("time", linear(w, "time", inputs["timestep"][:, None]))',
    'tap("wave", jax.lax.map(jnp.sin, 4000.0 * tap("time", linear(w, "time", inputs["timestep"][:, None]))[0])[None])',
)
"""In a loop, so that it is computed once: XLA on a CPU makes it anew in each fusion, not always to the same bits."""
QKV = 'linear(w, name + ".qkv", h)'
PROJ = 'tap(name + ".proj", linear(w, name + ".proj", h))'


def test_a_small_error_behind_a_wide_floor_is_found_where_it_is(tmp_path: Path) -> None:
    result = compare(tmp_path, WAVE)
    assert result.verdict == "pass", result.reason
    floor = next(d for d in result.sites if d.key.site == "blocks.1:out").distance.floor
    wrong = WAVE.replace(PROJ, PROJ.replace(", h)", ", h * (1 + 1e-5))"))
    assert wrong != WAVE
    assert floor > 1e-5, "the free run's floor hides the error"
    result = compare(tmp_path, wrong)
    assert (result.verdict, result.origin and result.origin.key.site) == ("fail", "blocks.0.proj:out")
    assert "on the candidate's own values before it, output differs by" in result.reason


HALF = """
import torch
from model import TinyDiT

from parity.port import Port

SETTINGS = {"dtype": "float32"}


class Half(torch.nn.Module):
    def forward(self, x):
        apart = x - x.mean(-1, keepdim=True)
        return apart * torch.rsqrt(apart.square().mean(-1, keepdim=True) + 1e-5)


def build(case):
    model = TinyDiT()
    model.blocks[1].norm = Half()
    return Port(module=model.to(getattr(torch, case.settings["dtype"])), runs="torch")
"""


def test_a_norm_that_a_port_computes_in_16_bits_is_named(tmp_path: Path) -> None:
    texts = write(tmp_path, HALF)
    model, norm = tmp_path / "model.py", "F.layer_norm(x, x.shape[-1:])"
    text = (
        model.read_text()
        .replace(norm, "self.norm(x).type_as(x)")
        .replace("        self.qkv", "        self.norm = Norm()\n        self.qkv", 1)
    )
    kept = (
        "class Norm(torch.nn.Module):\n    def forward(self, x):\n        return F.layer_norm(x.float(), x.shape[-1:])"
    )
    model.write_text(text.replace("class Block", f"{kept}\n\n\nclass Block"))
    result = ports.inside(*texts, "dtype=bfloat16")
    assert (result.verdict, result.failed) == ("fail", "precision")
    assert [c.cause for c in result.causes] == [
        "blocks.1.norm: the candidate's is the reference's computed in bfloat16"
    ]


@pytest.mark.slow
def test_a_reference_may_use_vmap(tmp_path: Path) -> None:
    texts = write(tmp_path, PORT.replace(QKV, f"{QKV} * 1.01"))
    model, first = tmp_path / "model.py", "        shift, scale, gate"
    mapped = "        torch.vmap(lambda i: (i[None].float() + 1) * 2)(torch.arange(3))"
    model.write_text(model.read_text().replace(first, f"{mapped}\n{first}"))
    result = ports.inside(*texts)
    assert [d.place for d in differences(result)] == ["blocks.*.qkv"]
    assert not [note for note in result.notes if "could not be run" in note.text]


def test_a_reference_that_refuses_the_candidates_values_costs_no_verdict(tmp_path: Path) -> None:
    made = 'inputs["hidden_states"]  #'
    texts = write(tmp_path, PORT.replace(made, f"1e4 * {made}"))
    model, first = tmp_path / "model.py", "        shift, scale, gate"
    model.write_text(model.read_text().replace(first, f"        assert x.abs().max() < 100\n{first}"))
    result = ports.compare(*texts, openers=Host())
    assert (result.verdict, result.origin and result.origin.key.site) == ("fail", "embed:out")
    assert "the reference could not be run on the candidate's own values: " in result.notes[-1].text


# --- On a TPU


def test_floors_allow_for_the_elementary_functions_of_the_candidates_chip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logistic function of a TPU is up to 2.4e-5 off; no port can do anything about it."""
    texts = write(tmp_path, PORT.replace("jax.nn.silu(temb)", "(temb * (jax.nn.sigmoid(temb) + 1e-5))"))
    assert ports.compare(*texts, openers=Host()).verdict == "fail"
    monkeypatch.setattr(Devices, "describe", lambda self: ("TPU v6 lite x 1",))
    result = ports.compare(*texts, openers=Host())
    assert result.verdict == "pass", result.reason
    wrong = write(tmp_path, PORT.replace("jax.nn.silu(temb)", "(temb * (jax.nn.sigmoid(temb) + 1e-3))"))
    assert ports.compare(*wrong, openers=Host()).verdict == "fail"


# --- Values that are too large to be held beside all others


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a model of production size a block's values are as these are then: too large to be held beside all others."""
    for name in ("OUTPUTS", "EVERYTHING"):
        monkeypatch.setattr(follow, name, replace(getattr(follow, name), each=512))


def introduced(result: Result) -> list[str]:
    return [d.key.site for d in result.sites if d.verdict == "fail" and d.birth in ("input", "module")]


@pytest.mark.usefixtures("small")
def test_blocks_behind_the_first_divergence_are_held_in_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = write(tmp_path, PORT.replace(QKV, f"{QKV} * 1.01"))
    result = ports.compare(*texts, openers=Host())
    assert introduced(result) == ["blocks.0:out", "blocks.1:out"]
    monkeypatch.setattr(follow, "ROOM", 4096)  # one block at a time
    monkeypatch.setattr(follow, "PASSES", 1)
    result = ports.compare(*texts, openers=Host())
    assert introduced(result) == ["blocks.0:out"]
    assert result.notes[-1].text == "too large to be looked at by themselves: blocks.1"


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_modules_in_doubt_are_held_in_a_pass_of_their_own(tmp_path: Path) -> None:
    texts = write(tmp_path, PORT.replace(PROJ, PROJ.replace(", h)", ", h * (1 + 8e-6))")))
    result = ports.compare(*texts, openers=Host())
    assert (result.verdict, introduced(result)) == ("fail", ["blocks.0:out", "blocks.1:out"])


@pytest.mark.parametrize(
    ("weights", "failed", "said"),
    [
        (
            '{**w, "layers.0.proj.weight": 1.05 * w["layers.0.proj.weight"]}',
            "logic",
            "the reference's times 1.05: 'blo",
        ),
        pytest.param(
            "{k: x.astype(jnp.bfloat16).astype(jnp.float32) for k, x in w.items()}",
            "preflight",
            "rounded to 16 bits: load them in float32, or compare with `-c dtype=bfloat16`",
            marks=pytest.mark.slow,
        ),
        (
            "{k: x.astype(jnp.float16).astype(jnp.float32) for k, x in w.items()}",
            "preflight",
            "rounded to 16 bits: load them in float32, or compare with `-c dtype=float16`",
        ),
    ],
)
def test_weights_that_the_sites_decide_of_are_named_where_they_differ(
    weights: str, failed: str, said: str, tmp_path: Path
) -> None:
    texts = write(tmp_path, PORT.replace("    rename = {", f"    w = {weights}\n    rename = {{"))
    result = ports.compare(*texts, openers=Host())
    assert (result.verdict, result.failed) == ("fail", failed)
    assert said in " ".join([result.reason, *(cause.cause for cause in result.causes)])
    assert [d.place for d in differences(result)] == ["the weights" if failed == "preflight" else "blocks.0.proj"]


def test_a_difference_that_a_block_s_own_code_makes_is_not_one_at_each_output_that_reads_it(tmp_path: Path) -> None:
    """A port that hands out what its modules give, and not what they are given."""
    texts = write(
        tmp_path, PORT.replace("    shift, scale, gate = jnp", "    x = 1.1 * x + 0.1\n    shift, scale, gate = jnp")
    )
    result = ports.compare(*texts, openers=Host())
    assert introduced(result) == ["blocks.0.qkv:out", "blocks.1.qkv:out"]
    (said,) = (note.text for note in result.notes if note.text.startswith("also "))
    assert said.startswith("also blocks.* differs, perhaps by what differs before: of values inside blocks.*")


@pytest.mark.parametrize("read", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_value_of_another_shape_is_no_end_of_following(read: bool, tmp_path: Path) -> None:
    """Whether or not anything is made of it: the reference makes its own of the candidate's values."""
    port = PORT.replace("    qkv = tap(", '    tap(name + ".spare", x[:, :3])\n    qkv = tap(')
    texts = write(tmp_path, port.replace("return tap(name, x + gate", "return tap(name, 1.01 * x + gate"))
    model, made = tmp_path / "model.py", "        self.proj = torch.nn.Linear(width, width)\n"
    text = model.read_text().replace(made, f"{made}        self.spare = torch.nn.Tanh()\n")
    before = "        q, k, v"
    text = text.replace(before, f"        spare = self.spare(x)\n{before}")
    model.write_text(text.replace("return x + gate", "return spare + gate") if read else text)
    assert introduced(ports.compare(*texts, openers=Host())) == ["blocks.0:out", "blocks.1:out"]


@pytest.mark.slow
def test_a_view_of_a_value_that_is_handed_out_puts_nothing_in_doubt(tmp_path: Path) -> None:
    """`temb[:, None]` is read in front of the blocks and behind them, and differs at neither."""
    port = PORT.replace("    for i in range(2):", "    e = temb[:, None]\n    x = x + 1.01 * e\n    for i in range(2):")
    port = port.replace('linear(w, "out", x)', 'linear(w, "out", 1.2 * (x + e))')
    texts = write(tmp_path, port)
    model, loop = tmp_path / "model.py", "        for block in"
    text = model.read_text().replace(loop, f"        e = temb[:, None]\n        x = x + e\n{loop}")
    model.write_text(text.replace("self.out(x)", "self.out(x + e)"))
    assert introduced(ports.compare(*texts, openers=Host())) == ["blocks.0:in.x", ":out"]


LOOP = '    for i in range(2):\n        x = block(w, f"layers.{i}", x, temb)\n'


def test_layers_of_a_scan_are_counted(tmp_path: Path) -> None:
    scan = """    layers = {
        f"layers.*.{n}.{p}": jnp.stack([w[f"layers.{i}.{n}.{p}"] for i in range(2)])
        for n in ("mod", "qkv", "proj") for p in ("weight", "bias")
    }
    x, _ = jax.lax.scan(lambda x, layer: (block(layer, "layers.*", x, temb), None), x, layers)
"""
    scanned = PORT.replace(LOOP, scan)
    assert scanned != PORT
    result = ports.compare(*write(tmp_path, scanned), openers=Host())
    assert result.verdict == "pass", result.reason
    assert {"blocks.0:out", "blocks.1:out", "blocks.1:in.x"} <= {d.key.site for d in result.sites}
    result = ports.compare(*write(tmp_path, scanned.replace(QKV, f"{QKV} * 1.01")), openers=Host())
    assert introduced(result) == ["blocks.0.qkv:out", "blocks.1.qkv:out"]


def test_a_port_that_is_not_compiled_may_keep_a_table_and_hold_its_layers_in_one_array(tmp_path: Path) -> None:
    stacked = """    for i in range(2):
        layer = {k.replace("layers.", f"layers.{i}."): v[i] for k, v in w.items() if k.startswith("layers.")}
        x = block(layer, f"layers.{i}", x * ones(x.shape[-1]), temb)
"""
    held = """    names = [k.removeprefix("layers.0.") for k in w if k.startswith("layers.0.")]
    layers = {f"layers.{n}": jnp.stack([w[f"layers.{i}.{n}"] for i in range(2)]) for n in names}
    w = {k: v for k, v in w.items() if not k.startswith("layers.")} | layers
"""
    table = "import functools\n\n\n@functools.lru_cache\ndef ones(n):\n    return jnp.ones(n)\n\n\ndef forward"
    port = PORT.replace(LOOP, stacked).replace("def forward", table).replace("    rename = ", f"{held}    rename = ")
    result = ports.compare(*write(tmp_path, port), "jit=false", openers=Host())
    assert result.verdict == "pass", result.reason
    assert next(c.detail for c in result.preflight if c.check == "weights") == "18 parameters equal"


@pytest.mark.slow
def test_what_a_port_does_behind_its_last_tap_is_followed_too(tmp_path: Path) -> None:
    end = 'return linear(w, "out", x)'
    texts = write(tmp_path, PORT.replace(PROJ, f"{PROJ} * 1.01").replace(end, f"{end}[:, ::-1]"))
    assert introduced(ports.compare(*texts, openers=Host()))[-1] == ":out"


# --- A compiled port that agrees while it is observed is run once with nothing observed

LATENTS, PREDICTED = noise(1), noise(2)
PASSED = Result("pass", None, because(""))
REQUEST = Request("tiny", parse("torch"), parse("torchax"))


def loop(predicted: np.ndarray) -> StepRecords:
    return step(
        [
            tensor("loop:latents.before", LATENTS, branch="", held=True),
            tensor("blocks.0:out", LATENTS),
            tensor("loop:noise_pred", predicted.astype(np.float32), branch=""),
        ]
    )


def pair(floors: float, *, port: bool = True, compiled: bool = True) -> tuple[Any, list[Plan]]:
    """A pair whose candidate, with nothing observed, is this many floors off."""
    asked: list[Plan] = []

    def observe(plan: Plan, **_: object) -> Iterator[StepRecords]:
        asked.append(plan)
        yield replace(loop(moved(PREDICTED, floors)), floors={})

    facts = SimpleNamespace(compiled=compiled)
    sides = Pair(SimpleNamespace(), SimpleNamespace(observe=observe))
    asks = {"request": REQUEST, "say": lambda *_: None}
    return SimpleNamespace(**asks, port=port, facts=Pair(facts, facts), sides=sides, differing=()), asked


def test_a_program_that_is_wrong_only_where_nothing_is_observed_fails() -> None:
    given, asked = pair(30.0)
    found = unobserved(PASSED, given, loop(PREDICTED))
    assert (found.verdict, found.failed) == ("fail", "logic")
    assert found.origin is not None
    assert found.origin.key.site == "loop:noise_pred"
    assert found.notes[-1].text == NOTE
    assert asked == [Plan()]


def test_a_program_that_agrees_leaves_the_result_as_it_is() -> None:
    assert unobserved(PASSED, pair(1.0)[0], loop(PREDICTED)) is PASSED


@pytest.mark.parametrize(
    ("result", "more"),
    [(Result("fail", "logic", because("")), {}), (PASSED, {"port": False}), (PASSED, {"compiled": False})],
    ids=["failed already", "parity's own", "eager"],
)
def test_nothing_is_run_again_without_need(result: Result, more: dict[str, bool]) -> None:
    given, asked = pair(30.0, **more)
    assert unobserved(result, given, loop(PREDICTED)) is result
    assert asked == []


def test_a_port_reads_its_dtype_without_declaring_it(tmp_path: Path) -> None:
    undeclared = PORT.replace('SETTINGS = {"attention.softmax_dtype": "float32"}\n', "")
    texts = write(tmp_path, undeclared.replace("    rename = {", '    assert case.settings["dtype"]\n    rename = {'))
    assert undeclared != PORT
    assert ports.compare(*texts, openers=Host()).verdict == "pass"
