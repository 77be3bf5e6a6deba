"""Writing a golden, one step at a time.

Each step is a part, written whole under a temporary name, synced and renamed; only then is `golden.json` rewritten, the
same way, to list it with size and checksum. So `golden.json` lists whole parts only, and says `complete` only after
`finish`. Nothing that changes from run to run (time, process, path) is written: equal records give equal bytes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from parity.errors import MalformedError, UsageError
from parity.golden.disk.format import MANIFEST, Manifest, Part, encode_manifest, first_difference, part_name
from parity.golden.disk.part import write_part
from parity.golden.disk.read import INPUTS, mapped_part, read_manifest
from parity.golden.disk.store import Store, open_store
from parity.golden.disk.tensors import Stored, write_tensors
from parity.golden.fingerprint import fingerprint
from parity.records import Array, Provenance, StepRecords

_OURS = re.compile(r"\.?(golden\.json|(inputs|before|step-\d{4,7})\.safetensors)(\.[0-9a-f]{16})?")
"""What a golden's folder may lose when it is overwritten or resumed: never a file that parity did not name."""


def refuse_others(store: Store) -> None:
    """Refuse a place where files of somebody's own have the names that a golden's have.

    Raises:
        UsageError: one is there, without a golden.
    """
    files = store.files()
    other = next((f for f in files if f[0] != "." and _OURS.fullmatch(f)), None)
    if other is not None and MANIFEST not in files:
        raise UsageError(
            f"{store.name}/{other}: it is there without a golden, and would be replaced; move it, or choose another "
            "place"
        )


class GoldenWriter:
    """Writes a golden; within `with`, it is finished at the end, or left incomplete by an exception.

    Example:

        with GoldenWriter("run-7/reference", provenance) as writer:
            for step in run():
                writer.write_step(step)
    """

    def __init__(
        self, where: str | os.PathLike[str], provenance: Provenance, *, resume: bool = False, overwrite: bool = False
    ) -> None:
        """Begin a golden, or go on with one.

        Args:
            where: a folder, which is made where it is missing, or a URL.
            provenance: of the run; stored as it is.
            resume: go on with the golden of the same run that is there; begin where there is none.
            overwrite: replace the golden that is there, which stays until the first step is written, not to be resumed.

        Raises:
            UsageError: a golden is there and neither `resume` nor `overwrite` is set; the one to resume is of another
                run or damaged; the place cannot be written.
        """
        self._store = open_store(where)
        self._store.create()
        self._manifest = Manifest(provenance=provenance)
        self._replaces = overwrite
        refuse_others(self._store)
        if overwrite:
            return  # what is there stays until there is something to put in its place
        found = read_manifest(self._store)
        if found is not None and not resume:
            raise UsageError(
                f"{self._store.name}: there is a golden here already; choose another place, go on with it (--resume), "
                "or replace it (--overwrite)"
            )
        for file in self._store.files() if resume else ():  # of a recording that was killed
            if file.startswith(".") and _OURS.fullmatch(file):
                self._store.remove(file)
        if found is None:
            self._write_manifest()
        else:
            self._manifest = self._resumed(found, self._manifest.provenance)

    def _resumed(self, found: Manifest, provenance: Provenance) -> Manifest:
        if difference := first_difference(found.provenance, provenance, ignore=("command",)):
            raise UsageError(
                f"{self._store.name}: cannot resume, this is another run: the golden and the run differ in {difference}"
            )
        for part in found.parts:
            with mapped_part(self._store, part):
                pass
        return found

    def _replace(self, written: str = "") -> None:
        """Remove the overwritten golden, once the manifest lists nothing of it; does so once.

        Args:
            written: the temporary name of what takes its place.
        """
        if not self._replaces:
            return
        self._replaces = False
        self._write_manifest()
        for file in self._store.files():
            if file not in (MANIFEST, written) and _OURS.fullmatch(file):
                self._store.remove(file)

    @property
    def steps_done(self) -> tuple[int, ...]:
        """The steps written so far, those of a resumed golden among them."""
        return tuple(part.step for part in self._manifest.parts)

    def write_step(self, step: StepRecords) -> None:
        """Add a step; when this returns, it survives a kill.

        Raises:
            UsageError: the step is there already, a record does not fit the format, or the disk is full (the steps
                before are kept).
        """
        where = f"{self._store.name}/{part_name(step.step)}"
        if step.step in self.steps_done:
            raise UsageError(f"{where}: step {step.step} is recorded already; leave it out when resuming")

        def write(path: Path) -> None:
            write_part(path, step)
            self._replace(path.name)

        try:
            size, checksum = self._store.put(part_name(step.step), write)
        except MalformedError as error:
            raise UsageError(f"{where}: cannot be written: {error}") from None
        part = Part(step.step, size, checksum, len(step.records))
        parts = sorted((*self._manifest.parts, part), key=lambda part: part.step)
        self._manifest = replace(self._manifest, parts=tuple(parts), complete=False)
        self._write_manifest()

    def replace_step(self, step: StepRecords) -> None:
        """Write a step that is there anew; a kill in between leaves the golden without it, and never damaged.

        Raises:
            UsageError: as `write_step`.
        """
        before = self._manifest
        others = tuple(part for part in before.parts if part.step != step.step)
        self._manifest = replace(before, parts=others, complete=False)
        self._write_manifest()
        try:
            self.write_step(step)
        except BaseException:  # a full disk: the file of the step is as it was
            self._manifest = before
            self._write_manifest()
            raise

    def finish(self, provenance: Provenance | None = None) -> None:
        """Mark the golden complete.

        Args:
            provenance: in place of the one that it was begun with; None to keep that.
        """
        self._replace()
        done = replace(self._manifest, complete=True)
        if provenance is not None:
            done = replace(done, provenance=provenance)
        if done != self._manifest:
            self._manifest = done
            self._write_manifest()

    def _write_manifest(self) -> None:
        try:
            content = encode_manifest(self._manifest)
        except MalformedError as error:
            raise UsageError(f"{self._store.name}/{MANIFEST}: cannot be written: {error}") from None
        self._store.put(MANIFEST, lambda path: path.write_bytes(content))

    def __enter__(self) -> GoldenWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()


def put_inputs(store: Store, provenance: Provenance, inputs: Mapping[str, Array]) -> None:
    """Write the inputs of a golden; nothing where they are not those of its provenance (a recording that encodes its
    prompt has tokens there)."""
    named = {name: fingerprint(item.values) for name, item in inputs.items()}
    if named != dict(provenance.inputs) or not named:
        return
    arrays = {name: Stored.of(item.values, item.dtype) for name, item in sorted(inputs.items())}
    dtypes = json.dumps({name: item.dtype for name, item in sorted(inputs.items())})
    store.put(INPUTS, lambda path: write_tensors(path, arrays, ("dtypes", dtypes)))
