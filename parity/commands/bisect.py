"""`parity bisect`: what brought a difference. Each search has a state file and goes on where it was stopped.

Exit codes: 0 found, 125 it cannot be told, 2 wrong usage. Progress goes to stderr; stdout has the answer alone.

Cost. Starting: numpy and typer; the searches import what they need when they run.
"""

from __future__ import annotations

import typer

from parity.commands.bisect_commits import commits
from parity.commands.bisect_modules import modules
from parity.commands.bisect_settings import settings
from parity.commands.bisect_steps import steps

app = typer.Typer(no_args_is_help=True, help="Find what brought a difference. A killed search goes on where it was.")

app.command("settings")(settings)
app.command("modules")(modules)
app.command("steps")(steps)
app.command("commits")(commits)
