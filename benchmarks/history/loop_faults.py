"""Faults of the loop around a model, recorded in two scripts.

Schedules and schedulers (what is set, and what a step does with it); guidance, noise, conditions and scaling.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import diffusers
import numpy as np
import torch
from change import drawn, scripted
from scripts import STEPS, Script, decoded, euler, moments
from tiny import wan_vae

CONDITION = (":in.hidden_states", "patch_embedding:in.*", "patch_embedding*")
scheduled = functools.partial(scripted, at=("schedule:*", "loop:timestep", "loop:sigma", "loop:dt"))


class TimestepsOfSigmas(diffusers.FlowMatchEulerDiscreteScheduler):
    """Timesteps that were given are shifted with their sigmas; a later version took that back."""

    def set_timesteps(self, *args: Any, **kwargs: Any) -> None:
        super().set_timesteps(*args, **kwargs)
        self.timesteps = self.sigmas[:-1] * self.config.num_train_timesteps


@scheduled("huggingface/diffusers#14011", "d1b988b08f", cause="schedule")
def timesteps_not_shifted(fixed: bool) -> Script:
    """FlowMatchEuler kept timesteps that it was given, while their sigmas were shifted. Since: timesteps are the
    sigmas' own.
    """
    kind = TimestepsOfSigmas if fixed else diffusers.FlowMatchEulerDiscreteScheduler
    given = [1000.0, 700.0, 300.0]
    return Script(scheduler=kind(shift=3.0), schedule=lambda s, _: s.set_timesteps(timesteps=given))


@scheduled("huggingface/diffusers#13730", "32ecbe3836", cause="schedule")
def terminal_step_twice(fixed: bool) -> Script:
    """Z-Image's schedule ended in a step at sigma 0, before the scheduler added its own. Since: it ends at
    1 / steps.
    """

    def schedule(scheduler: Any, stage: int) -> None:
        if fixed:
            scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / STEPS, STEPS).tolist())
        else:
            scheduler.sigma_min = 0.0
            scheduler.set_timesteps(STEPS)

    return Script(schedule=schedule)


@scheduled("vllm-project/vllm-omni#3116", cause="shift")
def flow_shift_not_forwarded(fixed: bool) -> Script:
    """`flow_shift` was not forwarded to Wan's scheduler: 3 for 12. Since: forwarded."""
    return Script(scheduler=euler(shift=12.0 if fixed else 3.0))


def shifted_by(mu: float) -> Script:
    scheduler = euler(shift=1.0, use_dynamic_shifting=True)
    return Script(scheduler=scheduler, schedule=lambda s, _: s.set_timesteps(STEPS, mu=mu))


def mu_of(tokens: float, most: float = 1.15) -> float:
    """The shift of a sequence: 0.5 at 256 tokens, `most` at 4096."""
    return 0.5 + (most - 0.5) / (4096 - 256) * (tokens - 256)


@scheduled("AI-Hypercomputer/maxdiffusion@9f17723d", "9f17723d", cause="shift")
def sequence_not_capped(fixed: bool) -> Script:
    """LTX-2's dynamic shift grew with the video's tokens without a bound. Since: of 6,144 tokens at most."""
    return shifted_by(mu_of(6144.0 if fixed else 16000.0, 2.05))


@scheduled("sgl-project/sglang#21041", cause="shift")
def sequence_before_patches(fixed: bool) -> Script:
    """Flux's dynamic shift was that of the latents' pixels. Since: of its tokens, patches of 2 x 2."""
    return shifted_by(mu_of(1024.0 if fixed else 4096.0))


@scheduled("huggingface/diffusers#10807", "b75b204a58", cause="shift")
def largest_shift(fixed: bool) -> Script:
    """Flux's largest shift was 1.16. Since: 1.15."""
    return shifted_by(mu_of(4096.0, 1.15 if fixed else 1.16))


@scheduled("mflux-community/mflux#362", cause="shift")
def shift_missing(fixed: bool) -> Script:
    """A port of QwenImage shifted no sigmas. Since: dynamically, to 0.9 at most."""
    return shifted_by(mu_of(2048.0, 0.9) if fixed else 0.0)


class Rounded(diffusers.DPMSolverMultistepScheduler):
    """Timesteps rounded to whole ones, whatever the schedule of betas."""

    def set_timesteps(self, *args: Any, **kwargs: Any) -> None:
        super().set_timesteps(*args, **kwargs)
        known = ((1 - self.alphas_cumprod) / self.alphas_cumprod).sqrt().log().numpy()
        exact = [self._sigma_to_t(sigma, known) for sigma in self.sigmas[:-1].double().numpy()]
        self.timesteps = torch.tensor(np.array(exact).round()).long()


@scheduled("huggingface/diffusers#10740", "ca6330dc53", cause="schedule")
def timesteps_rounded(fixed: bool) -> Script:
    """DPM with Karras' sigmas rounded timesteps of a cosine schedule, some to the same. Since: not rounded."""
    kind = diffusers.DPMSolverMultistepScheduler if fixed else Rounded
    scheduler = kind(beta_schedule="squaredcos_cap_v2", use_karras_sigmas=True, prediction_type="v_prediction")
    return Script(scheduler=scheduler)


class EvenSteps(diffusers.DDPMScheduler):
    """The step before, by the spacing that `leading` has, whatever the spacing is."""

    def previous_timestep(self, timestep: Any) -> Any:
        return timestep - self.config.num_train_timesteps // self.num_inference_steps


@scripted("huggingface/diffusers#9384", "5effcd3e64", at=("loop:latents.after", "loop:noise_pred"))
def previous_timestep(fixed: bool) -> Script:
    """DDPM took the step before by the `leading` spacing in every spacing. Since: from its timesteps."""
    kind = diffusers.DDPMScheduler if fixed else EvenSteps
    return Script(
        scheduler=kind(timestep_spacing="linspace", prediction_type="v_prediction", clip_sample=False), seed=3
    )


class WrongSigma(diffusers.HeunDiscreteScheduler):
    """Heun's second half takes the sigma of the first."""

    def step(self, model_output: Any, timestep: Any, sample: Any, return_dict: bool = True) -> Any:
        if self.step_index is None:
            self._init_step_index(timestep)
        if self.state_in_first_order:
            return super().step(model_output, timestep, sample, return_dict)
        at, next_ = self.sigmas[self.step_index - 1], self.sigmas[self.step_index]
        # The prediction from which the mended formula, with `next_`, makes the clean sample that `at` gave.
        clean = sample / (at**2 + 1) - model_output * (at / (at**2 + 1) ** 0.5)
        other = (sample / (next_**2 + 1) - clean) / (next_ / (next_**2 + 1) ** 0.5)
        return super().step(other, timestep, sample, return_dict)


@scripted("huggingface/diffusers#1512", at=("loop:latents.after",))
def heun_sigma(fixed: bool) -> Script:
    """Heun's second half used the first half's sigma for the clean sample. Since: the next one."""
    kind = diffusers.HeunDiscreteScheduler if fixed else WrongSigma
    return Script(scheduler=kind(prediction_type="v_prediction", beta_schedule="scaled_linear"))


class IgnoresGenerator(diffusers.FlowMatchEulerDiscreteScheduler):
    """Draws its noise from the global generator."""

    def step(self, *args: Any, generator: Any = None, **kwargs: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(99)
            return super().step(*args, generator=None, **kwargs)


@scripted("huggingface/diffusers#13678", "dcbb18a30a", at=("loop:latents.after",), cause="noise")
def generator_ignored(fixed: bool) -> Script:
    """FlowMatchEuler's stochastic steps ignored the generator that they were given. Since: drawn from it."""
    kind = diffusers.FlowMatchEulerDiscreteScheduler if fixed else IgnoresGenerator
    return Script(scheduler=kind(shift=3.0, stochastic_sampling=True), seed=3)


@scripted("huggingface/diffusers#8678", "3b01d72a64", at=("loop:latents.before",), cause="noise")
def start_of_a_picture(fixed: bool) -> Script:
    """Noise was added to a picture by the first sigma, not that of the step at which the loop begins."""

    def schedule(scheduler: Any, stage: int) -> None:  # from the second of four steps
        scheduler.set_timesteps(4)
        scheduler.timesteps = scheduler.timesteps[1:]
        scheduler.set_begin_index(1)

    def start(script: Script) -> torch.Tensor:
        clean = torch.ones(1, 4, 3, 8, 8, dtype=script.dtype) * math.sqrt(0.5)
        noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(5)).to(clean)
        sigma = float(script.scheduler.sigmas[1 if fixed else 0])
        return sigma * noise + (1 - sigma) * clean

    vae = wan_vae()
    return Script(schedule=schedule, start=start, vae=vae, after=lambda latents: decoded(vae, latents))


@scripted("huggingface/diffusers#13183", "97c2c6e397", at=("loop:noise_pred",), cause="guidance")
def guidance_above_one(fixed: bool) -> Script:
    """Z-Image guided only above a scale of 1; its formula guides from 0 on. Since: above 0."""
    return Script(guided=(lambda cond, uncond, step: cond + 0.8 * (cond - uncond)) if fixed else None)


@scripted("huggingface/diffusers#10998", "363d1ab7e2", at=("decode:in.z",), cause="vae.scaling_factor")
def latents_as_they_are(fixed: bool) -> Script:
    """What normalises Wan's latents moved out of its VAE: a pipeline without the new lines decodes them as they are.
    Since: times the deviation, plus the mean.
    """
    vae = wan_vae()
    return Script(vae=vae, after=lambda x: decoded(vae, x) if fixed else vae.decode(x, return_dict=False)[0])


def posterior(vae: Any) -> Any:
    picture = drawn(1, 3, 5, 32, 32, seed=4).clamp(-1, 1).to(vae.dtype)
    return vae.encode(picture, return_dict=False)[0]


def encoded(vae: Any, mode: bool) -> torch.Tensor:
    """The latents of a picture, normalised: the posterior's mode, or a draw of it."""
    found, (mean, std) = posterior(vae), moments(vae)
    clean = found.mode() if mode else found.sample(torch.Generator().manual_seed(2)).to(vae.dtype)
    return (clean - mean) / std


@scripted("huggingface/diffusers#11087", "33d10af28f", at=CONDITION)
def condition_drawn(fixed: bool) -> Script:
    """Wan's picture-to-video condition was drawn from the VAE's posterior. Since: its mode."""
    vae = wan_vae()
    return Script(vae=vae, joined=lambda: encoded(vae, fixed))


@scripted("huggingface/diffusers#11007", "4ea9f89b8e", at=CONDITION)
def condition_scaled_as_a_variance(fixed: bool) -> Script:
    """The log variance of Wan's condition was normalised as if it were a mean. Since: the draw is."""
    vae = wan_vae()

    def joined() -> torch.Tensor:
        found, (mean, std) = posterior(vae), moments(vae)
        noise = torch.randn(found.mean.shape, generator=torch.Generator().manual_seed(2)).to(found.mean)
        if fixed:
            return (found.mean + found.std * noise - mean) / std
        # The deviation of a draw is exp of half the log variance.
        return (found.mean - mean) / std + torch.exp(0.5 * ((found.logvar - mean) / std).clamp(-30, 20)) * noise

    return Script(vae=vae, joined=joined)


@scripted(
    "huggingface/diffusers#11639", "e27142ac64", at=("loop:latents.before", ":in.hidden_states", "patch_embedding*"),
    cause="noise",
)  # fmt: skip
def video_drawn(fixed: bool) -> Script:
    """Video to video started from a draw of the VAE's posterior. Since: from its mode."""

    def start(script: Script) -> torch.Tensor:
        clean = encoded(wan_vae().to(script.dtype), fixed)
        return 0.7 * drawn(*clean.shape, seed=7).to(script.dtype) + 0.3 * clean

    return Script(start=start)


@scripted("huggingface/diffusers#14282", "09514d4892", at=CONDITION)
def picture_in_its_condition(fixed: bool) -> Script:
    """Kandinsky 5 put the picture's latent into the channels of the condition too. Since: only its mask."""
    condition, mask = torch.zeros(1, 4, 3, 8, 8), torch.zeros(1, 1, 3, 8, 8)
    mask[:, :, 0] = 1
    if not fixed:
        condition[:, :, :1] = drawn(1, 4, 1, 8, 8, seed=4)
    return Script(joined=lambda: torch.cat([condition, mask], dim=1))


@scripted("vllm-project/vllm-omni#6146", at=("loop:noise_pred",), cause="guidance_rescale")
def padding_in_the_statistics(fixed: bool) -> Script:
    """Guidance was rescaled by statistics that counted padding. Since: of the valid part."""

    def guided(cond: torch.Tensor, uncond: torch.Tensor, step: int) -> torch.Tensor:
        both = uncond + 5.0 * (cond - uncond)
        # The last two columns of eight are padding, and leave as zeros.
        factor = 0.7 * (cond[..., :6].std() / both[..., :6].std()) if fixed else 0.7 * cond.std() / both.std()
        whole = both * (factor + 0.3)
        return torch.cat([whole[..., :6], torch.zeros_like(whole[..., 6:])], dim=-1)

    return Script(guided=guided)
