"""A script's call of its decoder, which can be made again for other latents: with all else that it was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parity.recorder.floors.draws import Drawn, same_draws


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """A call of a VAE's `decode`.

    Attributes:
        vae: it. z: the latents. args, kwargs: what the script called it with, the latents among them.
        name: of the latents, where they were given by name. drawn: where torch's generators stood before it.
    """

    vae: Any
    z: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    name: str
    drawn: Drawn

    @classmethod
    def of(cls, vae: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], drawn: Drawn) -> Decoding:
        """A call: its latents come first, or are called z, or are the first tensor or array among what is named."""
        name = "" if args else next((n for n in ("z", "latents", *kwargs) if hasattr(kwargs.get(n), "shape")), "")
        z = args[0] if args else kwargs[name]
        return cls(vae=vae, z=z, args=args, kwargs=kwargs, name=name, drawn=drawn)

    def again(self, z: Any) -> Any:
        """What the same call gives of other latents, with the same draws."""
        args = self.args if self.name else (z, *self.args[1:])
        kwargs = {n: z if n == self.name else same_draws(x) for n, x in self.kwargs.items()}
        with self.drawn.again(None):
            return type(self.vae).decode(self.vae, *args, **kwargs)
