"""A torchax port runs as it is: the attention that it installed is what runs, and the report says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.compare.result import Result
from tests.test_run_ports import compare

pytest.importorskip("torchax")

MODEL = "tiny-cogvideox-1.0"

PORT = """
import functools
import torch
import torchax
from diffusers import CogVideoXTransformer3DModel
from torchax.ops import ops_registry
from parity.port import Port

SDPA = torch.nn.functional.scaled_dot_product_attention
env = torchax.default_env()


def kernel(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, env=None):
    weights = torch.softmax(query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5, dim=-1)
    return FACTOR * (weights @ value)


def install():
    INSTALL


def build(case):
    net = CogVideoXTransformer3DModel.from_pretrained(case.folder / "transformer")
    install()
    MOVE
    return Port(module=net, runs="torchax")
"""

TABLE = """env._ops[SDPA] = ops_registry.Operator(
        SDPA, functools.partial(kernel, env=env), is_jax_function=False, is_user_defined=True, needs_env=False,
        is_view_op=False,
    )"""
OVERRIDE = "env.override_op_definition(SDPA, kernel)"
COMPILED = """with env:
        net.load_state_dict(env.to_xla(net.state_dict()), assign=True)
        net = torchax.compile(net, torchax.CompileOptions(jax_jit_kwargs={"static_argnames": ("return_dict",)}))"""


def run(folder: Path, install: str, factor: str = "1.0", move: str = "pass") -> Result:
    text = PORT.replace("INSTALL", install).replace("FACTOR", factor).replace("MOVE", move)
    (folder / "port.py").write_text(text)
    return compare(None, f"{folder}/port.py:build", model=MODEL)


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(PORT.splitlines(), 1) if line.startswith(text))


@pytest.mark.parametrize("install", [TABLE, OVERRIDE])
def test_a_kernel_in_torchaxs_operator_table_that_gives_zeros_fails_at_its_attention(
    install: str, tmp_path: Path
) -> None:
    """Parity's own attention lay over it, and a port whose attention gives `value * 0` passed at 3e-7."""
    result = run(tmp_path, install, factor="0.0")
    assert result.verdict == "fail"
    assert result.origin is not None
    assert result.origin.key.module == "transformer_blocks.0.attn1.attention"
    (note,) = (n.text for n in result.notes if "attention of" in n.text)
    assert note == (
        "the candidate's attention of transformer_blocks.0.attn1 to transformer_blocks.3.attn1 (4 modules): "
        f"the port's own function kernel (port.py:{line_of('def kernel')}), 1 call each"
    )


@pytest.mark.parametrize("move", ["pass", COMPILED])
def test_a_right_kernel_passes_also_where_the_port_has_placed_and_compiled_its_module(
    move: str, tmp_path: Path
) -> None:
    result = run(tmp_path, TABLE, move=move)
    assert result.verdict == "pass", result.reason
    assert any("the port's own function kernel (port.py:" in n.text for n in result.notes)


def test_without_one_torchaxs_own_runs_and_nothing_is_replaced(tmp_path: Path) -> None:
    result = run(tmp_path, "pass")
    assert result.verdict == "pass", result.reason
    assert any(n.text.endswith("(4 modules): torchax's own, 1 call each") for n in result.notes)
    said = {c.check: c.detail for c in result.preflight}
    assert said["candidate: replaced by parity"] == "nothing: its code runs as it is"
    assert said["reference: replaced by parity"].startswith("attention processors of transformer_blocks.0.attn1")
