"""What libraries raise on a checkpoint of somebody's own is its fault; on parity's own model it is a defect."""

from __future__ import annotations

import pytest

from parity.errors import UnjudgedError, UsageError
from parity.paths.plan import Source
from parity.paths.worker.checkpoint import checkpoint


def test_a_failure_is_said_of_the_checkpoint_with_its_place() -> None:
    said = r"'mine' cannot be run: ZeroDivisionError: 0\.0 cannot be raised \(test_checkpoint\.py:\d+\); is"
    with pytest.raises(UsageError, match=said), checkpoint(Source(model="mine")):
        raise ZeroDivisionError("0.0 cannot be raised\nto a negative power")


def test_errors_that_are_explained_and_defects_pass() -> None:
    with pytest.raises(UnjudgedError, match="explained"), checkpoint(Source(model="mine")):
        raise UnjudgedError("explained")
    with pytest.raises(ZeroDivisionError), checkpoint(Source(model="tiny-hunyuan-video-1.5")):
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), checkpoint(Source(model="port.py", alone=True)):
        raise ZeroDivisionError
