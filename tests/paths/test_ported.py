"""What is said of a port's inputs and of what its code keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parity.errors import UsageError
from parity.models.generic_inputs import LATENT
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


def test_a_reference_port_may_give_inputs_of_jax_in_bfloat16(tmp_path: Path) -> None:
    jnp = pytest.importorskip("jax.numpy")
    given = {LATENT: jnp.ones((1, 2, 3), jnp.bfloat16), "other": np.ones(2)}
    port = Port(module=torch.nn.Linear(1, 1), inputs=given)
    file = str(tmp_path / "port.py")
    entry = Entry(
        option="--reference-port", text=f"{file}:build", file=file, settings={}, digest="", function=lambda case: port
    )
    _, family = reference_case(entry, parse("torch"), None)
    assert [x.dtype for x in family.given.values()] == [torch.bfloat16, torch.float64]


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
