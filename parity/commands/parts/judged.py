"""A result shown, then saved: nothing that was computed is lost to a file that cannot be written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from parity.commands.parts.options import Judgement
from parity.errors import UsageError
from parity.report.output import tell, write

if TYPE_CHECKING:
    from parity.report.comparison import Comparison


def shown(output: Judgement, document: Comparison, save: Callable[[int], int]) -> int:
    """Print a result, then save it, even if stdout is full or closed; returns the exit code.

    Args:
        save: writes the files; takes the exit code of the verdict and gives the command's.
    """
    code = document.result.exit_code
    try:
        output.show(document)
    finally:
        code = save(code)
    return code


def saved(code: int, path: Path, text: Callable[[], str], option: str) -> int:
    """Write a side file after the result was shown; a failure goes to stderr.

    Args:
        code: the exit code of the verdict. option: that named the file.

    Returns:
        The same code; of a pass whose file could not be written, 2.
    """
    try:
        write(path, text, option)
    except UsageError as error:
        tell(f"parity: {error}")
        return code or UsageError.exit_code
    return code
