"""Which stages outside the loop a checkpoint has, and what each takes: one function a stage, by name.

A text stage is as many sides as it has encoders, since each is loaded after the one before it is gone; `part` names the
encoder. The VAE's part is its decoder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch

from parity.errors import UsageError
from parity.hooks.torchtools import module_tree
from parity.models.family import Family
from parity.models.folder import Case, read_config, skeleton, vae_config
from parity.models.registry import opened
from parity.models.stage_files import read_stage1, read_stage2
from parity.models.text import TEXT, Encoder, divided, load_encoder, skeleton as encoder_skeleton
from parity.models.vae import CacheRows, load_decoder
from parity.paths.loaded import Conditions, array, tensor
from parity.paths.plan import VAE_STAGE, Array, Spec, split_branches
from parity.paths.stage import Stage
from parity.settings import parse


def known(spec: Spec) -> Stage:
    """The stage that a spec names.

    Raises:
        UsageError: the checkpoint has none, or a file does not fit it.
    """
    family, case = opened(spec.source.model, prompt=spec.source.prompt)
    return _STAGES[spec.source.stage](spec, case, family)


def _text(spec: Spec, case: Case, family: Family) -> Stage:
    text = family.text(case)
    encoder = next(e for e in text.encoders if e.part == spec.source.part)
    stage = Stage(
        stage=TEXT,
        case=case,
        output=encoder.stream.name,
        trunk=encoder.part,
        make=partial(load_encoder, case, encoder),
        inputs=encoder.tokens,
        place="text.byt5" if encoder.stream.byt5 else TEXT,
        rule=encoder.rule,
        frames_of=encoder.frames,
        divide=encoder.divide,
        modules=module_tree(encoder_skeleton(case, encoder)),
    )
    if spec.source.stage1 is None or spec.role == "reference":
        return stage
    given = read_stage1(Path(spec.source.stage1), family.streams, case.config)
    held = {branch: given[branch][encoder.stream.argument] for branch in encoder.tokens}
    return dataclasses.replace(
        stage, divide=partial(_file_rows, encoder, given), replaced=lambda branch, _: held[branch], modules={}
    )


def _file_rows(encoder: Encoder, given: Conditions, branch: str, x: np.ndarray) -> dict[str, tuple[np.ndarray, str]]:
    if not encoder.stream.masked:
        return {"": (x, "")}
    return divided(given[branch][encoder.stream.mask_argument][0].to(torch.float32).numpy() > 0, x)


def _vae(spec: Spec, case: Case, family: Family) -> Stage:
    vae_config(case.folder)  # refuses a class that is not known
    given = spec.start.inputs or {}  # of one that is opened for its weights alone there are none
    return Stage(
        stage=VAE_STAGE,
        case=case,
        output="frames",
        trunk="decoder",
        make=partial(load_decoder, case),
        inputs=split_branches({name: tensor(x) for name, x in given.items()}),
        place=VAE_STAGE,
        rule=CacheRows(),
        pictures=True,
    )


_STAGES: Mapping[str, Callable[[Spec, Case, Family], Stage]] = {TEXT: _text, VAE_STAGE: _vae}


def file_latents(case: Case, file: Path) -> Array:
    """A port's latents, float32 [B, C, T, H, W].

    Raises:
        UsageError: they are not those of the checkpoint's VAE.
    """
    latents = read_stage2(file)
    channels = int(read_config(case.folder, "vae")["latent_channels"])
    if latents.shape[1] != channels:
        other = "; they are laid out [B, T, C, H, W], permute them" if latents.shape[2] == channels else ""
        raise UsageError(
            f"{file}: tensor 'latents': expected [B, {channels}, T, H, W] for the VAE of '{case.name}', "
            f"found {list(latents.shape)}{other}"
        )
    return array(latents.to(torch.float32))


def stage_modules(case: Case, family: Family, stages: tuple[str, ...]) -> dict[str, list[str]]:
    """The module paths of each stage, of each encoder of the text stage by its part, known from the configs alone (as
    far as the classes make them)."""
    found: dict[str, list[str]] = {}
    if TEXT in stages:
        found |= {e.part: ["", *module_tree(encoder_skeleton(case, e))] for e in family.text(case).encoders}
    if "transformer" in stages:
        found["transformer"] = ["", *module_tree(skeleton(case.folder, "transformer")), "rope"]
    if VAE_STAGE in stages:
        found[VAE_STAGE] = ["", *module_tree(load_decoder(case, parse("torch")))]
    return found
