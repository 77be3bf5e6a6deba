"""Options out of all reason are refused in one line before anything is made of them."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from parity import cli


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--path-timeout", "nan", "--candidate-path", "absent.py:f"], "--path-timeout takes seconds above 0"),
        (["run", "--path-timeout", "inf", "--candidate-path", "absent.py:f"], "--path-timeout takes seconds above 0"),
        (["run", "--candidate", "scheduler.warmup_steps=1000000000"], "at most 10000"),
        (["run", "--prompt", "a \udcff b"], r"--prompt: 'a \udcff b' is not valid UTF-8"),
    ],
)
def test_what_no_run_can_take_is_refused(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 2, done.output
    assert said in done.stderr
