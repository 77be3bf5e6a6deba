"""`parity.record(..., causes=True)`: two recordings that never met have causes, as far as known faults were kept."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch

import parity
from parity.causes.explain import ExplainRequest, explain
from parity.compare.result import Result
from parity.errors import UsageError
from parity.golden import Golden
from parity.golden.faults import kept_faults, place
from parity.paths.worker.openers import Workers
from tests.recorder.pipelines import drawn, tame

pytestmark = pytest.mark.slow

sdpa = torch.nn.functional.scaled_dot_product_attention
TEXT, PADDED, IMAGE, WIDTH = 24, 9, 32, 32


class Attend(torch.nn.Module):
    """Attention of several heads, with the fault of a port that wrote it again."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.qkv, self.out, self.fault = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH), fault

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        seen = self.attend(q, k, v, mask[:, None, None, :]).transpose(1, 2).flatten(2)
        return self.out(seen)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if not self.fault:
            return sdpa(q, k, v, attn_mask=mask)
        scale = 1.0 if "scale" in self.fault else q.shape[-1] ** -0.5
        if "zeroed" in self.fault:
            k, v = k * mask.transpose(-1, -2), v * mask.transpose(-1, -2)
            mask = torch.ones_like(mask)
        if "dropped" in self.fault:
            mask = torch.ones_like(mask)
        if "filled" in self.fault:
            fill = -k.shape[-2] % 128
            k, v = (torch.nn.functional.pad(t, (0, 0, 0, fill)) for t in (k, v))
            mask = torch.nn.functional.pad(mask, (0, fill), value=True)
        logits = (q @ k.transpose(-1, -2) * scale).masked_fill(~mask, float("-inf"))
        return logits.softmax(-1) @ v


class Block(torch.nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.norm, self.attn = torch.nn.LayerNorm(WIDTH), Attend(fault)
        self.ff = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm(x), mask)
        return x + self.ff(self.norm(x))


class Transformer(torch.nn.Module):
    """Image tokens and masked text in one sequence."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(fault) for _ in range(3))
        self.head = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, text: torch.Tensor, mask: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        joint = torch.cat([x + timestep / 1000, text], 1)
        seen = torch.cat([torch.ones(1, x.shape[1], dtype=torch.bool), mask], 1)
        for block in self.blocks:
            joint = block(joint, seen)
        return self.head(joint[:, : x.shape[1]])


class Vae(torch.nn.Module):
    """Latents [B, C, T, H, W] to frames, with attention over all frames up to each one's own."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.decoder, self.fault = torch.nn.Linear(WIDTH, WIDTH), fault
        self.config = {"scaling_factor": 0.8}

    def decode(self, z: torch.Tensor) -> tuple[torch.Tensor]:
        frames, positions = z.shape[2], z.shape[3] * z.shape[4]
        rows = self.decoder(z.flatten(2).transpose(1, 2))[:, None]
        at = torch.arange(frames * positions) // positions
        if self.fault:
            logits = (rows @ rows.transpose(-1, -2) * WIDTH**-0.5).masked_fill(at[:, None] != at, float("-inf"))
            out = logits.softmax(-1) @ rows
        else:
            out = sdpa(rows, rows, rows, attn_mask=at[:, None] >= at[None, :])
        return (out[:, 0].transpose(1, 2).reshape(z.shape)[:, :3] * 1.5,)


def made(kind: type[Transformer] | type[Vae], fault: str = "") -> Any:
    """The same weights every time."""
    torch.manual_seed(0)
    return tame(kind(fault))


def generate(transformer: Transformer, scheduler: Any) -> torch.Tensor:
    scheduler.set_timesteps(2)
    latents, text = drawn(1, IMAGE, WIDTH), drawn(1, TEXT, WIDTH, seed=2)
    mask = (torch.arange(TEXT) < TEXT - PADDED)[None]
    with torch.no_grad():
        for t in scheduler.timesteps:
            predicted = transformer(latents, text, mask, t)
            latents = scheduler.step(predicted, t, latents, return_dict=False)[0]
    return latents


def recorded(where: Path, fault: str = "", **options: Any) -> torch.Tensor:
    transformer, scheduler = made(Transformer, fault), diffusers.FlowMatchEulerDiscreteScheduler()
    with parity.record(where, transformer=transformer, scheduler=scheduler, **options):
        return generate(transformer, scheduler)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("causes") / "gpu"
    seen = recorded(where, causes=True)
    plain = generate(made(Transformer), diffusers.FlowMatchEulerDiscreteScheduler())
    assert torch.equal(seen, plain)
    return where


def explained(reference: Path, candidate: Path) -> Result:
    with Workers() as openers:
        return explain(ExplainRequest(str(reference), str(candidate)), openers, lambda *_: None)


FILLED = "attention.block_padding=unmasked in blocks of 128"


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("dropped", {"attention.mask=none"}),
        ("zeroed", {"attention.mask=zero_kv"}),
        ("filled", {FILLED}),
        ("zeroed filled", {"attention.mask=zero_kv", FILLED}),
        ("scale", {"attention.scale=1"}),
    ],
)
def test_the_fault_of_a_recorded_candidate_is_named(
    reference: Path, fault: str, expected: set[str], tmp_path: Path
) -> None:
    recorded(tmp_path / "tpu", fault, like=reference)
    found = explained(reference, tmp_path / "tpu")
    assert found.verdict == "fail"
    assert {f"{c.setting}={c.candidate}" for c in found.causes} == expected
    assert sum(c.share for c in found.causes) == pytest.approx(1.0, abs=1e-3)


def test_the_floors_do_not_know_of_the_faults(reference: Path, tmp_path: Path) -> None:
    recorded(tmp_path / "plain")
    for step in (0, 1):
        held, plain = (Golden.open(x).read_step(step).floors for x in (reference, tmp_path / "plain"))
        assert {key: floor.l2 for key, floor in held.items()} == {key: floor.l2 for key, floor in plain.items()}


def test_an_innocent_candidate_has_no_cause(reference: Path, tmp_path: Path) -> None:
    recorded(tmp_path / "tpu", "written again", like=reference)
    found = explained(reference, tmp_path / "tpu")
    assert (found.verdict, found.causes) == ("pass", ())


def test_without_faults_it_is_said_how_to_have_them(tmp_path: Path) -> None:
    recorded(tmp_path / "gpu")
    recorded(tmp_path / "tpu", "dropped", like=tmp_path / "gpu")
    found = explained(tmp_path / "gpu", tmp_path / "tpu")
    assert not found.causes
    assert any("causes=True" in note.text for note in found.notes)


def test_faults_of_a_golden_that_was_replaced_are_not_taken(reference: Path, tmp_path: Path) -> None:
    shutil.copytree(reference, tmp_path / "gpu")
    assert kept_faults(tmp_path / "gpu", 0, "transformer")
    shutil.rmtree(tmp_path / "gpu")
    recorded(tmp_path / "gpu", "dropped")
    shutil.copytree(place(reference), place(tmp_path / "gpu"))
    assert not kept_faults(tmp_path / "gpu", 0, "transformer")


def test_a_candidate_keeps_no_faults(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="causes=True is for the reference"):
        recorded(tmp_path / "tpu", like=tmp_path, causes=True)


def test_a_decoder_that_attends_by_frame_is_named(tmp_path: Path) -> None:
    latents = drawn(1, WIDTH, 5, 2, 3)
    for where, fault, options in (("gpu", "", {"causes": True}), ("tpu", "by frame", {"like": tmp_path / "gpu"})):
        vae = made(Vae, fault)
        with torch.no_grad(), parity.record(tmp_path / where, vae=vae, **options):
            vae.decode(latents)
    found = explained(tmp_path / "gpu", tmp_path / "tpu")
    (cause,) = found.causes
    assert (found.verdict, cause.setting, cause.candidate) == ("fail", "vae.attention", "by_frame")
    assert cause.share == pytest.approx(1.0, abs=1e-3)


def test_a_decoder_that_attends_by_frame_is_named_beside_latents_that_were_not_divided(tmp_path: Path) -> None:
    latents = drawn(1, WIDTH, 5, 2, 3)
    for where, fault, options in (("gpu", "", {"causes": True}), ("tpu", "by frame", {"like": tmp_path / "gpu"})):
        vae = made(Vae, fault)
        with torch.no_grad(), parity.record(tmp_path / where, vae=vae, **options):
            vae.decode(latents / 0.8 if where == "gpu" else latents)
    found = explained(tmp_path / "gpu", tmp_path / "tpu")
    named = {f"{c.setting}={c.candidate}": c for c in found.causes if c.witnesses[0].kind == "signature"}
    assert set(named) == {"vae.attention=by_frame", "vae.scaling=none"}
    assert sum(c.share for c in named.values()) == pytest.approx(1.0, abs=1e-3)
