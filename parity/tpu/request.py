"""What a compile is asked for, and what its process answers: JSON between the two. Imports neither torch nor jax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parity.paths.plan import LOOP_STAGE

FORMAT = 1
"""Of what is kept in the cache: raise it where kept answers would be misread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One program to compile.

    Attributes:
        model: built-in name, folder or hub name. topology: `v6e:2x4`. candidate: `NAME=VALUE` of the candidate.
        sites: what is observed in it; `none` for the unobserved program. height, width, frames: of the video; None
            for the model's own. port: `FILE:FUNCTION` in the candidate's place. path_timeout: seconds that importing
            its file may take. stage: `transformer`, `vae`, or the folder of a text encoder.
    """

    model: str
    topology: str
    candidate: tuple[str, ...] = ()
    sites: str = "none"
    height: int | None = None
    width: int | None = None
    frames: int | None = None
    port: str | None = None
    path_timeout: float = 60.0
    stage: str = LOOP_STAGE

    @property
    def observed(self) -> bool:
        """Whether sites are observed in it."""
        return self.sites != "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the compiler made of a program.

    Attributes:
        text: the optimised program; empty where it was refused. refusal: the compiler's words; empty where it was not.
        memory: bytes a device: `arguments`, `temporaries`, `output`, `code`, `aliased`. cost: the compiler's own count
            of `flops` and `bytes` a device. modules: paths of the model's modules.
        versions: of jax, jaxlib, libtpu, torch, torchax, diffusers. devices: of the mesh. kind: of a device.
        seconds: that the compiler took. cached: whether it was compiled before.
        calls: how many of this call's size or less the stage makes of its trunk, to give its output once.
    """

    text: str
    refusal: str
    memory: Mapping[str, int]
    cost: Mapping[str, float]
    modules: tuple[str, ...]
    versions: Mapping[str, str]
    devices: int
    kind: str
    seconds: float
    cached: bool = False
    calls: int = 1

    @classmethod
    def of(cls, answer: Mapping[str, Any], text: str) -> Answer:
        """From JSON, with the program's text beside it."""
        return cls(**{**answer, "modules": tuple(answer["modules"]), "text": text})
