"""Where a side's records come from, for its golden."""

from __future__ import annotations

from parity.golden.fingerprint import fingerprint
from parity.golden.versions import versions
from parity.paths.facts import gather
from parity.paths.loop import Loop
from parity.records import PORT, Facts, Provenance


def provenance(loop: Loop, facts: Facts | None = None) -> Provenance:
    """Provenance of a prepared side; facts may be given where they were gathered already.

    Where the text stage is part of the run its tokens are the explicit inputs, and not the embeddings it made of them.
    """
    side = loop.side
    facts = facts or gather(loop)
    tokens = {name: x.numpy() for name, x in side.inputs.tokens.items()}
    inputs = {name: fingerprint(x) for name, x in (tokens or facts.inputs).items()}
    return Provenance(
        side=side.role,
        backend=PORT if side.role == "candidate" and side.family.is_own else side.backend.name,
        model=side.case.name,
        settings=side.settings.as_text(),
        seed=side.inputs.seed,
        steps=side.inputs.steps,
        weights={name: print_ for name, (_, print_) in facts.weights.items()},
        inputs={**inputs, "noise": fingerprint(facts.noise)},
        versions=versions(),
        devices=side.backend.describe(),
        modules=side.modules,
    )
