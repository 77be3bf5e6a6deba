"""`parity init PORT.py`: writes a commented port that runs as it is, to be filled in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from parity.commands.parts.unfold import command
from parity.errors import UsageError
from parity.report.output import printable, show

TEMPLATE = Path(__file__).parent / "templates" / "port.py"


@command
def init(
    where: Annotated[Path, typer.Argument(metavar="PORT.py", help="File to write; never overwritten.")],
) -> None:
    """Write a template of a port for --candidate-path and --reference-path."""
    if where.suffix != ".py":
        raise UsageError(f"'{where}' is not the name of a Python file; name one as in my_port.py")
    text = TEMPLATE.read_text(encoding="utf-8").replace("THIS_FILE", str(where))
    try:
        with where.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"'{where}' exists; name another file") from None
    except OSError as error:
        raise UsageError(f"cannot write '{where}': {error.strerror}") from None
    shown = printable(str(where), "utf-8")
    show(f"wrote {shown}; try: parity run --reference-path {shown}:reference --candidate-path {shown}:build")
