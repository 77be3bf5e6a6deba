"""Model families: what a denoising loop needs to know of a model beyond diffusers' classes.

A family makes the model's arguments from latents and conditions, says which rows are text, and realises settings on a
loaded model. The loop, the backends, the hooks and the comparison know nothing of any family.

Its sampler is what differs between families in the denoising loop: schedule, guidance and step, as their pipelines do
them. The loop (`parity.paths.loop`) is written once; a sampler holds diffusers' own scheduler (and guider) of one side
and calls them as the family's pipeline does. It keeps their state, so each side, and each variant of one, has its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

import torch

from parity.errors import UsageError
from parity.hooks.rows import RowFrame, RowRule
from parity.models.folder import Case, GenerationSpec
from parity.models.patches import DTYPES
from parity.models.stage_files import Conditions, Stream, read_stage1
from parity.models.text import TextStage
from parity.settings import Capability, Reached, Settings

Condition = Mapping[str, torch.Tensor]
"""The text of one guidance branch by the transformer's keyword names."""
Said = tuple[str, Literal["pass", "explained"], str]
"""A preflight check: name, verdict, detail."""
Constrain = Callable[[torch.Tensor], torch.Tensor]
Place = Callable[[torch.Tensor], torch.Tensor]
"""Moves a CPU tensor to where the path computes, dtype kept."""


def sigmas_of(scheduler: Any, timesteps: torch.Tensor) -> torch.Tensor:
    """A scheduler's sigmas, [steps + 1]; of one that has none (DDIM, DPM, which keep the variance of latents and noise
    together at one) the square roots of 1 - alphas_cumprod."""
    if hasattr(scheduler, "sigmas"):
        return scheduler.sigmas
    alphas, final = scheduler.alphas_cumprod, scheduler.final_alpha_cumprod
    trained, alphas = len(alphas), torch.cat([alphas, final.reshape(1).to(alphas)])
    at = [*map(int, timesteps), int(timesteps[-1]) - trained // len(timesteps)]
    return (1 - alphas[[min(t, trained - 1) if t >= 0 else trained for t in at]]) ** 0.5


class Sampler(Protocol):
    """One side's schedule, guidance and scheduler; where a family says nothing else, the scheduler's own step.

    Attributes:
        guidance_scale: in use. scheduler: diffusers', where there is one. timesteps: [steps], once the schedule is set.
        first: index of the sigma that the first step uses, by the scheduler's own counter.
        sigmas: [steps + 1], the standard deviation of the noise in the latents before each step and after the last.
        end: what the last sigma should be. step_index: the scheduler's own counter; None where it has none or has not
            stepped.
        state: what it carries from step to step beside the latents, by name; empty before the first.
    """

    guidance_scale: float
    scheduler: Any = None
    timesteps: torch.Tensor = torch.empty(0)
    first: int = 0
    state: Mapping[str, torch.Tensor] = MappingProxyType({})

    @property
    def sigmas(self) -> torch.Tensor:
        return sigmas_of(self.scheduler, self.timesteps)

    @property
    def end(self) -> float:
        return 0.0

    @property
    def step_index(self) -> int | None:
        index: int | None = getattr(self.scheduler, "step_index", None)
        return index

    def set_schedule(self, steps: int, device: Any, place: Place, dtype: torch.dtype | None) -> None:
        """Set the schedule anew, rounded to `dtype` where one is given, and forget every step."""
        ...

    def start(self, noise: torch.Tensor) -> torch.Tensor:
        """The initial latents from the initial noise."""
        return noise

    def model_input(self, latents: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Latents and timestep [B] as the transformer is given them."""
        return latents, self.timesteps[step].expand(latents.shape[0])

    def guide(self, predictions: Mapping[str, torch.Tensor], step: int, dtype: torch.dtype | None) -> torch.Tensor:
        """The branches' predictions combined, in `dtype` where one is given; in the pipeline's own dtype."""
        ...

    def step(self, guided: torch.Tensor, latents: torch.Tensor, step: int) -> torch.Tensor:
        """The latents after a step, in the scheduler's dtype."""
        stepped: torch.Tensor = self.scheduler.step(guided, self.timesteps[step], latents, return_dict=False)[0]
        return stepped

    def stand_before(self, step: int, state: Mapping[str, torch.Tensor]) -> None:
        """Put the scheduler before a step, with what the step before it left."""
        self.state = dict(state)
        if hasattr(self.scheduler, "_step_index"):
            self.scheduler._step_index = self.first + step  # diffusers' own; there is no public way to set it


class Family(Protocol):
    """What a model family provides: every member that anyone asks for, with a default where most families agree.

    Attributes:
        title: its name. batches: the guidance branches that its pipeline puts through one call, in its order.
    """

    title: str
    streams: tuple[Stream, ...] = ()
    """What the text encoders give the transformer; empty where ports of this model have no first stage."""
    is_known: bool = True
    """Whether parity has lines for its class: which modules it calls, the shape of a prediction, which rows count. Of
    any other class the masks of its calls say which rows count."""

    @property
    def batches(self) -> tuple[tuple[str, ...], ...]: ...

    @property
    def channels(self) -> int:
        """The axis of the channels in the latents that its transformer is given."""
        return 1

    def lacks(self, config: Mapping[str, Any]) -> Mapping[Capability, str]:
        """What a transformer with this config does not have -> why settings that need it have no meaning."""
        return {}

    def checks(self, case: Case) -> tuple[Said, ...]:
        """What preflight says of the model before anything is compared."""
        return ()

    def defaults(self, folder: Path) -> Mapping[str, int]:
        """What its pipeline takes from the configs of a checkpoint, by the fields of `GenerationSpec`."""
        return {}

    def latent_shape(self, folder: Path, spec: GenerationSpec) -> tuple[int, ...]:
        """Shape of the latents of one video."""
        ...

    def token_grid(self, case: Case) -> tuple[int, int, int] | None:
        """Frames, height and width of the image tokens, in tokens; None where they have no such order."""
        return None

    def conditions(self, case: Case, settings: Settings, stage1: Path | None, device: torch.device) -> Conditions:
        """Branch -> keyword -> tensor on the CPU, from the prompt or from a port's stage-1 file.

        Raises:
            UsageError: the file or an encoder is missing or damaged.
        """
        if stage1 is None:
            found = self.text(case).encode(case, settings, device)
        else:
            found = read_stage1(stage1, self.streams, case.config)
            for stream, branch in itertools.product(self.streams, found.values()):
                branch[stream.argument] = branch[stream.argument].to(stream.dtype(settings))
        dtype = DTYPES[settings.text("dtype")]
        return {b: {k: x.to("cpu", dtype) for k, x in branch.items()} for b, branch in found.items()}

    def text(self, case: Case) -> TextStage:
        """The text encoders, with the tokens of the case's prompts.

        Raises:
            UsageError: none are known, or the checkpoint lacks a part of them.
        """
        raise UsageError(
            f"the text stage knows the encoders of HunyuanVideo-1.5 and CogVideoX; '{case.name}' takes its embeddings "
            "as inputs: leave text out of --stages"
        )

    def adapt(self, model: Any, case: Case, reached: Reached, *, traced: bool, first: Condition | None = None) -> None:
        """Apply the settings to a loaded model.

        Args:
            traced: whether it will run under jax.jit or torchax. first: the first branch's condition, for the setting
                that uses its mask in every branch.
        """
        ...

    def constrain(self, model: Any, place: Constrain) -> None:
        """Have activations placed on a mesh."""
        return

    def sampler(self, case: Case, seed: int) -> Sampler:
        """The checkpoint's schedule, guidance and scheduler, new."""
        ...

    def stage2(self, case: Case, latents: torch.Tensor) -> torch.Tensor:
        """The final latents as ports write them: [B, C, T, H, W], of the video's own frames."""
        return latents

    def model_arguments(
        self, case: Case, settings: Settings, latents: torch.Tensor, timestep: torch.Tensor, dtype: torch.dtype
    ) -> dict[str, Any]:
        """The transformer's arguments besides the condition, for the sampler's latents [B, ...] and timestep [B].

        The timestep is the scheduler's, or already in `timestep_dtype` where that is set.
        """
        ...

    def pipeline_arguments(self, case: Case) -> Mapping[str, Any]:
        """What the pipeline hands to each call of the transformer, by argument: CPU tensors that it computes once, or
        tuples of them, and numbers (LTX's frames, height and width). For ports; parity's own paths compute the tensors
        where they are observed. Empty for nothing."""
        return {}

    def rows(self, case: Case, settings: Settings, condition: Condition) -> tuple[RowRule, Mapping[str, RowFrame]]:
        """Which rows of which tensors of a branch are tokens that can be padded or reordered, and the frames of them by
        name."""
        ...
