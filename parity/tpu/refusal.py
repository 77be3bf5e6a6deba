"""The compiler's refusals in a person's words: what did not fit, by how much, which setting to change.

The compiler reports them as text. What is recognised here was seen from libtpu 0.0.42 (`tests/tpu/refusals.py` holds
the texts); anything else is passed on in its own first line, and no setting is named for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from parity.paths.plan import LOOP_STAGE, VAE_STAGE
from parity.tpu.hlo import module_of

GIB = 1 << 30
MIB = 1 << 20
KIB = 1 << 10

_UNITS = {"": 1, "B": 1, "K": KIB, "M": MIB, "G": GIB}
_SIZE = r"([\d.]+)\s*([BKMG]?)"
_VMEM = re.compile(rf"(?:Scoped allocation with size {_SIZE} and limit|vmem\. Used {_SIZE} of) {_SIZE}")
_ALLOCATION = re.compile(r"Allocation \(size=(\d+)\) would exceed memory \(size=(\d+)\)")
_HBM = re.compile(rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)")
_KERNEL = re.compile(r"%?(\w*(?:mha|flash|pallas|kernel|splash)\w*)")
_OWN = "parity_reduce"
"""The kernel of `parity.hooks.reduce.tpu_kernel`."""
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_SMALLER = {
    LOOP_STAGE: "a larger mesh, a smaller video, dtype=bfloat16, attention.kernel=splash",
    VAE_STAGE: "vae.tiling=true, a smaller video, dtype=bfloat16",
}
"""What makes a stage's program need less of a device's memory; a mesh splits nothing but the transformer."""
_BLOCKS = re.compile(r"block_q\W+(\d+).*?block_kv\W+(\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a program does not compile.

    Attributes:
        memory: `hbm` (of the device), `vmem` (a core's, for a kernel's blocks), `smem` (for a kernel's tables), or
            empty where it is not a matter of memory. kernel: that needs it; empty for none or unknown.
        module: pattern of the module it lies in; may be empty. needed, limit: bytes; 0 where unknown.
        said: the compiler's own first line. advice: what to change; empty where that is not known.
    """

    memory: str
    kernel: str
    module: str
    needed: int
    limit: int
    said: str
    advice: str

    @property
    def sentence(self) -> str:
        """The refusal in one sentence."""
        if not self.memory:
            return f"the compiler refuses the program: {self.said}"
        of_a_kernel = "a kernel" if self.memory in ("vmem", "smem") else "the program"
        what = f"the kernel {self.kernel}" if self.kernel else of_a_kernel
        where = f" in {self.module}" if self.module else ""
        room = {"hbm": "memory of a device", "vmem": "vector memory (VMEM)", "smem": "scalar memory (SMEM)"}
        over = f", {size(self.needed - self.limit)} too much" if self.needed > self.limit else ""
        why = f": {self.advice}" if self.advice else ""
        return (
            f"{what}{where} needs {size(self.needed)} of {room[self.memory]}, there are {size(self.limit)}{over}{why}"
        )


def refusal_of(
    text: str, modules: frozenset[str] = frozenset(), ported: bool = False, stage: str = LOOP_STAGE
) -> Refusal:
    """Read the compiler's words.

    Args:
        modules: paths of the model's modules. ported: whether the program is a port's, whose blocks are its own.
        stage: that the program is of.
    """
    said = next((line.strip() for line in text.splitlines() if line.strip()), "no word")[:300]
    found = _OP_NAME.search(text)
    module = module_of(found[1], modules) if found else ""
    vmem, allocation, hbm = _VMEM.search(text), _ALLOCATION.search(text), _HBM.search(text)
    kernel = _kernel(text)
    if vmem is not None:
        blocks = _BLOCKS.search(text)
        own = f"its blocks are {blocks[1]} x {blocks[2]}: choose smaller ones" if blocks else "choose smaller blocks"
        advice = "observe fewer --sites" if kernel == _OWN else f"{own}{_where(ported)}"
        needed = _bytes(vmem[1] or vmem[3], vmem[2] or vmem[4])
        memory, limit = "vmem", _bytes(vmem[5], vmem[6])
    elif allocation is not None and "smem" in text.lower():
        advice = f"its table has an entry for each pair of blocks: choose larger ones{_where(ported)}"
        memory, needed, limit = "smem", int(allocation[1]), int(allocation[2])
    elif hbm is not None:
        advice = f"choose {_SMALLER.get(stage, 'dtype=bfloat16')}, or fewer --sites"
        memory, needed, limit = "hbm", _bytes(hbm[1], hbm[2]), _bytes(hbm[3], hbm[4])
        kernel = module = ""
    else:
        advice, memory, needed, limit = "", "", 0, 0
    return Refusal(memory=memory, kernel=kernel, module=module, needed=needed, limit=limit, said=said, advice=advice)


def _where(ported: bool) -> str:
    return " in the port" if ported else " with attention.block_q and attention.block_kv"


def size(count: int) -> str:
    """Bytes for people: `1.52 GiB`."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(count) >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count} bytes"


def _kernel(text: str) -> str:
    """The kernel that a refusal names: the last part of its op_name before `pallas_call`, else its instruction."""
    found = _OP_NAME.search(text)
    parts = found[1].split("/") if found else []
    if len(parts) > 1 and parts[-1] == "pallas_call":
        return "" if parts[-2].startswith("jit(") else parts[-2]
    named = _KERNEL.search(text)
    return re.sub(r"\.\d+$", "", named[1]) if named else ""


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])
