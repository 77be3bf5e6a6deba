"""`parity.record` in a torchax script of the public kind: weights and schedule moved to JAX, a kernel in the operator
table, `torchax.compile`; its recording is judged by the floors of a torch recording that never saw it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch

pytest.importorskip("torchax")
pytest.importorskip("diffusers")
import torchax
from torchax.ops import ops_registry

import parity
from parity.compare.diff import diff
from parity.golden import Golden
from parity.recorder.torchax_calls import InTorchax
from tests.support.scripts import drawn, generate, load, referenced

SDPA = torch.nn.functional.scaled_dot_product_attention


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parts, where = load(), tmp_path_factory.mktemp("scripts") / "gpu"
    referenced(where, lambda: generate(parts), **parts.named)
    return where


@pytest.fixture
def env() -> Iterator[Any]:
    found = torchax.default_env()
    before = dict(found._ops)  # older releases have no entry for it
    yield found
    found._ops.clear()
    found._ops.update(before)


def ported(env: Any, where: Path, *, compiled: bool, **options: Any) -> None:
    """Record the script as such ports run it."""
    parts = load()
    with env:
        for owner in (parts.transformer, parts.vae):
            owner.load_state_dict(env.to_xla(owner.state_dict()), assign=True)
            for module in owner.modules():  # state_dict leaves some out
                module._buffers = {name: env.to_xla(x) for name, x in module._buffers.items()}
        parts.embeds, parts.negative = parts.embeds.to("jax"), parts.negative.to("jax")
        if compiled:
            words = torchax.CompileOptions(jax_jit_kwargs={"static_argnames": ("return_dict",)})
            parts.transformer = torchax.compile(parts.transformer, words)
    with env:
        plain = generate(parts, noise=lambda x: x.to("jax"))
        with parity.record(where, **parts.named, **options):
            seen = generate(parts, noise=lambda x: x.to("jax"))
    assert np.array_equal(plain, seen), "recording changes no bit"


def test_an_observed_program_that_cannot_run_leaves_the_script_s_own(
    env: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def exhausted(*given: Any) -> Any:
        raise RuntimeError("RESOURCE_EXHAUSTED")

    monkeypatch.setattr("parity.recorder.torchax_calls.split", exhausted)  # as where its reductions do not fit
    ported(env, tmp_path / "tpu", compiled=True)
    assert "RESOURCE_EXHAUSTED; the script goes on" in capsys.readouterr().err


@pytest.mark.parametrize("warm", [False, True])
def test_what_is_around_a_call_inside_the_script_s_own_jit_is_recorded(
    warm: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Scheduler:
        def step(self, model_output: torch.Tensor, timestep: int, sample: torch.Tensor) -> torch.Tensor:
            return sample - 0.1 * model_output

    model, scheduler, x = torch.nn.Linear(8, 8), Scheduler(), drawn(1, 4, 8)

    def loop(predict: Any, x: torch.Tensor) -> None:
        for i in range(2):
            x = scheduler.step(predict(x), i, x)

    parts: dict[str, Any] = {"transformer": model, "scheduler": scheduler}
    referenced(tmp_path / "gpu", lambda: loop(model, x), **parts)
    with torchax.default_env():
        model.to("jax")
        compiled = torchax.interop.torch_view(jax.jit(torchax.interop.jax_view(lambda x: model(x))))
        if warm:
            compiled(x.to("jax"))
        with parity.record(tmp_path / "tpu", **parts):
            loop(compiled, x.to("jax"))
    assert "is called inside a jax.jit of the script's own" in capsys.readouterr().err
    found = diff(tmp_path / "gpu", tmp_path / "tpu")
    assert [s.latents.ratio < 3 for s in found.steps] == [True, True]
    assert found.verdict == "pass", found.reason


@pytest.mark.parametrize("compiled", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_port_agrees_with_the_torch_recording(compiled: bool, env: Any, reference: Path, tmp_path: Path) -> None:
    ported(env, tmp_path / "tpu", compiled=compiled, like=reference)
    golden = Golden.open(tmp_path / "tpu")
    assert (golden.provenance.side, golden.provenance.backend, golden.steps) == ("candidate", "port", (-1, 0, 1))
    assert golden.provenance.devices == ("cpu x 1",)
    found = diff(reference, tmp_path / "tpu")
    assert found.verdict == "pass", found.reason
    ours, theirs = ({r.key for r in Golden.open(g).read_step(1).records} for g in (reference, tmp_path / "tpu"))
    assert ours == theirs
    (noise,) = [d for d in found.sites if (d.key.step, d.key.branch, d.key.site) == (1, "", "loop:noise_pred")]
    assert 0 < noise.distance.rel_l2 < 1e-4


def wrong(query: Any, key: Any, value: Any, **_: Any) -> Any:
    return value * 0


def unscaled(query: Any, key: Any, value: Any, **_: Any) -> Any:
    return torch.softmax(query @ key.transpose(-2, -1), dim=-1) @ value


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [wrong, unscaled])
def test_wrong_kernel_in_the_operator_table_is_found_at_the_attention(
    kernel: Callable[..., Any], env: Any, reference: Path, tmp_path: Path
) -> None:
    env._ops[SDPA] = ops_registry.Operator(
        SDPA, kernel, is_jax_function=False, is_user_defined=True, needs_env=False, is_view_op=False
    )
    ported(env, tmp_path / "tpu", compiled=True, like=reference)
    found = diff(reference, tmp_path / "tpu")
    assert found.origin is not None
    assert (found.verdict, found.origin.key.module) == ("fail", "transformer_blocks.0.attn1.attention")


def test_schedule_that_stayed_with_torch_in_bfloat16_is_recorded() -> None:
    """As where bfloat16 is torch's default dtype and the scheduler was not moved."""
    x = torch.tensor([0.5, 1.5, 997.7], dtype=torch.bfloat16)
    held = InTorchax().host(x)
    assert (held.dtype, held.tolist()) == (np.float32, x.float().tolist())
