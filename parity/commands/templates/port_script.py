"""A script of your own, recorded where it runs: python THIS_FILE GOLDEN [REFERENCE]

As it stands it records a loop around a small model: python THIS_FILE gpu; python THIS_FILE tpu gpu; parity diff gpu tpu
For yours, put the `for` around your own loop and hand over your transformer, scheduler and VAE (or a diffusers
pipeline: `parity.record(where, pipe)`). The reference's body runs four times, which measures how far rounding goes;
nothing that you compute in the first changes. See help(parity.record).
"""

import sys

import torch
from diffusers import FlowMatchEulerDiscreteScheduler

import parity


class Block(torch.nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return torch.tanh(super().forward(input))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(Block(8, 8) for _ in range(2))

    def forward(self, hidden_states: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            hidden_states = block(hidden_states) + timestep / 1000
        return hidden_states


def main(where: str, like: str | None = None) -> None:
    transformer, scheduler = Net(), FlowMatchEulerDiscreteScheduler()
    for _ in parity.record(where, transformer=transformer, scheduler=scheduler, like=like):
        latents = torch.randn(1, 16, 8, generator=torch.Generator().manual_seed(0))
        scheduler.set_timesteps(2)
        with torch.no_grad():
            for t in scheduler.timesteps:
                latents = scheduler.step(transformer(latents, t), t, latents).prev_sample
        parity.tap("latents.final", latents)  # anything else that you want to see


if __name__ == "__main__":
    main(*sys.argv[1:])
