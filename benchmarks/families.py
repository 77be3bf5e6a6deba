"""The table of families: transformers of diffusers' own classes that parity has no line for, compared as they are.

    python benchmarks/families.py [--family NAME]... [--how NAME]... [--state FILE] [--markdown FILE]

Each row is a tiny checkpoint folder of one class (`tiny_families.py`: a config of two blocks, weights drawn by
parameter name), each column `parity run --model FOLDER --sites all` with these options. Both sides run diffusers' own
code, torch against torchax, so that anything but a pass is a false alarm, a crash, or has a reason that the table says.
Outcomes are kept in the state file as they come, so that a stopped run goes on; half a minute each, on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before torch is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import diffusers

from parity.paths.worker.extras import quieten

quieten()
diffusers.utils.logging.set_verbosity_error()

from tiny_families import CONFIGS, make

from parity.errors import ParityError
from parity.paths.live import Host
from parity.paths.plan import Role
from parity.runs import compare
from parity.runs.request import Request
from parity.settings import parse


@dataclass(frozen=True, slots=True)
class How:
    """One column: options of a run.

    Attributes:
        dtype: of both sides. jit: of the candidate. forcing: none or module.
    """

    dtype: str
    jit: str
    forcing: str

    @property
    def title(self) -> str:
        """As the table has it."""
        way = "jit" if self.jit == "true" else "eager"
        return f"{self.dtype} {way}" + (", forced" if self.forcing == "module" else "")


HOWS = {
    f"{dtype}-{way}{suffix}": How(dtype, jit, forcing)
    for suffix, forcing in (("", "none"), ("-module", "module"))
    for dtype in ("float32", "bfloat16")
    for way, jit in (("jit", "true"), ("eager", "false"))
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one run.

    Attributes:
        verdict: pass, fail, unjudged, refused (a message instead of a verdict) or crashed. said: the reason.
        sites: that were compared. noise_pred, floor: relative L2 of the first step.
    """

    family: str
    how: str
    verdict: str
    said: str
    sites: int = 0
    noise_pred: float | None = None
    floor: float | None = None
    seconds: float = 0.0

    def line(self) -> str:
        """For people."""
        figures = "" if self.noise_pred is None else f", {self.sites} sites, noise_pred {self.noise_pred:.1e}"
        said = "" if self.verdict == "pass" else f": {self.said}"
        return f"{self.family:9} {self.how:22} {self.verdict}{figures} ({self.seconds:.0f} s){said}"


@dataclass
class Here:
    """Opens both sides in this process; see `parity.paths.worker.openers.Openers`."""

    host: Host = field(default_factory=Host)

    def of(self, role: Role) -> Any:
        return self.host


def quiet(text: str, done: int | None = None, total: int | None = None) -> None:
    """No progress."""


def outcome(family: str, how: str) -> Outcome:
    """Run one family in one way."""
    began, chosen = time.perf_counter(), HOWS[how]
    shared = [f"dtype={chosen.dtype}"]
    with tempfile.TemporaryDirectory() as folder:
        request = Request(
            str(make(Path(folder) / family, family)),
            parse("torch", shared),
            parse("torchax", [*shared, f"jit={chosen.jit}"]),
            sites="all",
            forcing=chosen.forcing,
        )
        try:
            result = compare.run(request, quiet, openers=Here())
        except ParityError as error:
            seconds = time.perf_counter() - began
            said = str(error).replace(folder, "FOLDER")
            return Outcome(family=family, how=how, verdict="refused", said=said, seconds=seconds)
        except Exception as error:  # a defect, shown as such
            seconds = time.perf_counter() - began
            said = f"{type(error).__name__}: {error}"
            return Outcome(family=family, how=how, verdict="crashed", said=said, seconds=seconds)
    (step,) = result.steps
    return Outcome(
        family=family,
        how=how,
        verdict=result.verdict,
        said=result.reason,
        sites=len(result.sites),
        noise_pred=step.noise_pred.rel_l2,
        floor=step.noise_pred.floor,
        seconds=time.perf_counter() - began,
    )


def outcomes(families: Sequence[str], hows: Sequence[str], known: Mapping[str, Outcome]) -> Iterator[Outcome]:
    """Column by column, so that a stopped run has every family; those already known are handed out again."""
    for how in hows:
        for family in families:
            yield known.get(f"{family} {how}") or outcome(family, how)


HEAD = """# Families

Printed by `make families`: transformers of diffusers' own classes that parity has no line for, each from a folder with
a config of two blocks (`benchmarks/tiny_families.py`), weights and inputs made as [models.md](models.md) has it. Each
cell is `parity run --model FOLDER --sites all` with both sides in that dtype and the candidate under `jax.jit` or eager
(`--candidate jit=false`), *forced* with `--forcing module` too: the verdict and noise_pred's relative L2. Both sides
run the same code, so that anything but a pass is a false alarm or has the reason below the table. `-`: not run.

"""


def table(found: Sequence[Outcome]) -> str:
    """The document's table, what did not pass in words below it, and what it was measured on."""
    hows = [h for h in HOWS if any(o.how == h for o in found)]
    by = {(o.family, o.how): o for o in found}
    lines = ["| class | " + " | ".join(HOWS[h].title for h in hows) + " |", "|---" * (len(hows) + 1) + "|"]
    for family in dict.fromkeys(o.family for o in found):
        cells = [_cell(by.get((family, h))) for h in hows]
        lines.append(f"| {CONFIGS[family]['_class_name']} | " + " | ".join(cells) + " |")
    reasons = {(o.family, o.said): o for o in found if o.verdict != "pass"}
    if reasons:
        lines += ["", *(f"- {CONFIGS[family]['_class_name']}: {said}" for family, said in reasons)]
    passed = sum(o.verdict == "pass" for o in found)
    packages = ", ".join(f"{name} {version(name)}" for name in ("diffusers", "torch", "torchax", "jax"))
    lines += ["", f"{passed} of {len(found)} passed. Measured on a CPU ({platform.machine()}), {packages}."]
    return "\n".join(lines) + "\n"


def _cell(o: Outcome | None) -> str:
    if o is None:
        return "-"
    return o.verdict if o.noise_pred is None else f"{o.verdict}, {o.noise_pred:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--family", action="append", choices=tuple(CONFIGS))
    parser.add_argument("--how", action="append", choices=tuple(HOWS))
    parser.add_argument("--state", type=Path, default=Path(".families.json"))
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    rows = json.loads(given.state.read_text()) if given.state.exists() else {}
    known = {name: Outcome(**row) for name, row in rows.items()}
    found = []
    for each in outcomes(given.family or tuple(CONFIGS), given.how or tuple(HOWS), known):
        print(each.line(), flush=True)
        found.append(each)
        known[f"{each.family} {each.how}"] = each
        given.state.write_text(json.dumps({name: asdict(o) for name, o in known.items()}, indent=1))
    if given.markdown is not None:
        given.markdown.write_text(HEAD + table(found))


if __name__ == "__main__":
    main()
