"""The entry point: signals have words from the first import on, and every stream has a descriptor.

What a command imports takes half a second, in which an interrupt would end in a traceback; and where a stream is
closed, a pipe to another process would take its number.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.safe_path:  # `python -m` looks for modules in the current folder first
    del sys.path[0]

import os
import signal

from parity.errors import Terminated
from parity.signals import signalled, terminable


def main() -> None:
    """Run the command line; its exit codes are those of `parity.cli`."""
    _open_closed_streams()
    try:
        with terminable():
            from parity.cli import main as command_line

            code = command_line()
    except (KeyboardInterrupt, Terminated) as error:
        number = signalled(error) or signal.SIGINT
        if sys.stderr is not None:
            sys.stderr.write(f"parity: {'interrupted' if number == signal.SIGINT else 'terminated'}\n")
        code = 128 + number
    sys.exit(code)


def _open_closed_streams() -> None:
    """Give a closed stdin, stdout or stderr a descriptor that leads nowhere: the next pipe would be taken for it."""
    for stream in range(3):
        try:
            os.fstat(stream)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    if sys.stderr is None:  # libraries would ask it whether it is a terminal, or print on stdout in its place
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)


if __name__ == "__main__":
    main()
