"""Why a decoder's frames differ, where nothing is known of its code: known faults of a VAE, simulated in the reference.

How. The reference decodes the same latents with one known fault at a time (`vae.attention=by_frame`,
`vae.norm=by_frame`, ...; `parity.hooks.faults`), and the candidate's error of the frames is looked for among
theirs, as an error of the loop is (`parity.causes.match`). Each is tried on latents that were not divided too: a port
that forgets the division often has another fault. A fault of something that this VAE has not is left out: its code is
never reached.

Cost: two decodes of the reference for each known fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from parity.causes.errors import Vector, error_vector, noise_norm, norm
from parity.causes.known_faults import decoder_faults
from parity.causes.match import Faults, Known, matched
from parity.compare.births import L2_LIMIT
from parity.compare.reason import Note
from parity.compare.result import Cause
from parity.errors import ParityError
from parity.paths.plan import Role
from parity.records import StepRecords
from parity.runs.request import Request, RunSpec
from parity.settings import BY_NAME, Settings

NOT_DIVIDED = "vae.scaling=none"


class Decoders(Protocol):
    """Both sides' decoders, to be run again by themselves.

    Attributes:
        request: of the stage.
    """

    request: Request

    def reference(self) -> StepRecords:
        """The float32 truth of the frames, with its floors."""
        ...

    def run(self, role: Role, settings: Settings) -> StepRecords:
        """The frames of one side with these settings."""
        ...


def decoding(decoders: Decoders) -> Iterator[Cause | Note]:
    """Causes for the known faults that have the error of the candidate's frames."""
    request = decoders.request
    ours, theirs = decoders.reference(), decoders.run("candidate", request.candidate)
    keys = tuple(r.key for r in ours.records)
    error, noise = error_vector(ours, theirs, keys), noise_norm(ours, keys)
    if norm(error) <= L2_LIMIT * noise:
        yield Note("signatures: the frames, together, are within what rounding gives: no known fault is looked for")
        return
    singles = tuple(decoder_faults(request.reference))
    beside = [frozenset({name, NOT_DIVIDED}) for name in singles if not name.startswith("vae.scaling=")]
    runs = {faults: _error(decoders, ours, faults) for faults in (*(frozenset({name}) for name in singles), *beside)}
    spec = RunSpec.of(request)
    known = Known(
        error=error,
        faults={faults: run for faults, run in runs.items() if run is not None},
        noise=noise,
        told=request.reference.as_text(),
        confirm=lambda fault: spec.with_settings(reference=[fault]).command(),
    )
    yield from matched(known)


def _error(decoders: Decoders, ours: StepRecords, faults: Faults) -> Vector | None:
    """The error of the reference's frames under faults; None where this VAE has nothing that they change."""
    changes = {name: BY_NAME[name].read(value) for name, _, value in (fault.partition("=") for fault in faults)}
    try:
        run = decoders.run("reference", decoders.request.reference.neutral.with_(changes))
    except ParityError:
        return None
    keys = tuple(r.key for r in ours.records)
    shapes = {r.key: r.shape for r in run.records}
    if any(shapes.get(r.key) != r.shape for r in ours.records):  # another number of frames
        return None
    return error_vector(ours, run, keys)
