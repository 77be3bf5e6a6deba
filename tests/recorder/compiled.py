"""What is compiled with torch.compile: its program runs as it is, its modules are seen beside it.

Run by `test_compiled.py` in a process of its own: torch.compile dies where torchax is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("diffusers")
from diffusers import CogVideoXTransformer3DModel

import parity
from parity.compare.diff import diff
from parity.golden import Golden
from tests.recorder import script
from tests.recorder.encoders import IDS, encoder, seen

BACKEND = "eager"  # dynamo alone: no compiler is needed


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script without torch.compile."""
    where = tmp_path_factory.mktemp("compiled") / "gpu"
    parts = script.load()
    with parity.record(where, **parts.named):
        script.generate(parts)
    return where


def wrapped(parts: script.Parts) -> script.Parts:
    return replace(parts, transformer=torch.compile(parts.transformer, backend=BACKEND))


def in_place(parts: script.Parts) -> script.Parts:
    parts.transformer.compile(backend=BACKEND)
    return parts


def forward_alone(parts: script.Parts) -> script.Parts:
    parts.transformer.forward = torch.compile(parts.transformer.forward, backend=BACKEND)
    return parts


def blocks_in_place(parts: script.Parts) -> script.Parts:
    for block in parts.transformer.transformer_blocks:
        block.compile(backend=BACKEND, fullgraph=True)
    return parts


def blocks_and_decoder_wrapped(parts: script.Parts) -> script.Parts:
    blocks = parts.transformer.transformer_blocks
    for i, block in enumerate(blocks):
        blocks[i] = torch.compile(block, backend=BACKEND)
    parts.vae.decoder = torch.compile(parts.vae.decoder, backend=BACKEND)
    return parts


WAYS = [wrapped, in_place, forward_alone, blocks_in_place, blocks_and_decoder_wrapped]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_compiled_transformer_is_recorded(
    way: Callable[[script.Parts], script.Parts], reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its result is the script's to the bit; its modules have the names and floors that they have without it."""
    parts = way(script.load())
    plain = script.generate(parts)
    before = set(vars(parts.transformer))
    with parity.record(tmp_path / "golden", **parts.named):
        seen = script.generate(parts)
    assert np.array_equal(plain, seen)
    assert "its modules are observed in an eager run beside it" in capsys.readouterr().err
    assert set(vars(parts.transformer)) == before
    assert np.array_equal(plain, script.generate(parts))  # it is still compiled, and still right
    ours, theirs = (Golden.open(where) for where in (reference, tmp_path / "golden"))
    assert theirs.provenance.modules == ours.provenance.modules
    assert theirs.provenance.weights == ours.provenance.weights
    for step in ours.steps:
        a, b = ours.read_step(step), theirs.read_step(step)
        assert [r.key for r in b.records] == [r.key for r in a.records]
        assert b.floors.keys() == a.floors.keys()
    assert diff(reference, tmp_path / "golden").verdict == "pass"
    assert diff(tmp_path / "golden", reference).verdict == "pass"


def test_what_a_program_computes_wrongly_is_seen_where_no_module_differs(reference: Path, tmp_path: Path) -> None:
    """A compiler's fault: the prediction is the program's own, the modules are those of the eager run."""

    def faulty(graph: Any, inputs: Any) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            return tuple(x * 1.01 if isinstance(x, torch.Tensor) and x.ndim == 5 else x for x in graph(*given))

        return run

    parts = script.load()
    torch._dynamo.reset()
    parts.transformer.compile(backend=faulty)
    with parity.record(tmp_path / "golden", **parts.named):
        script.generate(parts)
    found = diff(reference, tmp_path / "golden")
    assert found.verdict == "fail"
    failed = {d.key.site for d in found.sites if d.key.step == 0 and d.verdict == "fail"}
    assert failed
    assert all(site.startswith("loop:") for site in failed), failed


def test_a_transformer_is_its_own_class_under_its_program(tmp_path: Path) -> None:
    parts = wrapped(script.load())
    with parity.record(tmp_path / "golden", **parts.named, floors=()):
        script.generate(parts)
    assert Golden.open(tmp_path / "golden").provenance.model == CogVideoXTransformer3DModel.__name__


@pytest.mark.parametrize("how", ["wrapped", "in place"])
def test_a_compiled_encoder_is_repeated_without_its_program(how: str) -> None:
    model, said = encoder(torch.bfloat16), list[str]()
    if how == "wrapped":
        model = torch.compile(model, backend=BACKEND, fullgraph=True)
    else:
        model.compile(backend=BACKEND, fullgraph=True)
    texts, out = seen(model, said, IDS)
    assert texts.moved(out, "float64") is not None
    assert said == []
