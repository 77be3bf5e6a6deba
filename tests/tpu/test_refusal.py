"""Refusals in a person's words: which memory, by how much, what to change."""

from __future__ import annotations

from parity.tpu.refusal import refusal_of
from tests.tpu.recorded import HBM, MODULES, SMEM, VMEM, VMEM_OF_A_PORT

KERNEL = "splash_mha_fwd_segmented_no_residuals"


def test_blocks_that_are_too_large() -> None:
    found = refusal_of(VMEM, MODULES)
    assert (found.memory, found.kernel, found.module) == ("vmem", KERNEL, "blocks.0.up")
    assert found.sentence == (
        f"the kernel {KERNEL} in blocks.0.up needs 74.47 MiB of vector memory (VMEM), there are 32.00 MiB, 42.47 MiB "
        "too much: its blocks are 4096 x 4096: choose smaller ones with attention.block_q and attention.block_kv"
    )


def test_blocks_of_a_kernel_without_a_name() -> None:
    found = refusal_of(VMEM_OF_A_PORT, MODULES, ported=True)
    assert (found.memory, found.kernel) == ("vmem", "")
    assert found.sentence == (
        "a kernel needs 384.00 MiB of vector memory (VMEM), there are 127.94 MiB, 256.06 MiB too much: choose smaller "
        "blocks in the port"
    )


def test_parity_s_own_kernel_has_no_blocks_to_choose() -> None:
    found = refusal_of(VMEM.replace(KERNEL, "parity_reduce"), MODULES)
    assert found.sentence.endswith("42.47 MiB too much: observe fewer --sites")


def test_a_table_that_is_too_large() -> None:
    found = refusal_of(SMEM, MODULES)
    assert (found.memory, found.kernel) == ("smem", KERNEL)
    assert (found.needed, found.limit) == (1591296, 1048576)
    assert "choose larger ones" in found.sentence


def test_a_device_that_is_too_small() -> None:
    found = refusal_of(HBM, MODULES)
    assert (found.memory, found.kernel) == ("hbm", "")
    assert "needs 97.32 GiB of memory of a device, there are 31.25 GiB, 66.07 GiB too much" in found.sentence


def test_a_stage_s_advice_is_its_own() -> None:
    """A VAE has neither a mesh nor a kernel of its attention's to choose."""
    assert refusal_of(HBM, MODULES).sentence.endswith(
        "choose a larger mesh, a smaller video, dtype=bfloat16, attention.kernel=splash, or fewer --sites"
    )
    vae = refusal_of(HBM, MODULES, stage="vae").sentence
    assert vae.endswith("choose vae.tiling=true, a smaller video, dtype=bfloat16, or fewer --sites")
    assert refusal_of(HBM, MODULES, stage="text_encoder").sentence.endswith("choose dtype=bfloat16, or fewer --sites")


def test_what_is_not_known_is_passed_on() -> None:
    found = refusal_of("INTERNAL: something else\nmore", MODULES)
    assert found.sentence == "the compiler refuses the program: INTERNAL: something else"
    assert refusal_of("", MODULES).said == "no word"
