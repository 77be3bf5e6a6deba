"""Which machine the snapshots were recorded on, so that its own numbers can be held to more than another's."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from pathlib import Path

from tests.snapshots.tolerance import OTHER, SAME, Tolerance

MACHINE = Path(__file__).with_name("machine.json")
PACKAGES = ("torch", "torchax", "jax", "jaxlib", "numpy", "diffusers", "transformers")


def this_machine() -> dict[str, str]:
    """The processor and the versions of what computes."""
    found = {"processor": _processor(), "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = ""
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def tolerance() -> Tolerance:
    """What this machine's numbers are held to."""
    return SAME if MACHINE.exists() and json.loads(MACHINE.read_text()) == this_machine() else OTHER


def remember() -> None:
    """Enter this machine as the one that the snapshots are recorded on."""
    MACHINE.write_text(json.dumps(this_machine(), indent=1) + "\n")
