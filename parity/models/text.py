"""The text stage as modules: from token ids to embeddings, one encoder at a time, as the families' pipelines do it.

The token ids are those that the pipeline's own method gives its encoder: it is called with a listener in the encoder's
place. What is around an encoder in the pipelines (which hidden state is read, the template that is cropped) is here;
the encoder itself is the checkpoint's, of its own class. A family says which encoders there are (`TextStage`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from parity.hooks.rows import WHOLE, NoRows, Part, RowFrame
from parity.models.folder import Case, load_component, read_config
from parity.models.patches import DTYPES
from parity.models.stage_files import Conditions, Stream
from parity.records import ATTENTION, PADDING
from parity.settings import Reached, Settings

TEXT = "text"
"""Name of the stage, and of the row frame of an encoder's tokens."""

CROPPED = "cropped"
"""The row frame of what is left behind the template."""


Ask = Callable[..., object]
"""Calls the pipeline's method for a `prompt`, on the CPU, with a listener as its `text_encoder`."""


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """One text encoder of a checkpoint; made by `encoder_of`.

    Attributes:
        part: its folder, and the child of its stage's module: `text_encoder`. kind: its class in transformers.
        stream: what its embeddings are to the transformer.
        tokens: branch -> what the pipeline gives it, int64 [1, L]: `input_ids`, and `attention_mask` where it is given
            one. A branch for which it is not called is missing, and has embeddings of zeros.
        width, length: of its embeddings [1, length, width]. vocabulary: rows of its table of embeddings.
        skip: hidden layers left out from the end, of `layers`; 0 for the output. crop: rows of the template.
    """

    part: str
    kind: Any
    stream: Stream
    tokens: Mapping[str, Mapping[str, torch.Tensor]]
    width: int
    length: int
    vocabulary: int
    skip: int = 0
    layers: int = 0
    crop: int = 0

    @property
    def rule(self) -> NoRows:
        """Without a mask every row counts, and stays where it is."""
        return TokenRows(self) if self.stream.masked else NoRows()

    def mask(self, branch: str) -> np.ndarray:
        """Bool [length], true for the rows of its embeddings that the transformer reads."""
        if not self.stream.masked:
            return np.ones(self.length, bool)
        if branch not in self.tokens:
            return np.zeros(self.length, bool)
        return valid_of(self.tokens[branch]["attention_mask"])[self.crop :]

    def settings(self, given: Settings) -> Settings:
        """A side's settings as far as they are this encoder's."""
        return given if self.stream.byt5 else given.with_({"text.byt5_dtype": "same"})

    def frames(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, RowFrame]:
        """Which tokens are valid, before and behind the cropping."""
        if not self.stream.masked:
            return {}
        whole = valid_of(inputs["attention_mask"])
        return {TEXT: row_frame(whole), CROPPED: row_frame(whole[self.crop :])}

    def divide(self, branch: str, x: np.ndarray, given: Conditions | None = None) -> dict[str, tuple[np.ndarray, str]]:
        """Its output by rows: suffix of its port -> (rows [1, R, width], name of their frame).

        The valid rows stand one after the other, wherever the padding was; without a mask all rows count.

        Args:
            given: a stage-1 file's, whose own masks say which are valid.
        """
        if not self.stream.masked:
            return {"": (x, "")}
        valid = self.mask(branch) if given is None else valid_of(given[branch][self.stream.mask_argument])
        padded = {} if valid.all() else {f"@{PADDING}": (x[:, ~valid], "")}
        return {"": (x[:, valid], CROPPED), **padded}


def valid_of(mask: torch.Tensor) -> np.ndarray:
    """Bool [L], true for the tokens that a mask [1, L] lets through."""
    return np.asarray(mask[0].detach().cpu().to(torch.float32).numpy() > 0)


def row_frame(weight: np.ndarray, index: np.ndarray | None = None) -> RowFrame:
    """The frame in which rows stand in this order, or as they are, and count where their weight, bool or 1, says so."""
    index = np.arange(weight.size) if index is None else index
    return RowFrame(index.astype(np.int32), weight.astype(np.float32))


def encoder_of(case: Case, part: str, kind: Any, stream: Stream, ask: Ask, *, skip: int = 0, crop: int = 0) -> Encoder:
    """An encoder, with the tokens of the case's prompts; the other arguments are `Encoder`'s attributes.

    Raises:
        UsageError: the folder lacks it.
    """
    config = read_config(case.folder, part)
    tokens = {}
    for branch, prompt in (("cond", case.spec.prompt), ("uncond", case.spec.negative_prompt)):
        ear = Listener()
        ask(text_encoder=ear, prompt=prompt)
        if ear.heard:
            tokens[branch] = ear.heard
    return Encoder(
        part=part,
        kind=kind,
        stream=stream,
        tokens=tokens,
        width=int(config["d_model"] if "d_model" in config else config["hidden_size"]),
        length=stream.tokens(case.spec),
        vocabulary=int(config["vocab_size"]),
        skip=skip,
        layers=int(config["num_hidden_layers"]) if skip else 0,
        crop=crop,
    )


@dataclass(frozen=True)
class TextStage:
    """What a family knows of its text encoders.

    Attributes:
        encoders: in the pipeline's order.
    """

    encoders: tuple[Encoder, ...]

    @torch.no_grad()
    def encode(self, case: Case, settings: Settings, device: torch.device) -> Conditions:
        """Both prompts as the pipeline's `encode_prompt` does it, bit for bit where all encoders have one dtype.

        Cost: each encoder is loaded after the one before it is gone (HunyuanVideo-1.5: 7 B parameters, then 0.2 B;
        CogVideoX: 4.7 B), and runs once for each prompt.

        Raises:
            UsageError: an encoder cannot be loaded.
        """
        embeddings: dict[str, dict[str, torch.Tensor]] = {}
        for encoder in self.encoders:
            model = load_encoder(case, encoder, settings).to(device)
            embeddings[encoder.part] = {
                branch: model(**{name: x.to(device) for name, x in given.items()})[encoder.stream.name]
                for branch, given in encoder.tokens.items()
            }
            del model  # so that two encoders never lie in memory together
        return self.conditions(embeddings, DTYPES[settings.text("dtype")])

    def tokens(self) -> dict[str, torch.Tensor]:
        """`cond.text_encoder.input_ids` -> tensor: the explicit inputs of a generation that encodes its own prompt."""
        return {
            f"{branch}.{encoder.part}.{name}": x
            for encoder in self.encoders
            for branch, given in encoder.tokens.items()
            for name, x in given.items()
        }

    def conditions(self, embeddings: Mapping[str, Mapping[str, torch.Tensor]], dtype: torch.dtype) -> Conditions:
        """The transformer's arguments of each branch, in `dtype`, masks included, as the pipelines make them.

        Args:
            embeddings: an encoder's part -> branch -> embeddings [1, L, width]; zeros where a branch is missing.
        """
        made: Conditions = {"cond": {}, "uncond": {}}
        for encoder in self.encoders:
            for branch, arguments in made.items():
                x = embeddings[encoder.part].get(branch, torch.zeros(1, encoder.length, encoder.width))
                arguments[encoder.stream.argument] = x.to(dtype)
                if encoder.stream.masked:
                    arguments[encoder.stream.mask_argument] = torch.from_numpy(encoder.mask(branch))[None].to(dtype)
        return made


class PromptEncoder(torch.nn.Module):
    """What a pipeline does with one encoder.

    Args:
        model: the encoder, or a model around it (T5's holds its stack of layers, which is all of it).
        dtype: of its side. An encoder that was widened to float64 gives that.
    """

    def __init__(self, encoder: Encoder, model: torch.nn.Module, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.add_module(encoder.part, getattr(model, "encoder", model))
        self.encoder, self.given_back = encoder, dtype

    def adapt(self, reached: Reached, *, traced: bool) -> None:
        """Apply the settings of the stage: the dtypes that it was loaded in."""
        if self.encoder.stream.byt5:
            reached.mark("text.byt5_dtype")

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Embeddings [1, length, width] of token ids [1, L] by its stream's name, in the side's dtype."""
        encoder, trunk = self.encoder, self.get_submodule(self.encoder.part)
        if attention_mask is not None and bool(attention_mask.all()):
            attention_mask = None  # as transformers decides inside, where a compiled program cannot look at values
        if encoder.skip:
            states = trunk(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True).hidden_states
            x = states[-(encoder.skip + 1)]
        else:
            x = trunk(input_ids=input_ids, attention_mask=attention_mask)[0]
        x = x[:, encoder.crop :]
        return {encoder.stream.name: x if x.dtype == torch.float64 else x.to(self.given_back)}


def load_encoder(case: Case, encoder: Encoder, settings: Settings) -> PromptEncoder:
    """Load an encoder in its own dtype.

    Raises:
        UsageError: the folder lacks it, or it cannot be loaded.
    """
    model = load_component(encoder.kind, case.folder, encoder.part, dtype=encoder.stream.dtype(settings))
    return PromptEncoder(encoder, model.requires_grad_(False), DTYPES[settings.text("dtype")]).eval()


def skeleton(case: Case, encoder: Encoder) -> PromptEncoder:
    """Its module without weights, on torch's meta device, for the names of its modules."""
    kind = encoder.kind
    config = kind.config_class.from_pretrained(case.folder, subfolder=encoder.part, local_files_only=True)
    with torch.device("meta"):
        return PromptEncoder(encoder, kind(config))


@dataclass(frozen=True, eq=False)
class TokenRows(NoRows):
    """Takes an encoder's token rows through their frame, and leaves out what nothing behind it reads: the layers after
    the hidden state that is taken, and with it the encoder's own output."""

    encoder: Encoder

    def parts(self, module: str, port: str, shape: Sequence[int], masked: Collection[int] = ()) -> tuple[Part, ...]:
        if self._unread(module, port):
            return ()
        if len(shape) < 2 or shape[0] != 1:
            return WHOLE
        if module == "" and port == "out":
            return (Part(frame=CROPPED),)
        tokens = len(shape) == 3 or module.endswith(f".{ATTENTION}") or port.endswith(("input_ids", "in.input"))
        return (Part(frame=TEXT),) if tokens else WHOLE

    def _unread(self, module: str, port: str) -> bool:
        part, read = self.encoder.part, self.encoder.layers - self.encoder.skip
        if not self.encoder.skip:
            return False
        inside = module.removeprefix(f"{part}.").split(".")
        late = len(inside) > 1 and inside[0] == "layers" and int(inside[1]) >= read
        return late or inside == ["norm"] or (module == part and port.startswith("out"))


class Listener:
    """Stands in an encoder's place and keeps what the pipeline's method gives it; gives back zeros of width 1.

    Attributes:
        dtype, config: what the methods read of an encoder. heard: `input_ids` and, if given, `attention_mask`.
    """

    dtype, config = torch.float32, SimpleNamespace(d_model=1)

    def __init__(self) -> None:
        self.heard: dict[str, torch.Tensor] = {}

    def __call__(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **options: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutput

        given = {"input_ids": input_ids, "attention_mask": attention_mask}
        self.heard = {name: x.cpu() for name, x in given.items() if x is not None}
        zeros = torch.zeros(*input_ids.shape, 1)
        return BaseModelOutput(last_hidden_state=zeros, hidden_states=(zeros,) * 8)
