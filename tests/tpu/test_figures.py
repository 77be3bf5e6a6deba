"""Figures of recorded programs: products and their passes, collectives, kernels, the roofline."""

from __future__ import annotations

import pytest

from parity.tpu.chips import topology
from parity.tpu.collectives import Collective, collectives
from parity.tpu.figures import figures
from parity.tpu.hlo import parse
from parity.tpu.products import grouped, kernels, pattern_of, products
from tests.tpu.recorded import MODULES, REPLICA, answer, text

FLOPS = 2 * 256 * 128 * 128


def test_products_by_module_with_their_precision() -> None:
    found = list(grouped(products(parse(text("plain")), MODULES)))
    assert found == [
        ("blocks.*.up", "float32, six passes", 1, FLOPS),
        ("blocks.*.down", "bf16, one pass", 1, FLOPS),
    ]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("operand_precision={high,high}", "float32, three passes"),
        ("sharding={replicated}", "float32 rounded to bfloat16, one pass"),
    ],
)
def test_what_is_asked_for_says_how_many_passes(asked: str, said: str) -> None:
    other = text("plain").replace("operand_precision={highest,highest}", asked)
    assert next(iter(grouped(products(parse(other), MODULES))))[1] == said


BATCHED = """HloModule m
ENTRY %main (q: f32[4,64,32], k: f32[4,48,32]) -> f32[4,64,48] {
  %q = f32[4,64,32]{2,1,0} parameter(0)
  %k = f32[4,48,32]{2,1,0} parameter(1)
  ROOT %c = f32[4,64,48]{1,2,0} convolution(%q, %k), window={size=4 stride=3 lhs_dilate=4}, dim_labels=0bf_0oi->0bf
}
"""


def test_a_batch_written_as_a_window_is_counted_once() -> None:
    (product,) = products(parse(BATCHED), MODULES)
    assert (product.flops, product.fused) == (2 * 4 * 64 * 48 * 32, False)


KERNEL = """HloModule m
ENTRY %main (q: bf16[2,512,128], k: bf16[2,1024,128]) -> bf16[2,512,128] {
  %q = bf16[2,512,128]{2,1,0} parameter(0)
  %k = bf16[2,1024,128]{2,1,0} parameter(1)
  ROOT %splash_mha_fwd.3 = bf16[2,512,128]{2,1,0} custom-call(%q, %k, %k), custom_call_target="tpu_custom_call", \
metadata={op_name="jit(g)/blocks.0/up/splash_mha_fwd/pallas_call"}
}
"""


def test_a_kernel_is_named_with_its_module_and_its_products() -> None:
    (found,) = kernels(parse(KERNEL), MODULES)
    assert (found.name, found.module, found.count) == ("splash_mha_fwd", "blocks.*.up", 1)
    assert found.flops == 4 * 2 * 512 * 1024 * 128


def test_collectives_by_kind() -> None:
    assert collectives(parse(text("plain"))) == (Collective("all-reduce", 1, REPLICA),)


GATHER = """HloModule m
ENTRY %main (p: bf16[8,128]) -> bf16[32,128] {
  %p = bf16[8,128]{1,0} parameter(0)
  %s = (bf16[8,128]{1,0}, bf16[32,128]{1,0}) all-gather-start(%p), dimensions={0}
  ROOT %d = bf16[32,128]{1,0} all-gather-done(%s)
}
"""


def test_a_collective_that_is_begun_and_ended_is_one_of_its_result_s_size() -> None:
    assert collectives(parse(GATHER)) == (Collective("all-gather", 1, 32 * 128 * 2),)


def test_the_roofline_is_the_longest_of_three_times() -> None:
    found = figures("none", answer("plain"), topology("v6e:2x2"))
    line, chip = found.roofline, topology("v6e:2x2").chip
    assert line.products == pytest.approx(FLOPS * 7 / chip.flops)  # six passes and one
    assert line.memory == pytest.approx(1e6 / chip.bandwidth)
    assert line.links == pytest.approx(REPLICA / chip.links)
    assert (line.seconds, line.bound) == (line.memory, "memory")
    assert found.memory.total == 262144 + 131072 + 119808
    assert found.memory.limit == 32 << 30
    assert found.fusions == (2, 2)


def test_devices_of_a_chip_share_it() -> None:
    whole, half = (figures("none", answer("plain"), topology(name)) for name in ("v5p:2x2x1", "v4:2x2x1"))
    assert whole.memory.limit == 95 << 30
    assert half.memory.limit == 16 << 30


def test_indices_are_left_open() -> None:
    assert pattern_of("blocks.12.ff.net.0.proj") == "blocks.*.ff.net.*.proj"
