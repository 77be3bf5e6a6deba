"""What `parity run` says to type next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from parity.commands.run import _closer
from parity.compare.result import Origin
from parity.records import Key
from parity.runs.request import Request
from parity.settings import parse
from tests.support.results import RESULT, site

REQUEST = Request("tiny-hunyuan-video-1.5", parse("torch", []), parse("torchax", ["attention.mask=none"]))
AT = Origin(Key("transformer", 0, "cond", "blocks.0:out"), "module")


@pytest.mark.parametrize(
    ("result", "request_", "offered"),
    [
        ({"origin": AT}, {}, True),
        ({"origin": AT, "closer": (site("blocks.0.attn:out"),)}, {}, False),
        ({"origin": AT}, {"sites": "all"}, False),
        ({"origin": None}, {}, False),
        ({"origin": replace(AT, key=replace(AT.key, site=":in.timestep"))}, {}, False),
        ({"origin": replace(AT, key=replace(AT.key, site="loop:frames"))}, {}, False),
    ],
)
def test_every_module_is_offered_where_it_would_tell_more(
    result: dict[str, Any], request_: dict[str, Any], offered: bool
) -> None:
    found = _closer(replace(RESULT, **{"closer": (), **result}), replace(REQUEST, **request_))
    assert found == (("parity run -c attention.mask=none --sites all   # in every module",) if offered else ())
