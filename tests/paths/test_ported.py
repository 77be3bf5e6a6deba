"""What is said of a port's inputs and of what its code keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parity.errors import UsageError
from parity.models.generic_inputs import LATENT, TIMESTEP
from parity.paths.live import reference_case
from parity.paths.port.load import Entry, checked
from parity.port import Port
from parity.settings import parse


def test_a_table_that_a_trace_made_and_kept_is_said() -> None:
    """The usual lazy cache: under plain `jax.jit`, which traces once, it works."""
    jax = pytest.importorskip("jax")
    pytest.importorskip("torchax")
    kept: dict[str, Any] = {}

    def call(weights: Any, x: Any) -> tuple[Any, None]:
        if "table" not in kept:
            kept["table"] = jax.numpy.cos(jax.numpy.arange(4.0))
        return weights * x * kept["table"], None

    from parity.paths.jax.program import Programs  # after torchax is known to be there

    programs, ones = Programs(jit=True), jax.numpy.ones(4)
    assert programs.run("first", call, ones, ones)[0].shape == (4,)
    with pytest.raises(UsageError, match="an array that an earlier trace of it made and kept"):
        programs.run("second", call, ones, ones)


def test_a_program_goes_on_with_the_rounded_value_that_it_hands_out() -> None:
    jnp = pytest.importorskip("jax.numpy")
    pytest.importorskip("torchax")
    from parity.paths.jax.program import Programs  # after torchax is known to be there

    def call(weights: Any, x: Any) -> tuple[Any, None]:
        half = x @ weights + weights[0]
        return (half, half.astype(jnp.float32)), None

    drawn = (np.random.default_rng(i).standard_normal((16, 16)) for i in range(2))
    half, wide = Programs(jit=True).run("rounded", call, *(jnp.asarray(x, jnp.bfloat16) for x in drawn))[0]
    assert np.array_equal(np.asarray(half, np.float32), np.asarray(wide))


def entry_of(folder: Path, given: dict[str, Any]) -> Entry:
    """A reference port that brings these inputs."""
    port, file = Port(module=torch.nn.Linear(1, 1), inputs=given), str(folder / "port.py")
    return Entry(
        option="--reference-port", text=f"{file}:build", file=file, settings={}, digest="", function=lambda case: port
    )


def test_a_reference_port_may_give_inputs_of_jax_in_bfloat16(tmp_path: Path) -> None:
    jnp = pytest.importorskip("jax.numpy")
    given = {LATENT: jnp.ones((1, 2, 3), jnp.bfloat16), "other": np.ones(2)}
    _, family = reference_case(entry_of(tmp_path, given), parse("torch"), None)
    assert [x.dtype for x in family.given.values()] == [torch.bfloat16, torch.float64]


@pytest.mark.parametrize(
    ("latents", "timestep", "called"),
    [
        (torch.bfloat16, torch.float32, torch.float32),  # bfloat16 has no 999
        (torch.bfloat16, torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.float32, torch.bfloat16),  # it says nothing of the run's dtype
        (torch.bfloat16, torch.int64, torch.bfloat16),
    ],
)
def test_a_timestep_keeps_the_dtype_that_a_port_gives_beside_its_latents(
    tmp_path: Path, latents: torch.dtype, timestep: torch.dtype, called: torch.dtype
) -> None:
    given = {LATENT: torch.ones(1, 2, 3, dtype=latents), TIMESTEP: torch.tensor([999], dtype=timestep)}
    settings = parse("torch", ["dtype=bfloat16"])
    case, family = reference_case(entry_of(tmp_path, given), settings, None)
    of_the_loop = torch.tensor([999.0])
    arguments = family.model_arguments(case, settings, torch.ones(1, 2, 3), of_the_loop, torch.bfloat16)
    assert arguments[TIMESTEP].dtype == called


@pytest.mark.parametrize(("where", "runs"), [("cpu", "torch"), ("jax", "torchax"), ("compiled", "torchax")])
def test_a_module_that_torchax_has_is_run_by_it(where: str, runs: str) -> None:
    torchax = pytest.importorskip("torchax")
    module: Any = torch.nn.Linear(2, 2)
    if where == "jax":
        with torchax.default_env():
            module = module.to("jax")
    elif where == "compiled":
        module = torchax.compile(module)
    assert checked(Port(module=module), "port.py:build").runs == runs
