"""Names of topologies, read before anything is loaded."""

from __future__ import annotations

import pytest

from parity.errors import UsageError
from parity.tpu.chips import topology


@pytest.mark.parametrize(
    ("name", "devices"), [("v6e:2x2", 4), ("v6e:2x4", 8), ("v5p:2x2x2", 8), ("v4:2x2x1", 8), ("tpu7x:2x2x1", 8)]
)
def test_topologies(name: str, devices: int) -> None:
    found = topology(name)
    assert (found.name, found.devices) == (name, devices)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("v6e", "expected CHIP:AxB"),
        ("v6:2x2", "do you mean v6e?"),
        ("gpu:2x2", "unknown chip 'gpu'"),
        ("v6e:2x2x1", "have 2 dimensions, such as v6e:2x2"),
        ("v5p:2x2", "have 3 dimensions, such as v5p:2x2x1"),
        ("v6e:1x1", "the first two numbers are even"),
        ("v6e:0x2", "the first two numbers are even"),
        ("x" * 500, "expected CHIP:AxB"),
    ],
)
def test_what_is_none(name: str, said: str) -> None:
    with pytest.raises(UsageError, match="--topology") as error:
        topology(name)
    assert said in str(error.value)
    assert len(str(error.value)) < 400
