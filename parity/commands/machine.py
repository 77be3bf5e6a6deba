"""`parity info`: what this machine has, what it lacks, and the command that adds it.

Why. Most first runs fail on an installation: a torchax that does not import with this torch, a jax without its TPU
library, an extra that was left out. parity itself must not import them to find that out: the import is what breaks.

How. Versions and bounds come from the installed distributions' metadata; each
of torch, jax and torchax is imported in a process of its own, with a time limit, all at once.

Cost. Some seconds of importing in the three processes. jax holds the TPU while it is imported, so a TPU that
another process uses is reported as such.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from packaging.requirements import Requirement

from parity.report.document import Facts, Listing
from parity.signals import own_process
from parity.versions import installed

DISTRIBUTION = "tpu-parity"
EXTRAS = ("torch", "torchax", "tpu", "remote")
"""Those for users: not those that parity is developed with."""

NEEDED_TO_RUN = ("torch", "torchax")
"""The extras without which `parity run` cannot work."""

PACKAGES = (
    DISTRIBUTION, "numpy", "platformdirs", "safetensors", "rich", "typer", "torch", "diffusers", "transformers",
    "torchax", "jax", "jaxlib", "libtpu", "fsspec", "gcsfs", "s3fs", "jinja2",
)  # fmt: skip

PROBES = {
    "torch": (
        "import json, torch;"
        "print(json.dumps([torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]))"
    ),
    "jax": "import json, jax; print(json.dumps([f'{d.platform} ({d.device_kind})' for d in jax.devices()]))",
    "torchax": "import torchax; print('[]')",
}
"""Package -> a program that imports it and prints its devices as a JSON list."""

LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Probe:
    """The answer of a package in its own process.

    Attributes:
        imports: whether it could be imported and asked. devices: those it sees. error: why not, in one line.
    """

    imports: bool
    devices: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Findings:
    """This machine.

    Attributes:
        versions: by package, None where it is not installed. extras: what is wrong with each of `EXTRAS`; none where
            parity itself is not installed, so that its bounds are unknown. probes: by package. cpus: usable by this
            process.
    """

    versions: Mapping[str, str | None]
    extras: Mapping[str, tuple[str, ...]]
    probes: Mapping[str, Probe]
    cpus: int

    @property
    def can_run(self) -> bool:
        complete = all(self.extras.get(extra) == () for extra in NEEDED_TO_RUN)
        return complete and all(probe.imports for probe in self.probes.values())


def examine() -> Findings:
    """Look at this machine."""
    return Findings(
        {package: installed(package) for package in PACKAGES},
        {extra: tuple(wrong_with(extra)) for extra in EXTRAS} if installed(DISTRIBUTION) else {},
        probe_all(PROBES),
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    )


def wrong_with(extra: str) -> Iterator[str]:
    """What an extra asks for and is not there, `lacks jax`, or older, `jax is 0.5, wanted >=0.7`: lower bounds, so that
    nothing is ever downgraded."""
    versions = [(requirement, installed(requirement.name)) for requirement in needed(extra)]
    if absent := dict.fromkeys(requirement.name for requirement, version in versions if version is None):
        yield f"lacks {', '.join(absent)}"
    for requirement, version in versions:
        if version is not None and not requirement.specifier.contains(version, prereleases=True):
            yield f"{requirement.name} is {version}, wanted {requirement.specifier}"


def needed(extra: str, package: str = DISTRIBUTION) -> Iterator[Requirement]:
    """What an extra asks for, through the extras of other packages that it names (`jax[tpu]`).

    Of another package's extra only the names are given: its versions are that package's matter.
    """
    for requirement in map(Requirement, importlib.metadata.requires(package) or ()):
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}) or not marker.evaluate({"extra": extra}):
            continue
        if requirement.name != DISTRIBUTION:
            yield requirement if package == DISTRIBUTION else Requirement(requirement.name)
        if installed(requirement.name) is not None:
            for further in sorted(requirement.extras):
                yield from needed(further, requirement.name)


def probe_all(programs: Mapping[str, str], limit_s: float = LIMIT_S) -> dict[str, Probe]:
    """Run the programs side by side, each in a process of its own; whatever they do, this returns within the limit."""
    with ThreadPoolExecutor(len(programs)) as pool:
        answers = pool.map(functools.partial(_answer, limit_s), programs.values())
        return dict(zip(programs, answers, strict=True))


def _answer(limit_s: float, program: str) -> Probe:
    try:
        ended = subprocess.run(
            own_process(program), stdin=subprocess.DEVNULL, capture_output=True, errors="replace", timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return Probe(False, error=f"no answer within {limit_s:g} s")
    if ended.returncode:
        lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
        return Probe(False, error=lines[-1] if lines else f"ended with exit code {ended.returncode}")
    try:
        return Probe(True, tuple(json.loads(ended.stdout.splitlines()[-1])))
    except (IndexError, ValueError, TypeError):
        return Probe(False, error="gave no answer")


def listing(findings: Findings) -> Listing:
    """What `parity info` prints."""
    document = {"python": platform.python_version(), **asdict(findings), "can_run": findings.can_run}
    run = (
        "complete: `parity run` has all it needs"
        if findings.can_run
        else "incomplete: `parity run` cannot work, see below"
    )
    versions = [("python", platform.python_version())]
    versions += [(package, version or "not installed") for package, version in findings.versions.items()]
    devices = [("cpu", f"{findings.cpus} usable")]
    devices += [(_SEES[package], _devices(package, probe)) for package, probe in findings.probes.items()]
    extras = [(f"extra {extra}", _state(extra, wrong)) for extra, wrong in findings.extras.items()]
    if not extras:
        extras = [("extras", f"unknown: {DISTRIBUTION} is not installed, run `pip install -e .` in its folder")]
    return Listing(document, tuple(Facts(tuple(rows)) for rows in ([("run", run)], versions, devices, extras)))


_SEES = {"torch": "cuda", "jax": "jax devices", "torchax": "torchax imports"}
"""Package -> what its devices are called."""


def _devices(package: str, probe: Probe) -> str:
    if not probe.imports:
        return f"fail: {probe.error}"
    if package == "torchax":
        return "yes"
    return ", ".join(f"{count} x {device}" for device, count in Counter(probe.devices).items()) or "none"


def _state(extra: str, wrong: Sequence[str]) -> str:
    if not wrong:
        return "complete"
    return f"incomplete: {'; '.join(wrong)}; add it with: pip install '{DISTRIBUTION}[{extra}]'"
