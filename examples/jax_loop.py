"""A denoising loop in JAX, as MaxDiffusion writes them: one `lax.scan` over the steps, guidance with batched branches.

`torch_loop` is the original: a python loop, a branch a call. Both take the initial latents, the embeddings of the two
branches and the guidance scale. Compare what they come to:

    import parity
    from jax_loop import Transformer, jax_loop, torch_loop

    model = Transformer()
    result = parity.compare(torch_loop(model), jax_loop(model.state_dict()), {"latents": x, "cond": c, "uncond": u})

`schedule="bfloat16"` is a fault that real ports have: timesteps and sigmas rounded to eight bits. `swapped=True` is
another: guidance away from the prompt.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import torch

STEPS, SHIFT, GUIDANCE, WIDTH = 8, 7.0, 4.0, 16


def sigmas(shift: float = SHIFT) -> np.ndarray:
    """Noise levels [STEPS + 1] of a flow, from one to zero, most of them high."""
    even = np.linspace(1.0, 0.0, STEPS + 1)
    return (shift * even / (1 + (shift - 1) * even)).astype(np.float32)


class Transformer(torch.nn.Module):
    """Latents [B, tokens, WIDTH], text [B, WIDTH] and a timestep to a velocity."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)
        self.text, self.time = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(1, WIDTH)

    def forward(self, latents: torch.Tensor, text: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        x = latents + self.text(text)[:, None] + self.time(timestep.reshape(-1, 1) / 1000)[:, None]
        return self.down(torch.tanh(self.up(x)))


def torch_loop(model: Transformer) -> Callable[..., torch.Tensor]:
    """The original: (latents, cond, uncond) -> latents."""

    def loop(latents: torch.Tensor, cond: torch.Tensor, uncond: torch.Tensor) -> torch.Tensor:
        levels = torch.from_numpy(sigmas()).to(latents)
        for now, after in itertools.pairwise(levels):
            t = 1000 * now
            with_text, without = model(latents, cond, t), model(latents, uncond, t)
            latents = latents + (after - now) * (without + GUIDANCE * (with_text - without))
        return latents

    return loop


def jax_loop(
    state: Mapping[str, torch.Tensor], schedule: str = "float32", swapped: bool = False
) -> Callable[..., jax.Array]:
    """The port: the same, compiled whole."""
    w = {name: jnp.asarray(x.detach().numpy()) for name, x in state.items()}

    def linear(name: str, x: jax.Array) -> jax.Array:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def model(latents: jax.Array, text: jax.Array, timestep: jax.Array) -> jax.Array:
        x = latents + linear("text", text)[:, None] + linear("time", timestep.reshape(-1, 1) / 1000)[:, None]
        return linear("down", jnp.tanh(linear("up", x)))

    @jax.jit
    def loop(latents: jax.Array, cond: jax.Array, uncond: jax.Array) -> jax.Array:
        levels = jnp.asarray(sigmas()).astype(schedule).astype(latents.dtype)
        text = jnp.concatenate([cond, uncond] if swapped else [uncond, cond])

        def step(x: jax.Array, at: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            now, after = at
            without, with_text = jnp.split(model(jnp.concatenate([x, x]), text, 1000 * now), 2)
            return x + (after - now) * (without + GUIDANCE * (with_text - without)), None

        return jax.lax.scan(step, latents, (levels[:-1], levels[1:]))[0]

    return loop
