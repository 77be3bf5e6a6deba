"""What a declared feature cache excuses: its blocks at the steps that skip them, and nothing else."""

from __future__ import annotations

from parity.compare.judge import Judge, excused, excuses
from parity.golden import Key, StepRecords
from parity.settings import Difference
from tests.support.made import Walk, noise, tensor

CACHE = excuses([Difference("cache", "off", "deepcache:1,3,2")])


def key(site: str, step: int) -> Key:
    return Key("transformer", step, "cond", site)


def test_skipped_blocks_and_what_the_residual_is_handed_to_are_excused_at_skipped_steps_alone() -> None:
    sites = (
        "transformer_blocks.1:out",
        "transformer_blocks.2.attn.attention:in.query",
        "transformer_blocks.3:in.hidden_states",
        "transformer_blocks.3:in.encoder_hidden_states@text",
    )
    for site in sites:
        assert excused(key(site, 1), CACHE)
        assert not excused(key(site, 2), CACHE)
    for site in (
        "transformer_blocks.0:out",
        "transformer_blocks.3:out",
        "transformer_blocks.3:in.temb",
        "proj_out:out",
    ):
        assert not excused(key(site, 1), CACHE)
    assert not excused(key("transformer_blocks.10:out", 1), CACHE)


def test_both_sides_caches_count() -> None:
    both = excuses([Difference("cache", "deepcache:0,1,2", "deepcache:2,3,3")])
    assert [excused(key("transformer_blocks.0:out", step), both) for step in (1, 2, 4, 6)] == [
        True,
        False,
        False,
        False,
    ]
    assert [excused(key("transformer_blocks.2:out", step), both) for step in (1, 2, 3)] == [True, True, False]
    assert excuses([Difference("cache", "off", "off")]) == ()


def judged(step: int) -> dict[str, str]:
    """Block 1 is observed on the reference alone; the others agree."""
    walk = Walk(step)
    for block in (0, 3):
        walk.site(f"transformer_blocks.{block}:out")
    ours, theirs = walk.steps()
    extra = tensor("transformer_blocks.1:out", noise(0, (1, 8, 4)), step=step)
    ours = StepRecords(step, (*ours.records, extra), ours.floors)
    return {d.key.module: d.verdict for d in Judge(CACHE).step(ours, theirs)}


def test_an_absent_block_is_no_fault_where_it_is_skipped_and_one_where_it_is_not() -> None:
    assert judged(1)["transformer_blocks.1"] == "harmless"
    assert judged(2)["transformer_blocks.1"] == "fail"
    assert judged(1)["transformer_blocks.3"] == "pass"
