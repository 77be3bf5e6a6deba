"""What the judge says of records that were made once: what changed against the table that is committed.

    python benchmarks/oracle.py [--accept] [--only GLOB]

The corpus holds both sides' records of the fault bench and its innocents, of history, of the pitfalls and of the
mutants (`corpus.py`), in the cache; what is missing there is recorded first, which takes half an hour once. Judging it
needs numpy alone. A change of a verdict, an origin or a cause is a defect of the step that made it, or is said in its
note to be truer and accepted. Ends with 1 where anything changed.
"""

from __future__ import annotations

import argparse
import fnmatch
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import stamp

from parity.cache import cache_dir
from parity.compare.diff import diff
from parity.errors import ParityError

CORPUS = cache_dir() / "corpus"


def judged(case: Path) -> dict[str, Any]:
    """What the judge says of a case: of a run in two checks, of each."""
    rounds = [folder for folder in (case, case / "precision") if (folder / "reference").is_dir()]
    said = [_said(folder) for folder in rounds]
    return {key: [row[key] for row in said] for key in ("verdict", "origin", "causes")}


def _said(folder: Path) -> dict[str, Any]:
    try:
        found = diff(folder / "reference", folder / "candidate")
    except ParityError as error:
        return {"verdict": "refused", "origin": "", "causes": [type(error).__name__]}
    at = (
        ""
        if found.origin is None
        else f"step {found.origin.key.step} {found.origin.key.branch} {found.origin.key.site}"
    )
    return {"verdict": found.verdict, "origin": at, "causes": sorted(c.cause for c in found.causes)}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--accept", action="store_true")
    parser.add_argument("--only", default="*")
    options = parser.parse_args()
    program = Path(__file__).with_name("corpus.py")
    subprocess.run([sys.executable, str(program), str(CORPUS), "--only", options.only], check=True)
    began, known = time.perf_counter(), stamp.load("oracle")
    cases = sorted(path.parent for path in CORPUS.glob("*/*/made"))
    names = {f"{case.parent.name}/{case.name}": case for case in cases}
    rows = {name: judged(case) for name, case in names.items() if fnmatch.fnmatchcase(name, options.only)}
    changed = [name for name in rows if rows[name] != known["rows"].get(name)]
    for name in changed:
        before = known["rows"].get(name, {})
        for key, value in rows[name].items():
            if value != before.get(key):
                print(f"{name} {key}: {before.get(key, 'new')} -> {value}")
    gone = [] if options.only != "*" else sorted(set(known["rows"]) - set(rows))
    print(*(f"{name}: gone" for name in gone), sep="\n", end="\n" if gone else "")
    seconds = time.perf_counter() - began
    print(f"{len(rows)} cases judged in {seconds:.0f} s: {len(changed)} changed, {len(gone)} gone")
    if options.accept:
        kept = {name: row for name, row in known["rows"].items() if name not in gone} | rows
        stamp.save("oracle", stamp.stamped(dict(sorted(kept.items())), seconds))
        return 0
    return int(bool(changed or gone))


if __name__ == "__main__":
    raise SystemExit(main())
