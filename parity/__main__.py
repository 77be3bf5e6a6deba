"""`python -m parity`: the command line."""

from parity.cli import main

main()
