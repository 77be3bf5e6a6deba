"""Keeping a run: both sides as goldens, the latents as ports write them, and the result.

    DIR/reference/  DIR/candidate/                    goldens (`parity info`, `parity diff`)
    DIR/reference_latents.safetensors  DIR/candidate_latents.safetensors      the final latents, stage-2 convention
    DIR/reference_embeddings.safetensors  DIR/candidate_embeddings.safetensors  their inputs, stage-1 convention
    DIR/request.json                                  prompt, files and ports of the command, for `parity explain`
    DIR/frames/reference/0000.png  ...                with `--stages ...,vae`: the decoded pictures (`frame_files`)
    DIR/result.json                                   what `--json` prints
    DIR/explain.json                                  what `parity explain DIR --json` printed
    DIR/report.html                                   what `parity report DIR` writes

A precision round after a structure round is kept the same way in DIR/precision/. Goldens are written step by step, so
a killed run leaves what it had finished.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from parity.commands.parts.frame_files import write_frames
from parity.compare.result import Result
from parity.errors import UsageError
from parity.golden import GoldenWriter
from parity.golden.facts import Facts
from parity.golden.records import StepRecords
from parity.paths.port.settings import PortInfo
from parity.paths.side import Pair
from parity.report.comparison import Comparison
from parity.report.formats import render
from parity.report.output import write
from parity.runs.like import carry
from parity.runs.request import Request
from parity.runs.stream import Ends
from parity.settings import Settings

PARTS = frozenset({"reference", "candidate", "precision", "frames", "request.json", "result.json", "explain.json"})
"""What a kept run's folder holds beside the files below."""
SUFFIXES = ("_latents.safetensors", "_embeddings.safetensors", "report.html")


class KeepRun:
    """See `parity.runs.sink.Sink`.

    Args:
        overwrite: replace a run that is kept there; it stays until both sides are loaded.

    Attributes:
        notes: what was not kept, and why. problems: what could not be written once both sides had run.

    Raises:
        UsageError: on making it, if the folder holds a run already, or with `overwrite` anything that is no run's.
    """

    def __init__(self, out: Path, request: Request, overwrite: bool = False) -> None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            if not overwrite:
                raise UsageError(
                    f"--out: '{out}' exists and is not an empty folder; name another, or replace a run with --overwrite"
                )
            _require_run(out, request)
        self.out, self.where, self.request = out, out, request
        self.writers: dict[str, GoldenWriter] = {}
        self.notes: list[str] = []
        self.problems: list[str] = []
        self._begun = False

    def _make(self, where: Path) -> None:
        """Make a folder of the run. Before the first, a run that is replaced goes, and the request is written."""
        try:
            if not self._begun and self.out.exists():
                _clear(self.out)
            where.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out: cannot make '{where}': {error.strerror}") from None
        if not self._begun:
            request = _request(self.request, self.out)
            write(self.out / "request.json", json.dumps(request) + "\n", "--out")
        self._begun = True

    def begin(self, facts: Pair[Facts], name: str) -> str | None:
        self.where = self.out / name if self.writers else self.out
        self._make(self.where)
        for role, side in (("reference", facts.reference), ("candidate", facts.candidate)):
            assert side.provenance is not None
            self.writers[role] = GoldenWriter(self.where / role, side.provenance)
            carry(str(self.where / role), side, side.provenance)
        return str(self.where.resolve())

    def step(self, reference: StepRecords, candidate: StepRecords) -> None:
        self.writers["reference"].write_step(reference)
        self.writers["candidate"].write_step(candidate)

    def finish(self, ends: Pair[Ends]) -> None:
        for writer in self.writers.values():
            with self._told():
                writer.finish()

    def frames(self, name: str, frames: np.ndarray) -> None:
        note = ""
        with self._told():
            self._make(self.out)
            note = write_frames(self.out / "frames" / name, frames)
        if note and note not in self.notes:
            self.notes.append(note)

    def result(self, result: Result) -> None:
        """Write result.json; a run that ended in preflight has no records to keep."""
        with self._told():
            self._make(self.out)
            write(self.out / "result.json", render(Comparison(result), "json"), "--out")

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """A file that cannot be written at the end of a run is a problem of its own, and no end of the verdict."""
        try:
            yield
        except UsageError as error:
            self.problems.append(str(error))


def _require_run(out: Path, request: Request) -> None:
    """Refuse to replace what is no kept run, or what the new one is made from."""
    if not out.is_dir() or out.is_symlink() or not (out / "request.json").is_file():
        raise UsageError(f"--overwrite: '{out}' is no kept run (it has no request.json); name another folder")
    for entry in sorted(out.iterdir()):
        if entry.is_symlink() or not _is_part(entry.name):
            raise UsageError(f"--overwrite: '{entry}' is no part of a kept run; move it, or name another folder")
    like = None if request.like is None else Path(request.like.where)
    for given in (request.stage1, request.stage2, request.inputs, like):
        if given is not None and given.resolve().is_relative_to(out.resolve()):
            raise UsageError(f"--overwrite: '{given}' is of the run that it would replace; name another folder")


def _is_part(name: str) -> bool:
    """Whether a file is a run's, or what a write of one that was killed left."""
    begun = tuple(f".{part}." for part in PARTS if "." in part)
    return name in PARTS or name.endswith(SUFFIXES) or name.startswith(begun)


def _clear(out: Path) -> None:
    """Remove a run that was found to be one: its result first, last the request by which it is known to be a run."""
    order = {"result.json": 0, "request.json": 2}
    for entry in sorted(out.iterdir(), key=lambda entry: order.get(entry.name, 1)):
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _request(request: Request, out: Path) -> dict[str, object]:
    """What `parity explain` needs beside the records to run the sides again."""

    def path(file: Path | None) -> str | None:
        return None if file is None else str(file.resolve())

    def port(entry: PortInfo | None) -> str | None:
        return None if entry is None else f"{entry.file}:{entry.text.rpartition(':')[2]}"

    ports = request.ports
    return {
        # Of a run that was like a golden the embeddings are those that its sides leave here.
        "stage1": path(request.stage1 if request.like is None else out / "reference_embeddings.safetensors"),
        "prompt": request.prompt,
        "model": None if ports.alone else request.model,
        "inputs": path(request.inputs),
        "reference_port": port(ports.reference),
        "port": port(ports.candidate),
        "reference_code": None if ports.reference is None else ports.reference.digest,
        "candidate_code": None if ports.candidate is None else ports.candidate.digest,
        "stages": list(request.stages),
        "stage2": path(request.stage2),
        "reference": _texts(request.reference),
        "candidate": _texts(request.candidate),
        "steps": request.steps,
        "seed": request.seed,
    }


def _texts(settings: Settings) -> list[str]:
    """Those that are not the defaults."""
    texts = settings.as_text().items()
    return [f"{name}={value}" for name, value in texts if settings.changed(name)]
