"""`parity.record` in a script that decodes alone: a VAE in torch, and its port to JAX with the channels last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

pytest.importorskip("diffusers")

import parity
from parity.compare.diff import diff
from parity.compare.metrics import UNSEEN
from parity.golden import Golden
from tests.support.scripts import Vae, drawn, recorded, referenced

LATENTS = drawn(1, 4, 9, 16, 16, seed=1)
SCALED = LATENTS / 0.48


class JaxVae:
    """The port, of latents [B, T, H, W, 4]."""

    def __init__(self, *, frame_wise: bool = False, cut: bool = False) -> None:
        self.weights = {name: jnp.asarray(x.detach().numpy()) for name, x in Vae().named_parameters()}
        self.frame_wise, self.cut = frame_wise, cut

    def decode(self, z: jax.Array) -> jax.Array:
        w = self.weights
        x = jax.nn.silu(z @ w["mix.weight"].T + w["mix.bias"])
        count = jnp.arange(1, x.shape[1] + 1).reshape(-1, 1, 1, 1)
        seen = x if self.frame_wise else x.cumsum(axis=1) / count
        frames = seen @ w["out.weight"].T + w["out.bias"]
        return frames.clip(-1, 1) if self.cut else frames


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where, vae = tmp_path_factory.mktemp("decoded") / "gpu", Vae()

    def script() -> torch.Tensor:
        frames = vae.decode(SCALED).sample
        parity.tap("frames", ((frames + 1) * 127.5).round().to(torch.uint8))
        return frames

    with torch.no_grad():
        plain = script()
    assert torch.equal(plain, referenced(where, script, vae=vae))
    assert "decode" not in vars(vae)
    return where


def test_decoded_frames_are_recorded_with_their_floors(reference: Path) -> None:
    golden = Golden.open(reference)
    assert (golden.steps, golden.complete, golden.provenance.settings["vae.scaling_factor"]) == ((-1,), True, "0.48")
    step = golden.read_step(-1)
    assert [r.key.site for r in step.records] == ["decode:in.z", "decode:out", "decode:out@read", "frames:out"]
    out = step.records[1]
    assert out.shape == (1, 9, 3, 16, 16), "frames first, so that bins of rows are of frames"
    assert step.floors[out.key].l2 > 0


IN_FRAMES = "at decode:out the difference lies in frames 1 to 8 of 9; the first, which sees no other, agrees"


@pytest.mark.parametrize(
    ("latents", "port", "origin", "said"),
    [
        (SCALED, {}, None, ""),
        (SCALED, {"cut": True}, None, f"what is decoded {UNSEEN}"),
        (LATENTS, {}, "decode:in.z", "the latents are not divided by scaling_factor 0.48"),
        (SCALED, {"frame_wise": True}, "decode:out", IN_FRAMES),
        (SCALED, {"frame_wise": True, "cut": True}, "decode:out", IN_FRAMES),
    ],
)
def test_port_to_jax_whatever_its_layout(
    latents: torch.Tensor, port: dict[str, Any], origin: str | None, said: str, reference: Path, tmp_path: Path
) -> None:
    vae, z = JaxVae(**port), jnp.asarray(latents.movedim(1, -1).numpy())
    plain = vae.decode(z)
    seen = recorded(tmp_path / "tpu", lambda: vae.decode(z), vae=vae, layout="channels_last", like=reference)
    assert (plain == seen).all()
    assert Golden.open(tmp_path / "tpu").provenance.model == "JaxVae"
    found = diff(reference, tmp_path / "tpu")
    assert found.verdict == ("fail" if origin else "pass"), found.reason
    assert (None if found.origin is None else found.origin.key.site) == origin
    assert any(said in note for note in (*(str(n) for n in found.notes), *(c.cause for c in found.causes), ""))
    assert "noise_pred" not in str(found.reason), "no loop was recorded"


class Noisy(torch.nn.Module):
    """A decoder that takes more than latents, and draws."""

    def __init__(self) -> None:
        super().__init__()
        self.out = torch.nn.Conv2d(4, 3, 1)

    def decode(self, z: torch.Tensor, temb: torch.Tensor, num_frames: int = 1) -> Any:
        frames = self.out(z) * temb + 0.1 * torch.randn(z.shape[0], 3, *z.shape[2:])
        return (frames.unflatten(0, (-1, num_frames)),)


@pytest.mark.parametrize("named", [True, False])
def test_decoder_that_is_given_more_than_latents(named: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    vae, z, given = Noisy(), drawn(4, 4, 8, 8), {"temb": torch.tensor(2.0), "num_frames": 2}

    def decode() -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(1)
        made = vae.decode(z=z, **given) if named else vae.decode(z, **given)
        return made[0], torch.randn(3)

    with torch.no_grad():
        plain, after = decode()
    seen, then = referenced(tmp_path / "a", decode, vae=vae)
    assert torch.equal(plain, seen)
    assert torch.equal(after, then), "recording draws nothing"
    floors = {key.site: floor for key, floor in Golden.open(tmp_path / "a").read_step(-1).floors.items()}
    assert 0 < floors["decode:out"].l2 < 1e-4 * float(np.linalg.norm(seen.numpy()))


def test_frames_that_are_not_finite_on_either_side_are_no_pass(tmp_path: Path) -> None:
    vae = Vae()
    vae.out.bias.data[0] = torch.nan
    for side, record in (("gpu", referenced), ("tpu", recorded)):
        record(tmp_path / side, lambda: vae.decode(SCALED).sample, vae=vae)
    result = diff(tmp_path / "gpu", tmp_path / "tpu")
    assert result.verdict == "inconclusive"
    assert result.reason == "the reference itself is not finite at decode output (vae)"


def test_decoder_that_is_never_called_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path / "g", lambda: None, vae=Vae())
    assert "nothing was decoded" in capsys.readouterr().err
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize(("seed", "verdict"), [(2, "pass"), (3, "fail")])
def test_two_videos_are_decoded_at_once_or_one_after_the_other(seed: int, verdict: str, tmp_path: Path) -> None:
    vae, two = Vae(), [LATENTS / 0.48, drawn(1, 4, 9, 16, 16, seed=2) / 0.48]
    other = drawn(1, 4, 9, 16, 16, seed=seed) / 0.48
    referenced(tmp_path / "gpu", lambda: vae.decode(torch.cat(two)), vae=vae)
    recorded(tmp_path / "tpu", lambda: [vae.decode(z) for z in (two[0], other)], vae=vae)
    found = diff(tmp_path / "gpu", tmp_path / "tpu")
    assert found.verdict == verdict, found.reason
    assert (found.origin is None) or found.origin.key.call == 1


class Pictures(torch.nn.Module):
    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return torch.tanh(z.repeat_interleave(2, -1))


@pytest.mark.parametrize("size", [1, 2, 6])
def test_pictures_are_decoded_in_batches_of_any_size(size: int, tmp_path: Path) -> None:
    vae, latents = Pictures(), drawn(6, 4, 4, 4)
    referenced(tmp_path / "gpu", lambda: vae.decode(latents), vae=vae)
    recorded(tmp_path / "tpu", lambda: [vae.decode(z) for z in latents.split(size)], vae=vae)
    found = diff(tmp_path / "gpu", tmp_path / "tpu")
    assert found.verdict == "pass", found.reason
