"""Modules at fault: found by a fake judge in few probes, resumed, and on the tiny model inside the compiled program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parity.bisect.modules import Judge, Modules
from parity.bisect.search import Found, search
from parity.bisect.state import State
from parity.bisect.strategy import Outcome, strategy
from parity.errors import UnjudgedError, UsageError

NAMES = tuple(f"blocks.{i}" for i in range(54))


class Faulty:
    """Good once all of `faults` are replaced; dies at the probe numbered `dies`."""

    def __init__(self, *faults: str, dies: int = -1) -> None:
        self.faults, self.dies, self.asked = set(faults), dies, list[tuple[str, ...]]()

    def __call__(self, replaced: tuple[str, ...]) -> tuple[Outcome, str]:
        if len(self.asked) == self.dies:
            raise KeyboardInterrupt
        self.asked.append(replaced)
        return ("good", "0.5 x") if self.faults <= set(replaced) else ("bad", "40 x")


def culprits(path: Path, judge: Judge, names: tuple[str, ...] = NAMES) -> Found[str]:
    with State.open(path, "modules", {}) as state:
        return search(Modules(names, judge, "; preflight: noise: other"), strategy("fewest"), state)


def test_a_pair_of_54(tmp_path: Path) -> None:
    judge = Faulty("blocks.7", "blocks.41")
    found = culprits(tmp_path / "state", judge)
    assert found.answer == ("blocks.7", "blocks.41")
    assert len(found.probes) == len(judge.asked) <= 20
    assert (found.probes[0].subject, found.probes[0].outcome, found.probes[0].evidence) == ((), "bad", "40 x")


def test_a_killed_search_asks_nothing_twice(tmp_path: Path) -> None:
    path, killed = tmp_path / "state", Faulty("blocks.7", "blocks.41", dies=5)
    with pytest.raises(KeyboardInterrupt):
        culprits(path, killed)
    resumed = Faulty("blocks.7", "blocks.41")
    found = culprits(path, resumed)
    assert found.answer == ("blocks.7", "blocks.41")
    assert not set(killed.asked) & set(resumed.asked)
    assert [p.subject for p in found.probes] == [*killed.asked, *resumed.asked]
    assert len(killed.asked) == 5


def test_nothing_to_look_for_and_nothing_that_helps(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no difference to look for: with no module replaced 0\.5 x"):
        culprits(tmp_path / "same", Faulty())
    with pytest.raises(UnjudgedError, match=r"replacing all 54 modules .* \(40 x\): .*; preflight: noise: other"):
        culprits(tmp_path / "elsewhere", Faulty("the loop"))


def test_levels() -> None:
    from parity.bisect.transplant import Level, level_of

    tree = ("embed", "blocks.0", "blocks.0.attn", "blocks.0.attn.to_q", "blocks.0.ff", "blocks.1", "blocks.1.ff", "out")
    assert level_of(tree) == Level(("embed", "blocks.0", "blocks.1", "out"))
    inside = level_of(tree, "blocks.0")
    assert inside == Level(("blocks.0.attn", "blocks.0.ff"), ("embed", "blocks.1", "out"))
    assert level_of(tree, "blocks.0.attn") == Level(
        ("blocks.0.attn.to_q",), ("embed", "blocks.1", "out", "blocks.0.ff")
    )
    with pytest.raises(UsageError, match=r"no module 'block\.0'; near: blocks\.0"):
        level_of(tree, "block.0")
    with pytest.raises(UsageError, match="no module below 'out'"):
        level_of(tree, "out")


def test_the_tokens_are_laid_out_as_the_references_are() -> None:
    from parity.bisect.transplant import aligned
    from parity.settings import parse

    given = parse("torchax", ["text.reorder=concatenate", "vision_states=none", "rope=cached"])
    assert aligned(parse("torch", ["vision_states=none"]), given).as_text() == {
        **given.as_text(),
        "text.reorder": "valid_first",
    }


def weight(block: int) -> str:
    return f"transformer_blocks.{block}.ff.net.2.weight"


def test_a_wrong_weight_and_a_pair_in_one_compiled_program(
    tmp_path: Path, tiny_side: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from parity.bisect.transplant import Transplant, prepared
    from parity.paths.side import Pair
    from tests.paths.sides import live

    given, learn = [], Transplant.learn

    def kept(made: Transplant, activations: Any) -> None:
        given.append(activations)
        learn(made, activations)

    monkeypatch.setattr(Transplant, "learn", kept)
    reference, candidate = tiny_side("torch"), tiny_side("torchax")
    params, modules = candidate.backend.params, tuple(m for m in reference.modules if m)
    sides = Pair(live(reference, "reference"), live(candidate, "candidate"))
    with monkeypatch.context() as patch:
        patch.setitem(params, weight(2), params[weight(2)] * 1.01)
        made = prepared(sides, modules, 0, "", lambda *a: None)
        found = culprits(tmp_path / "single", made.judge, made.modules)
        assert len(made.modules) == 13
        assert found.answer == ("transformer_blocks.2",)
        assert len(found.probes) <= 4 + 3  # log2 13, none, all, and the one alone
        # The whole of the reference's activations gives the whole of its result, to the bit or nearly.
        assert found.probes[1].subject == made.modules
        assert found.probes[1].outcome == "good"
    with monkeypatch.context() as patch:
        for block in (1, 3):
            patch.setitem(params, weight(block), params[weight(block)] * 1.01)
        made.learn(given[0])
        found = culprits(tmp_path / "pair", made.judge, made.modules)
        assert found.answer == ("transformer_blocks.1", "transformer_blocks.3")
        assert len(found.probes) <= 13
    assert sides.candidate.replacing.caller.compiled == 2  # one that learns, one for every probe of either search
    assert made.left_out == {}


def test_an_eager_torch_candidate_within_a_block(
    tmp_path: Path, tiny_side: Callable[..., Any], tiny_case: Any, tiny_inputs: Callable[..., Any]
) -> None:
    import torch

    from parity.bisect.transplant import prepared
    from parity.models.registry import family_of
    from parity.paths.reference import load_reference
    from parity.paths.side import Pair
    from parity.settings import parse
    from tests.paths.sides import live

    other = load_reference(family_of(tiny_case.folder), tiny_case, parse("torch"), tiny_inputs())
    model = other.backend.module()
    with torch.no_grad():
        model.get_parameter(weight(2)).mul_(1.01)
        model.get_parameter(weight(1)).mul_(1.01)  # outside of what is searched: held right in every run
        model.get_submodule("transformer_blocks.2.attn.to_out.0").weight[0, 0] = float("nan")
    modules = tuple(m for m in other.modules if m)
    sides = Pair(live(tiny_side("torch"), "reference"), live(other, "candidate"))
    made = prepared(sides, modules, 0, "transformer_blocks.2", lambda *a: None)
    found = culprits(tmp_path / "state", made.judge, made.modules)
    assert found.answer == ("transformer_blocks.2.attn", "transformer_blocks.2.ff")
