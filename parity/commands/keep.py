"""Keeping a run: both sides as goldens, the latents as ports write them, and the result.

    DIR/reference/  DIR/candidate/                    goldens (`parity info`, `parity diff`)
    DIR/reference_latents.safetensors  DIR/candidate_latents.safetensors      the final latents, stage-2 convention
    DIR/reference_embeddings.safetensors  DIR/candidate_embeddings.safetensors  their inputs, stage-1 convention
    DIR/request.json                                  prompt, files and ports of the command, for `parity explain`
    DIR/frames/reference/0000.png  ...                with `--stages ...,vae`: the decoded pictures (`write_frames`)
    DIR/result.json                                   what `--format json` prints
    DIR/found.json                                    the same for `parity explain`
    DIR/explain.json                                  what `parity explain DIR --format json` printed
    DIR/report.html                                   what `parity report DIR` writes

A precision check after a logic check is kept the same way in DIR/precision/. Goldens are written step by step, so
a killed run leaves what it had finished.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from parity.cache import cache_dir
from parity.causes.request import FOLDER
from parity.compare.frames import frames_of, pictures
from parity.compare.result import Result, result_text
from parity.errors import UsageError
from parity.golden import GoldenWriter
from parity.paths.plan import Pair
from parity.records import Facts, Provenance, StepRecords
from parity.report.comparison import Comparison
from parity.report.formats import render
from parity.report.output import tell, write
from parity.runs.given import carry
from parity.runs.request import FILE, FOUND, RESULT, Request, RunSpec
from parity.runs.sides import Sink

T = TypeVar("T")


class KeepRun(Sink):
    """See `parity.runs.sides.Sink`.

    Attributes:
        problems: what could not be written once both sides had run. kept: whether the run can be found again.

    Raises:
        UsageError: on making it, if something is in the folder.
    """

    problems: tuple[str, ...] = ()
    kept = True

    def __init__(self, out: Path, request: Request) -> None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(f"--out: '{out}' exists and is not an empty folder; name another, or delete it")
        self.out, self.where, self.request = out, out, request
        self.writers: dict[str, GoldenWriter] = {}
        self._provenance: dict[str, Provenance] = {}

    def _make(self, where: Path) -> None:
        """Make a folder of the run, with the first of them its request."""
        try:
            where.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out: cannot make '{where}': {error.strerror}") from None
        if not (self.out / FILE).exists():
            write(self.out / FILE, RunSpec.of(self.request).to_json() + "\n", "--out")

    def begin(self, facts: Pair[Facts], name: str) -> str | None:
        self.where = self.out / name if self.writers else self.out
        self._make(self.where)
        for role, side in (("reference", facts.reference), ("candidate", facts.candidate)):
            self._provenance[role] = side.provenance
            self.writers[role] = GoldenWriter(self.where / role, side.provenance)
            carry(str(self.where / role), side, side.provenance)
        return str(self.where.resolve())

    def step(self, reference: StepRecords, candidate: StepRecords) -> None:
        self.writers["reference"].write_step(reference)
        self.writers["candidate"].write_step(candidate)

    def closer(self, reference: StepRecords, candidate: StepRecords) -> None:
        with self._told():
            for role, step in (("reference", reference), ("candidate", candidate)):
                with GoldenWriter(self.where / FOLDER / role, self._provenance[role]) as writer:
                    writer.write_step(step)

    def finish(self) -> None:
        for writer in self.writers.values():
            with self._told():
                writer.finish()

    def frames(self, name: str, frames: np.ndarray) -> None:
        with self._told():
            self._make(self.out)
            write_frames(self.out / "frames" / name, frames)

    def result(self, result: Result) -> None:
        """Write what was found; a run that ended in preflight has no records to keep."""
        with self._told():
            self._make(self.out)
            write(self.out / FOUND, result_text(result), "--out")
            write(self.out / RESULT, render(Comparison(result), "json"), "--out")

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """A file that cannot be written at the end of a run is a problem of its own, and no end of the verdict."""
        try:
            yield
        except UsageError as error:
            self.problems = (*self.problems, str(error))


class KeepLast(KeepRun):
    """Keeps a run in the cache, where it takes the place of the last one. What cannot be kept costs no verdict, but a
    line on stderr."""

    def __init__(self, request: Request) -> None:
        for name in ("begin", "step", "closer", "finish", "frames", "result"):
            setattr(self, name, functools.partial(self._tried, getattr(self, name)))
        self._tried(self._open, request)

    def _open(self, request: Request) -> None:
        runs = _last().parent
        runs.mkdir(parents=True, exist_ok=True)
        with _alone(runs):  # or another run takes the new folder for one that was left
            _sweep(runs)
            folder = Path(tempfile.mkdtemp(prefix="run-", dir=runs))
            self._going_on = _lock_of(folder).open("w")
            fcntl.flock(self._going_on, fcntl.LOCK_EX)
        super().__init__(folder, request)

    def result(self, result: Result) -> None:
        """Keep the result, and with it the run, in place of the last one."""
        super().result(result)
        with _alone(self.out.parent):
            before = self.out.with_suffix(".before")
            with contextlib.suppress(FileNotFoundError):
                _last().rename(before)
            self.out.rename(_last())
            shutil.rmtree(before, ignore_errors=True)
        _lock_of(self.out).unlink()

    def _tried(self, keep: Callable[..., T], *args: Any) -> T | None:
        """Keep something, unless something could not be kept before."""
        try:
            return keep(*args) if self.kept else None
        except (UsageError, OSError) as error:
            self.kept = False
            tell(f"this run is not kept for `parity explain`: {error}")
            return None

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        yield  # what goes wrong ends the keeping


def last_run() -> Path:
    """The folder of the last run.

    Raises:
        UsageError: none is kept.
    """
    if not _last().is_dir():
        raise UsageError("no run is kept yet: `parity run` keeps the last one")
    return _last()


def _last() -> Path:
    return cache_dir() / "runs" / "last"


@contextlib.contextmanager
def _alone(runs: Path) -> Iterator[None]:
    """Within it, no other process changes which runs there are."""
    with (runs / "last.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _lock_of(run: Path) -> Path:
    """Held as long as the run goes on: process numbers mean nothing where containers share a cache."""
    return run.with_suffix(".lock")


def _sweep(runs: Path) -> None:
    """Remove what runs left that were killed."""
    for path in runs.glob("run-*.lock"):
        with path.open("w") as lock, contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)
            path.unlink()


def write_frames(folder: Path, video: np.ndarray) -> None:
    """Write a decoded video [B, 3, T, H, W], some -1 to 1: FOLDER/0000.png, ..., the videos of a batch in turn.

    NaN is shown as black, values beyond the range as the nearest within.

    Raises:
        UsageError: the folder cannot be written.
    """
    from PIL import Image

    shown = [np.round(np.nan_to_num(pictures(f)) * 255).astype(np.uint8).transpose(1, 2, 0) for f in frames_of(video)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for i, frame in enumerate(shown):
            Image.fromarray(frame).save(folder / f"{i:04d}.png")
    except OSError as error:
        raise UsageError(f"--out: cannot write '{folder}': {error.strerror}") from None
