"""Packed sites: what a page's script unpacks is what the document says."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity.report.page.pack import BIRTHS, VERDICTS, pack


def unpack(packed: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    """(site, step) -> its numbers and verdict, read as `1_data.js` reads them."""
    state = base64.b64decode(packed["state"])
    numbers = {}
    for name, text in packed["numbers"].items():
        wide = np.zeros((len(state), 4), dtype=np.uint8)
        wide[:, :3] = np.frombuffer(base64.b64decode(text), dtype=np.uint8).reshape(-1, 3)
        numbers[name] = (wide.view("<u4").ravel() << 7).view(np.float32)
    found, place, shift, distance = {}, -1, 0, 0
    for byte in base64.b64decode(packed["at"]):
        distance |= (byte & 127) << shift
        shift += 7
        if byte & 128:
            continue
        place, distance, shift = place + distance, 0, 0
        line, column = divmod(place, len(packed["steps"]))
        i = len(found)
        found[packed["lines"][line][2], packed["steps"][column]] = {
            **{name: float(values[i]) for name, values in numbers.items()},
            "verdict": VERDICTS[state[i] & 7],
            "birth": BIRTHS[state[i] >> 3],
        }
    assert len(found) == len(state)
    return found


def site(name: str, step: int, value: float | str = 1.0, **other: Any) -> dict[str, Any]:
    numbers = dict.fromkeys(("rel_l2", "floor", "ratio", "local_rel_l2", "local_ratio"), value)
    return {
        "stage": "transformer", "branch": "", "site": name, "step": step, "call": 0, "shapes": [[1], [1]],
        "dtypes": ["float32", "float32"], "verdict": "pass", "birth": None, "note": "", **numbers, **other,
    }  # fmt: skip


def packed(*sites: dict[str, Any], closer: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return pack({"sites": list(sites), "closer": list(closer)})


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 300), st.integers(-1, 70)),
        st.tuples(st.floats(0) | st.just(math.nan), st.sampled_from(VERDICTS), st.sampled_from(BIRTHS)),
        max_size=60,
    )
)
def test_what_is_packed_is_unpacked(sites: dict[tuple[int, int], tuple[float, str, str | None]]) -> None:
    table = packed(*(site(f"m{m}:out", s, v, verdict=d, birth=b) for (m, s), (v, d, b) in sites.items()))
    found = unpack(table)
    assert set(found) == {(f"m{m}:out", s) for m, s in sites}
    for (m, s), (value, verdict, birth) in sites.items():
        cell = found[f"m{m}:out", s]
        assert (cell["verdict"], cell["birth"]) == (verdict, birth)
        if math.isnan(value) or math.isinf(value):
            assert str(cell["rel_l2"]) == str(value)
        elif 1e-37 < value < 1e38:
            assert cell["rel_l2"] == pytest.approx(value, rel=1e-5)  # three digits of what is printed are right
        else:
            assert math.isfinite(cell["rel_l2"])


@pytest.mark.parametrize(
    "broken",
    [{"step": "0"}, {"verdict": "fine"}, {"birth": "there"}, {"rel_l2": None}, {"site": 1}, {"shapes": []}],
)  # fmt: skip
def test_what_is_no_site(broken: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        packed({**site("m:out", 0), **broken})


def test_of_two_sites_at_one_place_the_graver_is_kept_and_a_large_run_is_small() -> None:
    for pair in (("fail", "pass"), ("pass", "fail")):
        found = unpack(packed(*(site("m:out", 0, verdict=verdict) for verdict in pair)))
        assert found["m:out", 0]["verdict"] == "fail"
    sites = [site(f"transformer_blocks.{m}.attn:out", s) for s in range(50) for m in range(200)]
    assert len(str(packed(*sites))) < 28 * len(sites) + 20_000
