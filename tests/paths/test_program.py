"""The engine that compiles observed calls: what it traces again, what it keeps, what it forgets."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

from parity.paths.jax.program import PACKED, Programs, apart


class Counted:
    """A call that says how often its Python ran."""

    def __init__(self, factor: float = 2.0) -> None:
        self.factor, self.ran = factor, 0

    def __call__(self, weights: jax.Array, x: jax.Array) -> tuple[jax.Array, str]:
        self.ran += 1
        return weights * x * self.factor, f"traced as {x.shape}"


def given(n: int) -> tuple[jax.Array, jax.Array]:
    return jnp.float32(3.0), jnp.arange(n, dtype=jnp.float32)


def test_a_call_is_traced_once_for_each_key_and_signature() -> None:
    programs: Programs[str] = Programs(jit=True)
    call = Counted()
    for n in (2, 2, 3, 2):
        out, rest = programs.run("a", call, *given(n))
        assert out.tolist() == [6.0 * i for i in range(n)]
        assert rest == f"traced as ({n},)"
    assert (call.ran, programs.made) == (2, 2)
    other = Counted(factor=10.0)
    assert programs.run("b", other, *given(2))[0].tolist() == [0.0, 30.0]
    assert (other.ran, programs.made) == (1, 3)


def test_without_jit_each_call_is_made_as_it_is() -> None:
    programs: Programs[str] = Programs(jit=False)
    call = Counted()
    assert [programs.run("a", call, *given(2))[0].tolist() for _ in range(3)] == [[0.0, 6.0]] * 3
    assert (call.ran, programs.made) == (3, 0)


def test_the_oldest_program_is_forgotten_where_few_are_kept() -> None:
    programs: Programs[int] = Programs(jit=True, most=2)
    call = Counted()
    for key in (0, 1, 2, 1, 2, 0):
        programs.run(key, call, *given(2))
    assert [key for key, _ in programs.kept] == [2, 0]
    assert programs.made == 4


def test_an_observed_program_asks_for_room_and_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler of a CPU knows no option of a TPU's."""
    asked: list[Any] = []
    plain = jax.stages.Lowered.compile

    def compile(lowered: jax.stages.Lowered, compiler_options: Any = None) -> jax.stages.Compiled:
        asked.append(compiler_options)
        return plain(lowered, compiler_options)

    monkeypatch.setattr(jax.stages.Lowered, "compile", compile)
    programs: Programs[str] = Programs(jit=True, packed=lambda key: key == "observed")
    for key in ("observed", "plain"):
        assert programs.run(key, Counted(), *given(2))[0].tolist() == [0.0, 6.0]
    assert asked == [PACKED, None, None]


def test_a_call_that_fails_leaves_no_program() -> None:
    programs: Programs[str] = Programs(jit=True)

    def fails(weights: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        raise ValueError("the port's own")

    with pytest.raises(ValueError, match="the port's own"):
        programs.run("a", fails, *given(2))
    assert not programs.kept
    assert programs.run("a", Counted(), *given(2))[0].tolist() == [0.0, 6.0]


@pytest.mark.parametrize("tree", [(), (1, None), ([torch.zeros(2)], {"a": None, "b": torch.ones(1)}), {"x": 3.5}])
def test_what_is_taken_apart_is_put_together_again(tree: Any) -> None:
    tensors, shell = apart(tree)
    assert repr(shell.filled(tensors)) == repr(tree)


def test_a_tensor_and_none_in_its_place_are_told_apart() -> None:
    assert apart((torch.zeros(2), None))[1].key != apart((None, torch.zeros(2)))[1].key
    assert apart((1, torch.zeros(2)))[1].key != apart((2, torch.zeros(2)))[1].key
