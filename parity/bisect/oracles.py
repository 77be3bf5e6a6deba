"""The judges of a commit: a command's exit code, or the golden that a command records against a trusted one.

Exit codes mean what they mean to `git bisect run`: 0 good, 125 cannot be judged, every other up to 127 bad; from 128
on (a command that a signal killed) the search stops without recording an outcome for that commit, to be resumed.

Cost. The command's; a diff of two goldens on top.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from parity.bisect.commits import Judged
from parity.bisect.repository import environment
from parity.bisect.shell import run
from parity.bisect.strategy import Outcome
from parity.compare.diff import diff
from parity.errors import UnjudgedError, UsageError

SKIP = 125
CANNOT_RUN = (126, 127)
"""What a shell returns for a command that is not executable, or not there."""
OUT = "PARITY_OUT"
"""The variable that names the folder for a recorded golden."""


@dataclass(frozen=True, slots=True)
class ByCommand:
    """Judges by the exit code of a shell command run in the checkout."""

    command: str

    def __call__(self, tree: Path, log: Path) -> Judged:
        code = _exit_code(self.command, tree, log)
        outcome: Outcome = "good" if code == 0 else "unresolved" if code == SKIP else "bad"
        return Judged(outcome, f"exit code {code}", doubtful=code in CANNOT_RUN)


@dataclass(frozen=True, slots=True)
class ByGolden:
    """Judges by a golden: the command writes the commit's own to the folder $PARITY_OUT, and the two are diffed.

    A commit that records none cannot be judged: what broke the recording need not be what moved the numbers.
    """

    reference: str
    command: str

    def __call__(self, tree: Path, log: Path) -> Judged:
        with tempfile.TemporaryDirectory(prefix="parity-golden-", dir=tree.parent) as scratch:
            candidate = Path(scratch, "golden")
            code = _exit_code(self.command, tree, log, **{OUT: str(candidate)})
            if code:
                return Judged("unresolved", f"nothing recorded: exit code {code}", doubtful=True)
            try:
                result = diff(self.reference, candidate)
            except UsageError as error:
                return Judged("unresolved", str(error).replace(str(candidate), f"${OUT}"), doubtful=True)
        outcomes: dict[str, Outcome] = {"pass": "good", "fail": "bad", "unjudged": "unresolved"}
        return Judged(outcomes[result.verdict], f"{result.verdict}: {result.reason}", result.verdict == "unjudged")


def _exit_code(command: str, tree: Path, log: Path, **variables: str) -> int:
    """The exit code of a command that judges a checkout.

    Raises:
        UnjudgedError: a signal killed it, or its exit code says so.
    """
    code = run(command, tree, log, environment(**variables))
    if not 0 <= code < 128:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise UnjudgedError(
            f"the command ended with {how}, which is no judgement (good: 0, skip: 125, bad: any other up to 127); "
            f"its output is in {log}; the same command resumes the search"
        )
    return code
