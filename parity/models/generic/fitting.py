"""Optional arguments that a class cannot be called with are left out of the inputs made for it.

Problem. What the table of arguments makes is what most classes take: a text mask [1, tokens]. Some take their optional
arguments otherwise (Latte folds its frames into the batch and its mask not), and then no call succeeds.

How. The transformer without its weights is called once on torch's meta device, where a call computes shapes alone. If
it fails, and succeeds without one of the optional arguments, that one is left out, and the check `inputs` says so. A
class that cannot run there at all keeps everything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from parity.models.generic.inputs import LATENT, TIMESTEP, Made, Signature


def fitting(signature: Signature, model: torch.nn.Module, made: Made, given: Mapping[str, torch.Tensor]) -> Made:
    """The arguments with which the class can be called.

    Args:
        model: of the class, on the meta device. given: the user's, none of which is left out.
    """
    own = [n for n in signature.optional if n in made.tensors and n not in given]
    if not own or _can_be_called(signature, model, made, given):
        return made
    for name in own:
        if _can_be_called(signature, model, made, given, without=(name,)):
            return Made({n: x for n, x in made.tensors.items() if n != name}, made.static, (name,))
    return made


def _can_be_called(
    signature: Signature,
    model: torch.nn.Module,
    made: Made,
    given: Mapping[str, torch.Tensor],
    without: Collection[str] = (),
) -> bool:
    latents = given[LATENT] if LATENT in given else torch.empty(signature.latent_shape())
    tensors = {**made.tensors, LATENT: latents, TIMESTEP: torch.ones(1)}
    arguments: dict[str, Any] = {n: x.to("meta") for n, x in tensors.items() if n not in without}
    try:
        with torch.no_grad():
            model(**arguments, **made.static)
    except Exception:  # of the class's own code, whatever it is
        return False
    return True
