"""What JAX is tracing: the same at two places of one trace, another inside a transformation; wherever JAX has it."""

from __future__ import annotations

import pytest

pytest.importorskip("torchax")
import jax
import jax.extend.core
import jax.numpy as jnp

from parity.paths.jax.tracing import trace_state


def test_a_trace_is_itself_and_not_the_one_inside_it() -> None:
    seen: list[object] = []

    def inner(x: jax.Array) -> jax.Array:
        seen.append(trace_state())
        return x

    def outer(x: jax.Array) -> jax.Array:
        seen.append(trace_state())
        jax.vmap(inner)(x)
        seen.append(trace_state())
        return x

    jax.jit(outer)(jnp.ones(2))
    before, inside, after = seen
    assert before == after != inside


def test_an_older_jax_has_it_in_another_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(jax.extend.core, "get_opaque_trace_state")
    monkeypatch.setattr(jax.core, "get_opaque_trace_state", lambda convention: f"older, {convention}", raising=False)
    assert trace_state() == "older, flax"
