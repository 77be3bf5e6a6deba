"""Programs and refusals as libtpu 0.0.42.1 gave them for a v6e:2x2, without what nothing reads.

The programs: relu(x a), float32 at the highest precision, times b in bfloat16, a and b split over four devices;
`observed` also gives back the sum of the squares of the first product, and its maximum.
"""

from __future__ import annotations

from pathlib import Path

from parity.tpu.request import Answer

MODULES = frozenset({"", "blocks.0", "blocks.0.up", "blocks.0.down"})
REPLICA = 256 * 128 * 4
"""Bytes of the second product, which is added up over the devices."""

VMEM = """RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom:
Ran out of memory in memory space vmem while allocating on stack for %splash_mha_fwd_segmented_no_residuals.1 = \
(f32[4096,128]{1,0:T(8,128)}) custom-call(%constant.410), custom_call_target="tpu_custom_call", \
frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 4096, \\"block_kv\\": 4096, \\"block_kv_compute\\": 4096, \\"block_q_dkv\\": null}"
}}, metadata={op_name="jit(traced)/blocks.0/up/vmap(static_sparsity_splash)/jit(_splash_attention)/\
splash_mha_fwd_segmented_no_residuals/splash_mha_fwd_segmented_no_residuals/pallas_call" stack_frame_id=2499}. \
Scoped allocation with size 74.47M and limit 32.00M exceeded scoped vmem limit by 42.47M."""

VMEM_OF_A_PORT = """RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space vmem. \
Used 384.00M of 127.94M vmem. Exceeded vmem capacity by 256.06M.

  1. Size: 128.00M
     Operator: op_name="jit(traced)/pallas_call"
     XLA label: traced.1 = custom-call(pad_bitcast_fusion, broadcast_in_dim.5), custom_call_target="tpu_custom_call", \
frontend_attributes={kernel_metadata={}}"""

SMEM = (
    "RESOURCE_EXHAUSTED: Allocation (size=1591296) would exceed memory (size=1048576) :: #allocation3 "
    "[shape = 'u8[1591296]{0}', space=smem, size = 0x184800, scoped, tag = 'prefetched SMEM operand 0'] :: "
    "splash_mha_fwd_segmented_no_residuals.1"
)
HBM = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (97.32G) exceeds "
    "available HBM (31.25G)."
)


def text(name: str) -> str:
    """A program's text: `plain` or `observed`."""
    return (Path(__file__).parent / "data" / f"{name}.hlo").read_text(encoding="utf-8")


def answer(name: str = "", refusal: str = "") -> Answer:
    """What the compiling process would answer."""
    memory = {"arguments": 262144, "temporaries": 0, "output": 131072, "code": 119808, "aliased": 0}
    if name == "observed":
        memory |= {"output": 132128, "code": 140800}
    return Answer(
        text=text(name) if name else "",
        refusal=refusal,
        memory=memory,
        cost={"flops": 16891904.0, "bytes": 1e6 if name == "plain" else 1.5e6},
        modules=tuple(sorted(MODULES)),
        versions={"jax": "0.10.2", "libtpu": "0.0.42.1"},
        devices=4,
        kind="TPU v6 lite",
        seconds=1.0,
    )
