"""The versions of installed packages; imports none of them."""

from __future__ import annotations

import functools
import importlib.metadata
import platform

_PACKAGES = ("torch", "torchax", "jax", "jaxlib", "diffusers", "transformers", "numpy", "tpu-parity")


def installed(package: str) -> str | None:
    """The installed version of a package; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """Versions of the packages that decide numbers, and of Python: for a golden's provenance."""
    return {"python": platform.python_version(), **_of_packages()}


@functools.cache
def _of_packages() -> dict[str, str]:
    found = {name: installed(name) for name in _PACKAGES}
    return {name: version for name, version in found.items() if version}
