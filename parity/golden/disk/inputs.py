"""The explicit inputs that a golden carries: prompt embeddings, masks and initial noise, so that another machine starts
from the very same.

Problem. Text encoders round otherwise on every machine, and one ulp of an embedding makes two goldens incomparable.

How. `inputs.safetensors` beside the parts, one tensor an input. What each of them must be stands in golden.json, which
has a checksum of itself: the fingerprints of `provenance.inputs`. A tensor that is missing, too many or of other bits
is damage, so nothing is started from a wrong input.

Cost. Some megabytes on disk (40 MB for HunyuanVideo-1.5's embeddings), in memory while they are read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from parity.errors import MalformedError
from parity.golden.disk.format import damaged
from parity.golden.disk.read import Golden
from parity.golden.disk.store import MissingError, Store
from parity.golden.disk.tensors import Stored, read_tensors, write_tensors
from parity.golden.fingerprint import fingerprint
from parity.records import Array, Provenance

FILE = "inputs.safetensors"
MOST = 1 << 32
"""Bytes that are read at most."""
NOISE = "noise"


def put_inputs(store: Store, provenance: Provenance, inputs: Mapping[str, Array]) -> None:
    """Write the inputs of a golden; nothing where they are not those of its provenance (a recording that encodes its
    prompt has tokens there)."""
    named = {name: fingerprint(item.values) for name, item in inputs.items()}
    if named != dict(provenance.inputs) or not named:
        return
    arrays = {name: Stored.of(item.values, item.dtype) for name, item in sorted(inputs.items())}
    dtypes = json.dumps({name: item.dtype for name, item in sorted(inputs.items())})
    store.put(FILE, lambda path: write_tensors(path, arrays, ("dtypes", dtypes)))


def read_inputs(golden: Golden) -> dict[str, Array] | None:
    """The inputs that a golden carries; None where it has no such file.

    Raises:
        UsageError: the file is damaged, or is not what golden.json says.
    """
    where = f"{golden.name}/{FILE}"
    try:
        with golden.store.mapped(FILE, None, MOST) as (path, buffer):
            metadata, arrays = read_tensors(path, buffer)
        dtypes = msgspec.json.decode(metadata.get("dtypes", "{}"), type=dict[str, str])
        found = {name: Array(held.values, dtypes[name]) for name, held in arrays.items()}
    except MissingError:
        return None
    except (MalformedError, KeyError, msgspec.MsgspecError) as error:
        raise damaged(where, str(error)) from None
    expected = golden.provenance.inputs
    for name in sorted(found.keys() | expected.keys()):
        if name not in found or name not in expected:
            raise damaged(where, f"'{name}' is in {'it' if name in found else 'golden.json'} alone")
        if fingerprint(found[name].values) != expected[name]:
            raise damaged(where, f"'{name}' does not match its fingerprint in golden.json")
    return found
