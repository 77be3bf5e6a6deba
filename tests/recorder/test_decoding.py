"""`parity.record` in a script that decodes alone: a VAE in torch, and its port to JAX with the channels last."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

import parity
from parity.compare.diff import diff
from parity.compare.result import Result
from parity.compare.unlike import UNSEEN
from parity.errors import UsageError
from parity.golden import Golden

SCALING = 0.48


class Vae(torch.nn.Module):
    """Latents [B, 4, T, H, W] to frames [B, 3, T, H, W]; a frame sees the mean of those up to it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mix, self.out = torch.nn.Linear(4, 64), torch.nn.Linear(64, 3)
        self.config = {"scaling_factor": SCALING}

    def decode(self, z: torch.Tensor, return_dict: bool = True) -> Any:
        x = torch.nn.functional.silu(self.mix(z.movedim(1, -1)))
        seen = x.cumsum(dim=1) / torch.arange(1, x.shape[1] + 1).view(-1, 1, 1, 1)
        frames = self.out(seen).movedim(-1, 1)
        return SimpleNamespace(sample=frames) if return_dict else (frames,)


class JaxVae:
    """The same of latents [B, T, H, W, 4]."""

    def __init__(self, vae: Vae, *, frame_wise: bool = False, cut: bool = False) -> None:
        self.weights = {name: jnp.asarray(x.detach().numpy()) for name, x in vae.named_parameters()}
        self.frame_wise, self.cut = frame_wise, cut

    def decode(self, z: jax.Array) -> jax.Array:
        w = self.weights
        x = jax.nn.silu(z @ w["mix.weight"].T + w["mix.bias"])
        count = jnp.arange(1, x.shape[1] + 1).reshape(-1, 1, 1, 1)
        seen = x if self.frame_wise else x.cumsum(axis=1) / count
        frames = seen @ w["out.weight"].T + w["out.bias"]
        return frames.clip(-1, 1) if self.cut else frames


@pytest.fixture(scope="module")
def latents() -> torch.Tensor:
    return torch.randn(1, 4, 9, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def reference(latents: torch.Tensor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    where, vae = tmp_path_factory.mktemp("decoded") / "gpu", Vae()
    with torch.no_grad():
        plain = vae.decode(latents / SCALING).sample
        with parity.record(where, vae=vae):
            seen = vae.decode(latents / SCALING, return_dict=True).sample
            parity.tap("frames", ((seen + 1) * 127.5).round().to(torch.uint8))
    assert torch.equal(plain, seen)
    assert "decode" not in vars(vae)
    return where


def ported(where: Path, latents: torch.Tensor, **fault: Any) -> None:
    vae = JaxVae(Vae(), **fault)
    z = jnp.asarray(latents.movedim(1, -1).numpy())
    plain = vae.decode(z)
    with parity.record(where, vae=vae, layout="channels_last", like="gpu"):
        seen = vae.decode(z)
    assert (plain == seen).all()


def compared(reference: Path, where: Path, latents: torch.Tensor, **fault: Any) -> Result:
    ported(where, latents, **fault)
    return diff(reference, where)


def test_what_a_script_decodes_is_recorded_with_its_floors(reference: Path) -> None:
    golden = Golden.open(reference)
    assert (golden.steps, golden.complete, golden.provenance.settings["vae.scaling_factor"]) == ((-1,), True, "0.48")
    step = golden.read_step(-1)
    assert [r.key.site for r in step.records] == ["decode:in.z", "decode:out", "decode:out@read", "frames:out"]
    out = step.records[1]
    assert out.shape == (1, 9, 3, 16, 16), "frames first, so that bins of rows are of frames"
    assert step.floors[out.key].l2 > 0


def test_a_port_to_jax_agrees_whatever_its_layout(reference: Path, tmp_path: Path, latents: torch.Tensor) -> None:
    found = compared(reference, tmp_path / "tpu", latents / SCALING)
    assert found.verdict == "pass", found.reason
    assert Golden.open(tmp_path / "tpu").provenance.model == "JaxVae"


def test_a_port_that_cuts_to_what_a_picture_shows_agrees(
    reference: Path, tmp_path: Path, latents: torch.Tensor
) -> None:
    found = compared(reference, tmp_path / "tpu", latents / SCALING, cut=True)
    assert found.verdict == "pass", found.reason
    (site,) = [d for d in found.sites if d.key.site == "decode:out"]
    assert site.note == UNSEEN


def test_latents_that_were_never_divided_are_named(reference: Path, tmp_path: Path, latents: torch.Tensor) -> None:
    found = compared(reference, tmp_path / "tpu", latents)
    assert found.verdict == "fail"
    assert found.origin is not None
    assert found.origin.key.site == "decode:in.z"
    assert "the latents are not divided by scaling_factor 0.48" in found.causes[0].cause
    assert "noise_pred" not in str(found.reason), "no loop was recorded"


@pytest.mark.parametrize("cut", [False, True])
def test_frames_that_do_not_see_the_ones_before_are_told(
    cut: bool, reference: Path, tmp_path: Path, latents: torch.Tensor
) -> None:
    found = compared(reference, tmp_path / "tpu", latents / SCALING, frame_wise=True, cut=cut)
    assert found.origin is not None
    assert (found.verdict, found.origin.key.site) == ("fail", "decode:out")
    told = "at decode:out the difference lies in frames 1 to 8 of 9; the first, which sees no other, agrees"
    assert told in [str(note) for note in found.notes]


@pytest.mark.parametrize("given", [{}, {"vae": object()}, {"scheduler": object()}])
def test_nothing_to_record_is_said(given: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="transformer= of your own loop, or a vae="), parity.record(tmp_path, **given):
        pass


def test_a_decoder_that_is_never_called_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with parity.record(tmp_path / "g", vae=Vae()):
        pass
    assert "nothing was decoded" in capsys.readouterr().err
    assert not (tmp_path / "g").exists()
