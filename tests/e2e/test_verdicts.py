"""What a comparison of parity's own two sides comes to: settings, faults, and changes that only round."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import torch

from parity.errors import InconclusiveError, UsageError
from parity.paths.loaded import Loaded
from tests.support.lab import Fault, Lab, nothing
from tests.support.models import NANO, checkpoint

pytest.importorskip("torchax")

ATTENTION = "transformer_blocks.0.attn.attention:out@image"
BF16 = "dtype=bfloat16"


@functools.cache
def lab(model: str) -> Lab:
    return Lab(checkpoint(model))


def module_of(side: Loaded, path: str) -> torch.nn.Module:
    return cast(torch.nn.Module, side.backend.model).get_submodule(path)


def scaled(path: str, factor: float) -> Fault:
    """A module's output times a factor."""

    def fault(side: Loaded) -> None:
        module_of(side, path).register_forward_hook(lambda module, given, out: out * factor)

    return fault


def shifted(path: str, by: float) -> Fault:
    """A module's output moved by a fraction of its mean size."""

    def fault(side: Loaded) -> None:
        module_of(side, path).register_forward_hook(lambda module, given, out: out + by * out.abs().mean())

    return fault


def without(path: str, argument: str) -> Fault:
    """A module called without one of its arguments."""

    def fault(side: Loaded) -> None:
        module_of(side, path).register_forward_pre_hook(
            lambda module, args, kwargs: (args, {**kwargs, argument: None}), with_kwargs=True
        )

    return fault


def split_sums(path: str) -> Fault:
    """A linear layer whose sums are made in two halves: only rounding differs."""

    def halves(module: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        half = module.in_features // 2
        first = torch.nn.functional.linear(x[..., :half], module.weight[:, :half])
        return first + torch.nn.functional.linear(x[..., half:], module.weight[:, half:], module.bias)

    def fault(side: Loaded) -> None:
        module = cast(Any, module_of(side, path))
        module.forward = functools.partial(halves, module)

    return fault


@dataclass(frozen=True)
class Row:
    """A candidate, and what it comes to.

    Attributes:
        settings: of the candidate. reference: its settings. failed: the part of the run that fails, or nothing.
        origin: the site of the first divergence. birth: how it starts there. branch: of it. harmless: the setting that
            the notes call harmless. notes: what else they say.
    """

    model: str
    settings: str = ""
    failed: str | None = None
    origin: str | None = None
    birth: str = "module"
    branch: str = "cond"
    harmless: str = ""
    notes: str = ""
    reference: str = ""
    fault: Fault = nothing
    options: dict[str, Any] = field(default_factory=dict)
    slow: bool = False

    def __str__(self) -> str:
        fault = "" if self.fault is nothing else cast(Any, self.fault).__qualname__.partition(".")[0]
        return " ".join(filter(None, (self.model.partition("-v")[0], self.reference, self.settings, fault)))


ROWS = (
    # both sides as they are; `test_sides_that_agree_were_compared_everywhere` has another
    Row("wan"),
    Row("flux", slow=True),
    Row("qwen", slow=True),
    Row("skyreels", slow=True),
    # changes that are harmless
    Row(NANO, "attention.kernel=splash", harmless="attention.kernel", slow=True),
    Row(NANO, "attention.mask=zero_kv_rescaled", harmless="attention.mask", slow=True),
    Row(NANO, "text.reorder=concatenate", harmless="text.reorder", slow=True),
    Row(NANO, "vision_states=none", harmless="vision_states", slow=True),
    Row("wan", fault=split_sums("blocks.1.ffn.net.2")),
    Row("mochi", "jit=false", slow=True),
    # dtypes
    Row(NANO, "text.byt5_dtype=bfloat16", harmless="text.byt5_dtype", notes="within its floor", slow=True),
    Row("ltx", BF16, harmless="dtype", slow=True),
    Row("wan", "matmul_precision=default", harmless="matmul_precision", slow=True),
    Row(NANO, "rope_dtype=bfloat16", "precision", "rope:out.0", slow=True),
    Row(NANO, "text.byt5_dtype=bfloat16 rope_dtype=bfloat16", "precision", "rope:out.0", slow=True),
    Row(NANO, "norm_dtype=bfloat16", "precision", "context_embedder.token_refiner.refiner_blocks.0.norm1:out",
        options={"sites": "all", "checks": "precision"}, slow=True),
    # faults
    Row(NANO, "attention.mask=none", "logic", ATTENTION, slow=True),
    Row(NANO, "attention.mask=zero_kv", "logic", ATTENTION, slow=True),
    Row(NANO, "attention.kernel=splash attention.mask=segment_ids_first_row", "logic", ATTENTION, branch="uncond",
        notes="only branch uncond differs", slow=True),
    Row("ltx", "", "logic", "transformer_blocks.0.attn2:in.attention_mask", "input",
        fault=without("transformer_blocks.0.attn2", "attention_mask")),
    Row("wan", BF16, "logic", "blocks.1.ffn.net.2:out", reference=BF16, fault=scaled("blocks.1.ffn.net.2", 1.01),
        slow=True),
    # within what rounding has grown to at their place, and above what it does there
    Row("wan", "", "logic", "blocks.1.ffn.net.2:out", fault=scaled("blocks.1.ffn.net.2", 1 + 6e-6)),
    Row("wan", "", "logic", "blocks.0.attn1:out", fault=shifted("blocks.0.attn1", 1e-4), slow=True),
    # the loop
    Row(NANO, "schedule_dtype=bfloat16", "preflight", options={"steps": 50}),
    Row("wan", "latents_dtype=bfloat16", "precision", "loop:latents.after", branch="",
        options={"steps": 2, "isolate": "steps"}),
)  # fmt: skip


@pytest.mark.parametrize("row", [pytest.param(r, id=str(r), marks=[pytest.mark.slow] * r.slow) for r in ROWS])
def test_verdict(row: Row) -> None:
    result = lab(row.model).judge(
        *row.settings.split(), reference=row.reference.split(), fault=row.fault, **row.options
    )
    origin = None if result.origin is None else (result.origin.key.branch, result.origin.key.site, result.origin.birth)
    found = (result.verdict, result.failed, origin)
    expected = None if row.origin is None else (row.branch, row.origin, row.birth)
    assert found == ("pass" if row.failed is None else "fail", row.failed, expected), result.reason
    notes = [note.text for note in result.notes]
    assert [n.split()[1] for n in notes if n.startswith("harmless")] == ([row.harmless] if row.harmless else [])
    assert row.notes in " ".join(notes)


def test_steps_by_themselves_have_floors_of_steps_by_themselves_in_either_check() -> None:
    """Those of a loop that goes on from its own latents hold the rounding of all steps before."""
    found = [
        lab("wan").judge("latents_dtype=bfloat16", steps=3, isolate="steps", checks=c) for c in ("both", "precision")
    ]
    floors = [[step.noise_pred.floor for step in result.steps] for result in found]
    assert len(floors[0]) == 3
    assert floors[0] == floors[1]


def test_sides_that_agree_were_compared_everywhere() -> None:
    result = lab(NANO).judge()
    assert result.verdict == "pass", result.reason
    blocks = [d for d in result.sites if d.key.module == "transformer_blocks.0" and d.key.port in ("out.0", "out.1")]
    assert len(blocks) == 4
    assert {d.key.branch for d in blocks} == {"cond", "uncond"}
    (step,) = result.steps
    assert 0 < step.noise_pred.rel_l2 < 1e-5  # two programs: agreement to the last bit would be suspicious
    assert all(d.distance.rel_l2 > 0 and d.distance.floor > 0 for d in blocks)
    assert {c.verdict for c in result.preflight} == {"pass"}
    sites = [d.key.site for d in result.sites if d.key.branch == "cond"]
    assert (
        sites.index("transformer_blocks.0:in.hidden_states") < sites.index(ATTENTION) < sites.index(blocks[0].key.site)
    )


def test_bfloat16_is_judged_three_ways() -> None:
    result = lab("ltx").judge(BF16, reference=[BF16])
    assert result.verdict == "pass", result.reason
    exact, rounded = (r.steps[0] for r in result.checks)
    assert exact.noise_pred.rel_l2 < 1e-4
    assert rounded.noise_pred.rel_l2 > 1e-3
    assert 0.3 < rounded.noise_pred.ratio < 2  # no further from the truth than the reference is


@pytest.mark.parametrize(
    ("model", "settings", "kind", "said"),
    [
        ("mochi", "", "inconclusive", r"does not trace.*jit=false"),
        ("ltx", "attention.k_smooth=true", "usage", "'attention.k_smooth=true', which has no meaning for"),
        ("ltx", "text.reorder=concatenate", "usage", "which has no meaning for"),
    ],
)
def test_setting_that_cannot_be_tried_is_refused(model: str, settings: str, kind: str, said: str) -> None:
    with pytest.raises(InconclusiveError if kind == "inconclusive" else UsageError, match=said):
        lab(model).judge(*settings.split())
