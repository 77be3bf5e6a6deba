"""Records the snapshots, and holds a checkout to them.

    python -m tests.snapshots record [NAME...]     write tests/snapshots/data/NAME.json
    python -m tests.snapshots check [NAME...]      run the commands and compare; exit 1 where anything differs
    python -m tests.snapshots faults STATE.json    compare a state file of benchmarks/fault_bench.py; --record keeps it
    python -m tests.snapshots goldens              read and write the committed golden again; --record keeps digests

`--root DIR` runs another checkout's package; `--keep DIR` keeps the working folder with what the commands printed, and
a second call with it runs only what is not there.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.snapshots import faults, machine
from tests.snapshots.capture import capture
from tests.snapshots.catalogue import COMMANDS, Command, chosen
from tests.snapshots.compare import differences
from tests.snapshots.scene import ROOT, prepare
from tests.snapshots.snapshot import DATA, Snapshot, reduce
from tests.snapshots.tolerance import OTHER, SAME, Tolerance
from tests.snapshots.words import REWORDED, Reworded


def fresh(command: Command, folder: Path, root: Path) -> Snapshot:
    """The snapshot of a command as it is today."""
    return reduce(command, capture(command, folder, root, folder / "captured"), folder)


def record(commands: list[Command], folder: Path, root: Path) -> int:
    """Write snapshots."""
    DATA.mkdir(exist_ok=True)
    machine.remember()
    for command in commands:
        began = time.perf_counter()
        text = fresh(command, folder, root).dumps()
        (DATA / f"{command.name}.json").write_text(text)
        print(f"{command.name}: {len(text)} bytes, {time.perf_counter() - began:.0f} s", flush=True)
    return 0


def check(
    commands: list[Command], folder: Path, root: Path, tolerance: Tolerance, changes: tuple[Reworded, ...] = REWORDED
) -> int:
    """Compare with the snapshots; returns 1 where anything differs."""
    differ = []
    for command in commands:
        began = time.perf_counter()
        try:
            kept = Snapshot.load(command.name)
        except FileNotFoundError:
            print(f"{command.name}: never recorded", flush=True)
            continue
        found = differences(kept, fresh(command, folder, root), tolerance, changes)
        differ += [command.name] * bool(found)
        state = f"{len(found)} differences" if found else "equal"
        print(f"{command.name}: {state}, {time.perf_counter() - began:.0f} s", flush=True)
        for line in found:
            print(f"    {line}", flush=True)
    print(f"{len(commands)} commands, {len(differ)} differ: {', '.join(differ)}" if differ else "all equal")
    return 1 if differ else 0


def main() -> int:
    """Parse the arguments; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.snapshots")
    actions = parser.add_subparsers(dest="action", required=True)
    for name in ("record", "check"):
        action = actions.add_parser(name)
        action.add_argument("names", nargs="*", choices=[*(c.name for c in COMMANDS), []], metavar="NAME")
        action.add_argument("--root", type=Path, default=ROOT, help="the checkout that is run")
        action.add_argument("--keep", type=Path, help="working folder that is kept")
        action.add_argument("--quick", action="store_true", help="only commands that need neither torch nor jax")
    actions.choices["check"].add_argument("--tolerance", choices=["same", "other"], help="default: by the machine")
    verbatim = "as recorded: without the wordings that were changed since"
    actions.choices["check"].add_argument("--verbatim", action="store_true", help=verbatim)
    action = actions.add_parser("faults")
    action.add_argument("state", type=Path)
    action.add_argument("--record", action="store_true")
    actions.add_parser("goldens").add_argument("--record", action="store_true")
    options = parser.parse_args()
    if options.action == "faults":
        return _faults(options.state, options.record)
    if options.action == "goldens":
        return _goldens(options.record)
    commands = [c for c in chosen(options.names) if c.quick or not options.quick]
    with tempfile.TemporaryDirectory(prefix="snapshots-") as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        prepare(folder)
        if options.action == "record":
            return record(commands, folder, options.root.resolve())
        named = {"same": SAME, "other": OTHER, None: machine.tolerance()}
        changes = () if options.verbatim else REWORDED
        return check(commands, folder, options.root.resolve(), named[options.tolerance], changes)


def _faults(state: Path, keep: bool) -> int:
    if keep:
        print(f"{faults.keep(state)} rows kept")
        return 0
    found = faults.worse(state)
    print("\n".join(found) or "no row is worse")
    return 1 if any("WORSE" in line for line in found) else 0


def _goldens(keep: bool) -> int:
    from tests.snapshots import goldens

    if keep:
        goldens.remember()
    found = goldens.differences()
    print("\n".join(found) or "equal")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
