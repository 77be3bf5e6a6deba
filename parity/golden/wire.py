"""Records, facts and other arrays as bytes, for a pipe between two processes of one run.

How. A message is a safetensors container as a part of a golden is: a JSON document in its metadata, arrays behind it. A
step's records are packed by the codec of the parts, so what crosses the pipe is what a golden would hold, and is
checked as one is. Nothing is pickled, and nothing that is read is executed.

Cost. One copy of each array on the way in; on the way out arrays are read-only views of the bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from parity.golden.codec import decode_step, encode_step
from parity.golden.container import BFLOAT16, Tensor, data, header, parse_container, tensor, widen
from parity.golden.facts import Facts, Schedule
from parity.golden.records import StepRecords
from parity.golden.strict import MalformedError, as_number, number, parse

DOCUMENT = "message"


def pack(step: StepRecords) -> bytes:
    """A step's records and floors as bytes.

    Raises:
        MalformedError: a record that a golden could not hold, such as a value of Python objects.
    """
    return _joined(*encode_step(step))


def unpack(content: bytes) -> StepRecords:
    """The records that `pack` packed, equal in every field.

    Raises:
        MalformedError: these are no such bytes.
    """
    return decode_step(memoryview(content))


def pack_message(document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """A JSON document and arrays by name as bytes.

    Raises:
        MalformedError: an array of Python objects, complex numbers or text.
    """
    tensors = {name: tensor(np.asarray(array)) for name, array in arrays.items()}
    return _joined(header(tensors, {DOCUMENT: json.dumps(document)}), tensors)


def unpack_message(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The document and the arrays that `pack_message` packed; bfloat16 arrays come as float32, exactly.

    Raises:
        MalformedError: these are no such bytes.
    """
    metadata, tensors = parse_container(memoryview(content))
    if DOCUMENT not in metadata:
        raise MalformedError("the message has no document")
    arrays = {name: widen(held.array) if held.dtype == BFLOAT16 else held.array for name, held in tensors.items()}
    return parse(metadata[DOCUMENT].encode()), arrays


def _joined(head: bytes, tensors: dict[str, Tensor]) -> bytes:
    return b"".join((head, *(block.tobytes() for block in data(tensors))))


def pack_facts(facts: Facts) -> bytes:
    """What a side is about to run with, as bytes."""
    schedule = facts.schedule
    document = {
        "weights": {name: [list(shape), content] for name, (shape, content) in facts.weights.items()},
        "dtypes": dict(facts.dtypes),
        "step_index": schedule.step_index,
        "end": number(schedule.end),
        "own": facts.own,
        "encoded": facts.encoded,
        "placement": facts.placement,
    }
    arrays = {"noise": facts.noise, "timesteps": schedule.timesteps, "sigmas": schedule.sigmas}
    arrays |= {f"inputs/{name}": array for name, array in facts.inputs.items()}
    arrays |= {f"tables/{name}": array for name, array in facts.tables.items()}
    return pack_message(document, arrays)


def unpack_facts(content: bytes) -> Facts:
    """The facts that `pack_facts` packed.

    Raises:
        MalformedError: these are no such bytes.
    """
    document, arrays = unpack_message(content)

    def named(group: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(group): array for name, array in arrays.items() if name.startswith(group)}

    try:
        return Facts(
            {name: (tuple(shape), content) for name, (shape, content) in document["weights"].items()},
            document["dtypes"],
            named("inputs/"),
            arrays["noise"],
            named("tables/"),
            Schedule(arrays["timesteps"], arrays["sigmas"], document["step_index"], as_number(document["end"], "end")),
            own=document["own"],
            encoded=document["encoded"],
            placement=document["placement"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MalformedError(f"the facts are not complete ({type(error).__name__}: {error})") from None
