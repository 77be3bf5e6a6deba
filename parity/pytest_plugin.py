"""The pytest plugin: a `golden` fixture that holds what a test computes to what it computed before.

    def test_block(golden):
        golden.check({"hidden_states": block(x)}, rtol=1e-5)

The golden lies beside the test, in `golden/<test module>/<test name>/`; `pytest --golden-update` makes and rewrites
it. It is a golden as `parity record` writes it: `parity inspect` shows it, `parity diff` compares two of them.

Cost. At the start of pytest: nothing (numpy is imported by the first test that asks for `golden`).
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from parity.compare.check import Checked
    from parity.golden import Floor, Golden, Key, Record, StepRecords

UPDATE = "--golden-update"
FOLDER = "parity_golden_dir"
ROWS = 8
"""Sites that a failure lists."""

_PLAIN = re.compile(r"[^\w.-]")
_LONGEST = 120


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("parity", "goldens")
    group.addoption(UPDATE, action="store_true", help="Make or rewrite the goldens of the tests that run.")
    parser.addini(
        FOLDER,
        "Folder of the goldens, relative to the root; the tests' own folders are repeated in it. "
        "Default: golden/ beside each test file.",
        default="",
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Goldens:
    """Holds what a test computes to its golden: see `Goldens.check`."""
    return Goldens(request)


class Goldens:
    """The goldens of one test; the value of the `golden` fixture.

    Attributes:
        folder: where they lie.
        updating: whether `--golden-update` was given.
    """

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._item = request.node
        self._config = request.config
        self._checked: set[Path] = set()
        self.folder = _folder(request.config, self._item.path)
        self.updating = bool(request.config.getoption(UPDATE))

    def check(
        self,
        records: StepRecords | Sequence[Record] | Mapping[str, Any],
        *,
        name: str | None = None,
        floors: Mapping[str | Key, Floor | float] | None = None,
        rtol: float | None = None,
    ) -> None:
        """Fail the test unless `records` are what its golden holds.

        A site with a floor in the golden is judged as `parity diff` judges it: within 3 times its floor. Any other
        must be within `rtol`, or, without it, bit-equal in shape, dtype and values. With `--golden-update` the golden
        is rewritten instead, and only if a byte of it changes.

        Args:
            records: records of one step (`StepRecords`) or of several, or arrays by name: numpy's, torch's, jax's or
                anything with `__array__`, and None, numbers and strings.
            name: of the golden, in place of the test's own name; needed for a second check in one test.
            floors: what rounding alone explains, by name or key: a `Floor` or its absolute L2 norm. Stored by
                `--golden-update`; a comparison uses those that are stored.
            rtol: relative L2 (||new - golden|| / ||golden||) allowed where the golden holds no floor.
        """
        __tracebackhide__ = True
        from parity.compare.check import as_steps, check, require_values
        from parity.errors import ParityError

        where = self.folder / (_plain(_test_name(self._item)) if name is None else _given(name))
        shown = self._shown(where)
        if where in self._checked:
            pytest.fail(f"golden: {shown} is checked twice in this test; give the second check a name=")
        self._checked.add(where)
        failure = ""
        try:
            given = as_steps(records, floors)
            if self.updating:
                require_values(given, rtol)
                self._update(where, given)
                return
            held = self._read(where)
            failure = "" if held is None else message(check(held, given, rtol=rtol))
            if held is None:
                pytest.fail(f"golden: there is none at {shown}; look at what the test computes, then make it with\n"
                            f"  {self._command()}")  # fmt: skip
        except ParityError as error:
            failure = str(error)
        if failure:
            pytest.fail(f"golden: not what {shown} holds: {failure}\nif the change is meant:\n  {self._command()}")

    def _read(self, where: Path) -> list[StepRecords] | None:
        """The golden's steps; None where there is none."""
        from parity.errors import UsageError
        from parity.golden import Golden

        if not (where / "golden.json").exists() and not (where / "golden.json").is_symlink():
            return None
        held: Golden = Golden.open(where)
        if not held.complete:
            raise UsageError(f"{where}/golden.json: its writing was not finished")
        return [held.read_step(step) for step in held.steps]

    def _update(self, where: Path, steps: Sequence[StepRecords]) -> None:
        """Write the golden, unless it is there byte for byte."""
        import tempfile

        from parity.golden import GoldenWriter, Provenance

        test = f"{self._item.path.stem}::{_test_name(self._item)}"
        provenance = Provenance("reference", "pytest", test, {}, 0, len(steps), command=f"pytest {UPDATE}")
        with tempfile.TemporaryDirectory(prefix="parity-") as folder:
            fresh = Path(folder)
            _write(GoldenWriter(fresh, provenance), steps)
            if _content(fresh) == _content(where):
                return
        _write(GoldenWriter(where, provenance, overwrite=True), steps)
        self._config.stash.setdefault(_WRITTEN, []).append(self._shown(where))

    def _shown(self, path: Path) -> str:
        return _relative(path, self._config.invocation_params.dir)

    def _command(self) -> str:
        """What makes this test's goldens, from where pytest was called; ends with the flag."""
        file = self._shown(self._item.path)
        test = "::".join([file, *self._item.nodeid.split("::")[1:]])
        return f"pytest {shlex.quote(test)} {UPDATE}"


_WRITTEN: pytest.StashKey[list[str]] = pytest.StashKey()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which goldens were written, so that nobody commits one without knowing."""
    for folder in config.stash.get(_WRITTEN, []):
        terminalreporter.write_line(f"golden: wrote {folder}")


def message(checked: Checked) -> str:
    """A failed check for people: the reason, where it starts, the worst sites with their numbers; empty if none."""
    if not checked.reason:
        return ""
    lines = [checked.reason]
    if checked.origin is not None:
        lines.append(f"it starts at {checked.origin.key} (introduced at: {checked.origin.birth})")
    if checked.worst:
        lines.append(f"  {'relative L2':>11}  {'allowed':>9}  site")
    for site in checked.worst[:ROWS]:
        allowed = (checked.limits or {}).get(site.key, 0.0)
        note = f"  ({site.note})" if site.note else ""
        lines.append(f"  {site.distance.rel_l2:>11.3e}  {allowed:>9.2e}  {site.key}{note}")
    if len(checked.worst) > ROWS:
        lines.append(f"  and {len(checked.worst) - ROWS} more")
    return "\n".join(lines)


def _folder(config: pytest.Config, test_file: Path) -> Path:
    chosen = str(config.getini(FOLDER))
    if not chosen:
        return test_file.parent / "golden" / test_file.stem
    return config.rootpath / chosen / os.path.relpath(test_file.with_suffix(""), config.rootpath)


def _test_name(item: Any) -> str:
    """`TestClass.test_name[parameters]`: unique within its file."""
    return ".".join(item.nodeid.split("::")[1:])


def _plain(name: str) -> str:
    """A test's name as a folder's: characters that are none's business to a shell or a file system are replaced, and
    then a hash keeps two names apart that would become one."""
    head, bracket, parameters = name.partition("[")
    plain = f"{head}-{parameters.removesuffix(']')}" if bracket else name
    cleaned = _PLAIN.sub("_", plain)
    if cleaned == plain and len(plain) <= _LONGEST:
        return plain
    return f"{cleaned[:_LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _given(name: str) -> str:
    if not name or _PLAIN.search(name) or name.startswith("."):
        pytest.fail(f"golden: the name {name!r} is no folder's name; use letters, digits, '_', '-' and '.'")
    return name


def _write(writer: Any, steps: Sequence[StepRecords]) -> None:
    with writer:
        for step in steps:
            writer.write_step(step)


def _content(folder: Path) -> dict[str, bytes] | None:
    if not folder.is_dir():
        return None
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def _relative(path: Path, start: Path) -> str:
    try:
        return Path(os.path.relpath(path, start)).as_posix()
    except ValueError:  # another drive
        return str(path)
