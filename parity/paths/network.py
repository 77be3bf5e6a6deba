"""Whose code a side runs: how a model is loaded, called and named. What the model is says its family.

Here it is the family's own class, as parity runs it. `parity.paths.port.ported` is somebody's code in its place,
`parity.paths.stage` a text encoder or a VAE.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from parity.errors import UsageError
from parity.hooks.rows import RowFrame, RowRule
from parity.hooks.torchtools import module_tree, prediction_of
from parity.models.family import Condition, Constrain, Family, Said, Sampler
from parity.models.folder import Case, load_part
from parity.models.patches import DTYPES, in_dtype
from parity.records import LOOP_STAGE
from parity.settings import Reached, Settings, meaningless


class Network:
    """The family's own class.

    Attributes:
        family, case: what the model is, and whose weights. stage: which stage of a generation it is. place: where its
            settings apply (`parity.settings.Reached.stage`).
        is_own: whether the code is somebody's own: a port. runs_as_it_is: whether nothing of it may be replaced by
            parity. may_be_silent: whether modules may stay uncalled without it being an error.
        shard: rules of its own that place its weights on a mesh: pattern over a parameter's name -> mesh axes by
            dimension; empty where a named rule set does.
    """

    stage: str = LOOP_STAGE
    place: str = LOOP_STAGE
    is_own: bool = False
    runs_as_it_is: bool = False
    shard: Mapping[str, tuple[Any, ...]] = {}

    def __init__(self, family: Family, case: Case) -> None:
        self.family, self.case = family, case
        self.may_be_silent = not family.is_known

    @property
    def batches(self) -> tuple[tuple[str, ...], ...]:
        """The guidance branches of each call."""
        return self.family.batches

    @property
    def pairs_rows(self) -> bool:
        """Whether the masks that the code is given say which rows count, and not the family alone."""
        return self.runs_as_it_is or not self.family.is_known

    @property
    def idle(self) -> tuple[str, ...]:
        """Why a pass would not rest on what the code installed in the place of others', one sentence each."""
        return ()

    def running(self) -> contextlib.AbstractContextManager[None]:
        """Around its calls and who looks on: its code finds its own modules there, and they are found."""
        return contextlib.nullcontext()

    def compiling(self) -> contextlib.AbstractContextManager[None]:
        """Around the compilation of its program: an error there counts as its code's, where that is not parity's."""
        return contextlib.nullcontext()

    def declares(self, setting: str) -> bool:
        """Whether the code applies a setting itself, so that parity must not."""
        return False

    def without(self) -> Mapping[str, str]:
        """Setting -> why it has no meaning for this model, unless the code has a place for it."""
        lacks = meaningless(self.family.lacks(self.case.config))
        return {name: why for name, why in lacks.items() if not self.declares(name)}

    def checks(self, role: str) -> tuple[Said, ...]:
        """What preflight says of this side before anything is compared."""
        return self.family.checks(self.case) if role == "reference" else ()

    def named(self, module: str) -> str:
        """The reference's name of a module."""
        return module

    def named_port(self, module: str, port: str) -> str:
        """The reference's name of an input or output of a module, which is named as the reference names it."""
        return port

    def parameter(self, name: str) -> str:
        """The reference's name of a parameter."""
        module, _, own = name.rpartition(".")
        return f"{self.named(module)}.{own}" if module else name

    def parameters(self, names: Iterable[str]) -> Mapping[str, str]:
        """The reference's names of all parameters; of several that would have one, each keeps its own."""
        named = {name: self.parameter(name) for name in names}
        many = Counter(named.values())
        return {own: name if many[name] == 1 else own for own, name in named.items()}

    def modules(self, model: torch.nn.Module) -> dict[str, str]:
        """The reference's name of each module of a model -> of the one above it."""
        return {self.named(m): self.named(above) if above else "" for m, above in module_tree(model).items()}

    def reached(self, settings: Settings) -> Reached:
        """What takes the marks of a side's settings."""
        return Reached(settings, self.place)

    def load(self, settings: Settings) -> torch.nn.Module:
        """The model, ready to predict, in the dtype of the settings; on the CPU, unless its own code puts it elsewhere.

        Raises:
            UsageError: it cannot be loaded.
        """
        dtype = DTYPES[settings.text("dtype")]
        return in_dtype(load_part(self.case.folder, "transformer", torch_dtype=dtype), dtype).eval()

    def adapt(self, model: Any, reached: Reached, *, traced: bool, first: Condition | None) -> None:
        """See `Family.adapt`."""
        self.family.adapt(model, self.case, reached, traced=traced, first=first)

    def constrain(self, model: Any, place: Constrain) -> None:
        """See `Family.constrain`."""
        self.family.constrain(model, place)

    def predict(self, model: Any, arguments: Mapping[str, Any]) -> torch.Tensor:
        """The prediction of a transformer, called as diffusers' are; one returns it bare (Kandinsky 5)."""
        prediction: torch.Tensor = prediction_of(model(**arguments, return_dict=False))
        return prediction

    def rows(self, settings: Settings, condition: Condition) -> tuple[RowRule, Mapping[str, RowFrame]]:
        """See `Family.rows`."""
        return self.family.rows(self.case, settings, condition)

    def sampler(self, seed: int) -> Sampler:
        """The checkpoint's schedule, guidance and scheduler, new."""
        return self.family.sampler(self.case, seed)

    def rotary_tables(self, model: Any, latents: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """The rotary tables that its module `rope` makes for these latents, for preflight; of a port they are inside
        its call."""
        has_none = self.is_own or "rotary tables" in self.family.lacks(self.case.config)
        return {} if has_none else dict(zip(("cos", "sin"), model.rope(latents), strict=True))


def require_meaning(network: Network, settings: Settings) -> None:
    """Refuse settings that this model has no place for.

    Raises:
        UsageError: one is not at its default.
    """
    for name, why in network.without().items():
        if settings.changed(name):
            raise UsageError(
                f"the {settings.backend} path was given '{name}={settings.as_text()[name]}', which has no meaning for "
                f"'{network.case.name}' ({network.family.title}): {why}; leave it at its default"
            )
