"""What is compiled with torch.compile: its program runs as it is, its modules are seen beside it.

Run by `test_compiled.py` in a process of its own: torch.compile dies where torchax is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("diffusers")
from torch.nn.attention.flex_attention import flex_attention
from transformers import T5Config, T5EncoderModel

from parity.compare.diff import diff
from parity.golden import Golden
from tests.support.scripts import Parts, drawn, generate, load, recorded, referenced, tame

BACKEND = "eager"  # dynamo alone: no compiler is needed


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script without torch.compile."""
    where, parts = tmp_path_factory.mktemp("compiled") / "gpu", load()
    referenced(where, lambda: generate(parts), **parts.named)
    return where


def wrapped(parts: Parts) -> None:
    parts.transformer = torch.compile(parts.transformer, backend=BACKEND)


def in_place(parts: Parts) -> None:
    parts.transformer.compile(backend=BACKEND)


def forward_alone(parts: Parts) -> None:
    parts.transformer.forward = torch.compile(parts.transformer.forward, backend=BACKEND)


def blocks_in_place(parts: Parts) -> None:
    for block in parts.transformer.transformer_blocks:
        block.compile(backend=BACKEND, fullgraph=True)


def blocks_and_decoder_wrapped(parts: Parts) -> None:
    blocks = parts.transformer.transformer_blocks
    blocks[0] = torch.compile(blocks[0], backend=BACKEND)
    parts.vae.out = torch.compile(parts.vae.out, backend=BACKEND)


WAYS = [wrapped, in_place, forward_alone, blocks_in_place, blocks_and_decoder_wrapped]


class Remembers(torch.nn.Module):
    """Draws, and counts its calls."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls + torch.randn_like(x)


def test_what_a_compiled_model_draws_and_remembers_is_the_scripts(tmp_path: Path) -> None:
    def call(compiled: Any, seen: list[torch.Tensor]) -> torch.Tensor:
        torch.manual_seed(0)
        x = drawn(1, 4, 8)
        for _ in range(3):
            x = compiled(x)
            seen.append(x)
        return x

    plain: list[torch.Tensor] = []
    observed: list[torch.Tensor] = []
    call(torch.compile(Remembers(), backend=BACKEND), plain)
    compiled = torch.compile(Remembers(), backend=BACKEND)
    recorded(tmp_path / "golden", lambda: call(compiled, observed), transformer=compiled)
    assert all(torch.equal(a, b) for a, b in zip(plain, observed, strict=True))
    sites = {":out": {}, "loop:noise_pred": {}}
    for r in Golden.open(tmp_path / "golden").read_step(0).records:
        if r.key.site in sites and r.moments is not None:
            sites[r.key.site][r.key.branch] = (r.moments.min, r.moments.max)
    assert sites[":out"] == sites["loop:noise_pred"]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_compiled_transformer_is_recorded(
    way: Callable[[Parts], None], reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its result is the script's to the bit; its modules have the names and floors that they have without it."""
    parts = load()
    way(parts)
    plain, before = generate(parts), set(vars(parts.transformer))
    assert np.array_equal(plain, referenced(tmp_path / "golden", lambda: generate(parts), **parts.named))
    assert "its modules are observed in an eager run beside it" in capsys.readouterr().err
    assert set(vars(parts.transformer)) == before
    assert np.array_equal(plain, generate(parts))  # it is still compiled, and still right
    ours, theirs = (Golden.open(where) for where in (reference, tmp_path / "golden"))
    for name in ("model", "modules", "weights"):
        assert getattr(theirs.provenance, name) == getattr(ours.provenance, name)
    for step in ours.steps:
        a, b = ours.read_step(step), theirs.read_step(step)
        assert ([r.key for r in b.records], b.floors.keys()) == ([r.key for r in a.records], a.floors.keys())
    assert diff(reference, tmp_path / "golden").verdict == "pass"
    assert diff(tmp_path / "golden", reference).verdict == "pass"


def test_fault_of_a_program_is_seen_where_no_module_differs(reference: Path, tmp_path: Path) -> None:
    """A compiler's fault: the prediction is the program's own, the modules are those of the eager run."""

    def faulty(graph: Any, inputs: Any) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            return tuple(x * 1.01 if isinstance(x, torch.Tensor) and x.ndim == 5 else x for x in graph(*given))

        return run

    parts = load()
    torch._dynamo.reset()
    parts.transformer.compile(backend=faulty)
    recorded(tmp_path / "golden", lambda: generate(parts), **parts.named)
    found = diff(reference, tmp_path / "golden")
    failed = {d.key.site for d in found.sites if d.key.step == 0 and d.verdict == "fail"}
    assert (found.verdict, bool(failed)) == ("fail", True)
    assert all(site.startswith("loop:") for site in failed), failed


@pytest.mark.parametrize("how", ["wrapped", "in place"])
def test_floor_of_what_a_compiled_encoder_gives(how: str, tmp_path: Path) -> None:
    config = T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    encoder: Any = tame(T5EncoderModel(config)).bfloat16()
    encoder = torch.compile(encoder, backend=BACKEND, fullgraph=True) if how == "wrapped" else encoder
    if how == "in place":
        encoder.compile(backend=BACKEND, fullgraph=True)

    class Pipe:
        def __init__(self) -> None:
            self.text_encoder, self.transformer = encoder, torch.nn.Linear(16, 16).bfloat16()

        def encode_prompt(self) -> Any:
            return self.text_encoder(torch.arange(6)[None])[0]

    pipe = Pipe()
    referenced(tmp_path / "g", lambda: pipe.transformer(pipe.encode_prompt()), pipe)
    step = Golden.open(tmp_path / "g").read_step(0)
    (given,) = [r for r in step.records if r.key.site == ":in.input"]
    assert given.moments is not None
    assert step.floors[given.key].l2 / given.moments.l2 > 2e-3, "more than its last bit"


programs: list[Any] = []


def compiler(graph: Any, inputs: Any) -> Any:
    programs.append(graph)
    return graph.forward


compiled = torch.compile(flex_attention, dynamic=False, backend=compiler)


class Flex(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_q = torch.nn.Linear(16, 16)

    def forward(self, hidden_states: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        def near(score: torch.Tensor, b: Any, h: Any, i: Any, j: Any) -> torch.Tensor:
            return torch.where(j < 5, score, float("-inf"))

        given = (self.to_q(hidden_states), hidden_states, hidden_states)
        q, k, v = (x.unflatten(2, (2, 8)).transpose(1, 2) for x in given)
        return compiled(q, k, v, score_mod=near).transpose(1, 2).flatten(2) + timestep


def test_compiled_flex_attention_stays_so_and_has_floors(tmp_path: Path) -> None:
    model, given = Flex(), (drawn(1, 6, 16), torch.tensor(1.0))
    with torch.no_grad():
        before, own = model(*given), compiled
    seen = referenced(tmp_path / "g", lambda: model(*given), transformer=model, sites="all")
    assert (torch.equal(before, seen), compiled is own) == (True, True)
    assert programs
    step = Golden.open(tmp_path / "g").read_step(0)
    records = {r.key.site: r for r in step.records}
    for port in ("in.query", "in.key", "in.value", "out"):
        record = records[f"attention:{port}"]
        assert (record.shape, record.key in step.floors) == ((1, 6, 2, 8), True)
