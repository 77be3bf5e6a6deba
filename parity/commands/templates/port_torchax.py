"""A port for `parity run --port THIS_FILE:build`: a torch module that torchax runs, compiled by parity.

As it stands: the command that `parity init` printed runs it.
For yours, build your module in `build`, with whatever your port installs (kernels in torchax's operator table, replaced
functions): it runs as it is. With --model FOLDER the reference is parity's own. Protocol: help(parity.port.Port).
"""

import torch

from parity.port import Case, Port

# The settings that this port knows, with its own values; `case.settings["dtype"]` reads the value of the run.
SETTINGS = {"dtype": "float32"}


def build(case: Case) -> Port:
    """What --port names: the module, from the checkpoint in `case.folder`."""
    return Port(module=Net().to(getattr(torch, case.settings["dtype"])), runs="torchax")


class Block(torch.nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return torch.tanh(super().forward(input))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(Block(8, 8) for _ in range(2))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            hidden_states = block(hidden_states)
        return hidden_states


def reference(case: Case) -> Port:
    """What --reference-port names: a torch module, with inputs where there is no --model."""
    return Port(module=Net(), inputs={"hidden_states": torch.linspace(-1, 1, 128).reshape(1, 16, 8)})
