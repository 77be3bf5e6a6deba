"""`parity.record(..., causes=True)`: two recordings that never met have causes, as far as known faults were kept."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("diffusers")
import diffusers

from parity.causes.explain import ExplainRequest, explain
from parity.compare.result import Result
from parity.golden import Golden
from parity.golden.faults import kept_faults, place
from parity.paths.worker.process import Workers
from tests.support.lab import quiet
from tests.support.scripts import drawn, recorded, referenced, tame

sdpa = torch.nn.functional.scaled_dot_product_attention
TEXT, PADDED, IMAGE, WIDTH = 24, 9, 32, 32


class Block(torch.nn.Module):
    """Attention of several heads, with the fault of a port that wrote it again."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.norm, self.fault = torch.nn.LayerNorm(WIDTH), fault
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        return x + self.out(self.attend(q, k, v, mask[:, None, None, :]).transpose(1, 2).flatten(2))

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if not self.fault:
            return sdpa(q, k, v, attn_mask=mask)
        scale = 1.0 if "scale" in self.fault else q.shape[-1] ** -0.5
        if "zeroed" in self.fault:
            k, v = k * mask.transpose(-1, -2), v * mask.transpose(-1, -2)
        if "zeroed" in self.fault or "dropped" in self.fault:
            mask = torch.ones_like(mask)
        if "filled" in self.fault:
            fill = -k.shape[-2] % 128
            k, v = (torch.nn.functional.pad(t, (0, 0, 0, fill)) for t in (k, v))
            mask = torch.nn.functional.pad(mask, (0, fill), value=True)
        logits = (q @ k.transpose(-1, -2) * scale).masked_fill(~mask, float("-inf"))
        return logits.softmax(-1) @ v


class Transformer(torch.nn.Module):
    """Image tokens and masked text in one sequence."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(fault), Block(fault)])

    def forward(self, x: torch.Tensor, text: torch.Tensor, mask: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        joint = torch.cat([x + timestep / 1000, text], 1)
        for block in self.blocks:
            joint = block(joint, mask)
        return joint[:, : x.shape[1]]


class Vae(torch.nn.Module):
    """Latents [B, C, T, H, W] to frames, with attention over all frames up to each one's own."""

    def __init__(self, by_frame: bool) -> None:
        super().__init__()
        self.decoder, self.by_frame = torch.nn.Linear(WIDTH, WIDTH), by_frame
        self.config = {"scaling_factor": 0.8}

    def decode(self, z: torch.Tensor) -> tuple[torch.Tensor]:
        frames, positions = z.shape[2], z.shape[3] * z.shape[4]
        rows = self.decoder(z.flatten(2).transpose(1, 2))[:, None]
        at = torch.arange(frames * positions) // positions
        mask = at[:, None] == at if self.by_frame else at[:, None] >= at
        logits = (rows @ rows.transpose(-1, -2) * WIDTH**-0.5).masked_fill(~mask, float("-inf"))
        out = logits.softmax(-1) @ rows if self.by_frame else sdpa(rows, rows, rows, attn_mask=mask)
        return (out[:, 0].transpose(1, 2).reshape(z.shape)[:, :3] * 1.5,)


def record(where: Path, fault: str = "", **options: Any) -> Path:
    """A recording of one step, which changes no bit."""
    model, scheduler = tame(Transformer(fault)), diffusers.FlowMatchEulerDiscreteScheduler()
    latents, mask = drawn(1, IMAGE, WIDTH), torch.arange(IMAGE + TEXT)[None] < IMAGE + TEXT - PADDED

    def script() -> torch.Tensor:
        scheduler.set_timesteps(1)
        (t,) = scheduler.timesteps
        predicted = model(latents, drawn(1, TEXT, WIDTH, seed=2), mask, t)
        return scheduler.step(predicted, t, latents, return_dict=False)[0]

    with torch.no_grad():
        plain = script()
    go = recorded if "like" in options else referenced
    assert torch.equal(plain, go(where, script, transformer=model, scheduler=scheduler, **options))
    return where


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("causes") / "gpu", causes=True)


def explained(reference: Path, candidate: Path) -> Result:
    with Workers() as openers:
        return explain(ExplainRequest(str(reference), str(candidate)), openers, quiet)


FILLED = "attention.block_padding=unmasked in blocks of 128"


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("written again", set()),
        ("dropped", {"attention.mask=none"}),
        ("zeroed filled", {"attention.mask=zero_kv", FILLED}),
        ("scale", {"attention.scale=1"}),
    ],
)
def test_fault_of_recorded_candidate_is_named(reference: Path, fault: str, expected: set[str], tmp_path: Path) -> None:
    found = explained(reference, record(tmp_path / "tpu", fault, like=reference))
    assert found.verdict == ("fail" if expected else "pass"), found.reason
    assert {f"{c.setting}={c.candidate}" for c in found.causes} == expected
    assert [c.share for c in found.causes] == pytest.approx([1.0] * len(expected), abs=1e-3)


def test_floors_are_the_same_without_known_faults(reference: Path, tmp_path: Path) -> None:
    plain = record(tmp_path / "plain")
    held, own = (Golden.open(x).read_step(0).floors for x in (reference, plain))
    assert {key: floor.l2 for key, floor in held.items()} == {key: floor.l2 for key, floor in own.items()}
    found = explained(plain, record(tmp_path / "tpu", "dropped", like=plain))
    assert not found.causes
    assert any("causes=True" in note.text for note in found.notes)


def test_faults_of_a_golden_that_was_replaced_are_not_taken(reference: Path, tmp_path: Path) -> None:
    assert kept_faults(reference, 0, "transformer")
    other = record(tmp_path / "gpu", "dropped")
    shutil.copytree(place(reference), place(other))
    assert not kept_faults(other, 0, "transformer")


@pytest.mark.parametrize(("times", "expected"), [(1, {"vae.attention=by_frame"}),
                                                 (0.8, {"vae.attention=by_frame", "vae.scaling=none"})])  # fmt: skip
def test_fault_of_a_decoder_is_named(times: float, expected: set[str], tmp_path: Path) -> None:
    latents = drawn(1, WIDTH, 5, 2, 3)
    gpu, tpu = tmp_path / "gpu", tmp_path / "tpu"
    for where, z, options in ((gpu, latents, {"causes": True}), (tpu, latents * times, {"like": gpu})):
        vae = tame(Vae(where == tpu))
        go = recorded if "like" in options else referenced
        go(where, lambda vae=vae, z=z: vae.decode(z), vae=vae, **options)
    found = explained(gpu, tpu)
    named = {f"{c.setting}={c.candidate}": c for c in found.causes if c.evidence[0].kind == "fault"}
    assert (found.verdict, set(named)) == ("fail", expected)
    assert [c.share for c in named.values()] == pytest.approx([1.0] * len(expected), abs=1e-3)
