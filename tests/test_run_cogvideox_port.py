"""A port of CogVideoX as diffusers has it: what the pipeline computes for each call reaches the port."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchax")

from parity.paths.port.ported import _accepted  # noqa: E402  (behind the skip
from parity.paths.worker.openers import Workers  # noqa: E402
from parity.port import Port  # noqa: E402
from parity.runs.compare import run  # noqa: E402
from parity.runs.load import load_ports  # noqa: E402
from parity.runs.request import Request  # noqa: E402

pytestmark = pytest.mark.slow

MODEL = "tiny-cogvideox-1.5"
PORT = """
from diffusers import CogVideoXTransformer3DModel

from parity.port import Port


def build(case):
    return Port(module=CogVideoXTransformer3DModel.from_pretrained(case.folder / "transformer"))
"""


def test_a_port_of_diffusers_own_class_agrees(tmp_path: Path) -> None:
    """Its rotary tables are the pipeline's, an argument of each call."""
    (tmp_path / "port.py").write_text(PORT)
    with Workers() as openers:
        ports = load_ports(None, f"{tmp_path / 'port.py'}:build", MODEL, 60.0, openers)
        ours, theirs = ports.settings([], [])
        result = run(Request(MODEL, ours, theirs, ports=ports), lambda *told: None)
    assert result.verdict == "pass", result.reason


class _Takes(torch.nn.Module):
    def forward(self, hidden_states: Any, image_rotary_emb: Any = None) -> Any: ...


class _Computes(torch.nn.Module):
    def forward(self, hidden_states: Any) -> Any: ...


class _Passes(torch.nn.Module):
    def forward(self, **inputs: Any) -> Any: ...


@pytest.mark.parametrize(
    ("port", "taken"),
    [
        (Port(module=_Takes()), True),
        (Port(module=_Passes()), True),
        (Port(module=_Computes()), False),
        (Port(module=_Computes(), call=lambda inputs: None), True),
    ],
)
def test_a_module_that_computes_them_itself_is_not_handed_them(port: Port, taken: bool) -> None:
    assert ("image_rotary_emb" in _accepted(port, {"image_rotary_emb": 0})) == taken
