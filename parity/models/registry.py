"""Which models there are: families by the class of their transformer, built-in tiny models by name.

To add a family: a module `parity/models/NAME.py`, and an entry in `FAMILIES`. What needs torch is named there as
`module:name`, so that listing costs nothing.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from parity.errors import UsageError, did_you_mean, summary
from parity.files import read_object
from parity.models.folder import MOST_BYTES, Case, GenerationSpec, place_of, read_config

if TYPE_CHECKING:
    from parity.models.family import Family

DEFAULT_MODEL = "tiny-hunyuan-video-1.5"
ANY = ""
"""In place of a class: the family of every transformer that no other runs."""

_HUB_NAME = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
"""`owner/name`, and behind an @ a branch, a tag or a commit."""

_PATH = re.compile(r"[./~\\]|[^/@]*/[^/@]*/")
"""What can only be a path: it begins as one, or has more parts than owner and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A family, known without loading it.

    Attributes:
        title: its name. transformer: the class that it runs, or `ANY`.
        family: `module:name` of what makes it; that of `ANY` is given a checkpoint's folder and the user's `--inputs`
            (or None).
        tiny: built-in model -> `module:name` of a function that writes its checkpoint into an empty folder.
    """

    title: str
    transformer: str
    family: str
    tiny: Mapping[str, str] = field(default_factory=dict)


FAMILIES = (
    Registered(
        title="HunyuanVideo-1.5",
        transformer="HunyuanVideo15Transformer3DModel",
        family="parity.models.hunyuan_video_15:HunyuanVideo15",
        tiny={DEFAULT_MODEL: "parity.models.tiny_checkpoints:make_hunyuan_video_15"},
    ),
    Registered(
        title="CogVideoX",
        transformer="CogVideoXTransformer3DModel",
        family="parity.models.cogvideox:CogVideoX",
        tiny={
            "tiny-cogvideox-1.0": "parity.models.tiny_checkpoints:make_cogvideox_10",
            "tiny-cogvideox-1.5": "parity.models.tiny_checkpoints:make_cogvideox_15",
        },
    ),
    Registered(
        title="a diffusers transformer by class and config",
        transformer=ANY,
        family="parity.models.generic:Generic.of",
    ),
)


def tiny_names() -> tuple[str, ...]:
    """The built-in models."""
    return tuple(name for family in FAMILIES for name in family.tiny)


def family_of(folder: Path, inputs: Path | None = None) -> Family:
    """The family of a checkpoint.

    Args:
        inputs: the user's tensors by argument name, which only the family of unknown transformers takes.

    Raises:
        UsageError: diffusers has no such class, or inputs were given to a family that makes its own.
    """
    name = str(read_config(folder, "transformer").get("_class_name", ""))
    by_class = {family.transformer: family for family in FAMILIES}
    family = by_class.get(name, by_class[ANY])
    if inputs is not None and family.transformer != ANY:
        raise UsageError(
            f"--inputs holds tensors by argument name; '{folder}' is a {family.title}, which takes a port's embeddings "
            "(prompt_embeds...), or --prompt"
        )
    make = pkgutil.resolve_name(family.family)
    found: Family = make(folder, inputs) if family.transformer == ANY else make()
    return found


def opened(
    name: str, inputs: Path | None = None, prompt: str | None = None, **sizes: int | None
) -> tuple[Family, Case]:
    """The family of a model, and what both sides agree on.

    Args:
        name: see `resolve_model`. inputs: see `family_of`. prompt, sizes: in place of the model's own; None to keep it.

    Raises:
        UsageError: there is no such model, its folder or the inputs do not fit, or nothing of it encodes a prompt.
    """
    folder = resolve_model(name)
    given = {field: value for field, value in {"prompt": prompt, **sizes}.items() if value is not None}
    family = family_of(folder, inputs)
    if prompt is not None and not family.streams:
        raise UsageError(f"--prompt: '{name}' takes its embeddings as inputs, drawn or given by --inputs: leave it out")
    spec = msgspec.structs.replace(GenerationSpec.load(folder, family.defaults(folder)), **given)
    return family, Case(name, folder, read_config(folder, "transformer"), spec, family.latent_shape(folder, spec))


def resolve_model(name: str) -> Path:
    """The checkpoint folder of a model.

    Args:
        name: a built-in tiny model, a folder in diffusers layout (with `transformer/config.json`) or of a transformer
            alone (`config.json`, weights beside it or drawn), or `owner/name` on the hub, `owner/name@revision`
            too (downloaded by huggingface_hub, or taken from its cache).

    Raises:
        UsageError: none of the three, or a folder that is no checkpoint.
    """
    require_model(name)
    makers = {known: make for family in FAMILIES for known, make in family.tiny.items()}
    if name in makers:
        from parity.models.tiny import ensure_tiny

        return ensure_tiny(name, pkgutil.resolve_name(makers[name]))
    hub = None if Path(name).exists() else _HUB_NAME.fullmatch(name)
    return Path(name) if hub is None else _download(hub["name"], hub["revision"])


def require_model(name: str) -> None:
    """Refuse what cannot be a model, before anything is made or downloaded.

    Raises:
        UsageError: as `resolve_model`.
    """
    if name in tiny_names():
        return
    if Path(name).exists():
        _require_checkpoint(Path(name))
    elif _PATH.match(name) or _HUB_NAME.fullmatch(name) is None:
        raise UsageError(_unknown(name, list(tiny_names())))


def _unknown(name: str, known: list[str]) -> str:
    """What a name that is no model most likely was meant to be."""
    if _PATH.match(name):
        there = next(folder for folder in (*Path(name).parents, Path()) if folder.exists())
        hint = did_you_mean(Path(name).name, (folder.name for folder in there.iterdir() if folder.is_dir()))
        return f"model '{name}': there is no such folder beyond '{there}'{hint}"
    return (
        f"unknown model '{name}': neither a built-in model ({', '.join(known)}), nor an existing folder, nor "
        f"a hub name (owner/name or owner/name@revision){did_you_mean(name, known)}"
    )


def _require_checkpoint(folder: Path) -> None:
    if not folder.is_dir():
        raise UsageError(f"'{folder}' is a file; give the checkpoint's folder")
    if not (place_of(folder, "transformer") / "config.json").is_file():
        raise UsageError(
            f"'{folder}' is no checkpoint in diffusers layout: it has no transformer/config.json; save it with "
            "pipeline.save_pretrained, or a transformer alone with transformer.save_pretrained"
        )
    parts = read_object(folder / "model_index.json", MOST_BYTES) or {}
    second = parts.get("transformer_2")
    if isinstance(second, list) and any(second):
        raise UsageError(
            f"'{folder}' has two transformers, between which its pipeline changes in the loop; parity runs one: give "
            "its folder, transformer or transformer_2, as the model, or record the pipeline (parity.record)"
        )


_CONFIGS = ("model_index.json", "config.json", "transformer/config.json")
"""What tells whether a repository is a checkpoint, and of which family."""
_PIPELINE = ("transformer/*", "vae/*", "scheduler/*", "guider/*", "text_encoder*/*", "tokenizer*/*")
_ALONE = ("config.json", "*.safetensors", "*.safetensors.index.json")
_UNREAD = (
    "*.bin", "*.bin.index.json", "*.ckpt", "*.pt", "*.pth", "*.msgpack", "*.h5", "*.onnx*", "*.gguf",
    *(f"*.{variant}{end}" for variant in ("fp16", "bf16", "fp32", "fp8", "non_ema", "ema") for end in (".*", "-*")),
)  # fmt: skip
"""Weights in other formats and variants, none of which is loaded."""


def _wanted(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The files of a repository that its family reads, and those among them that it does not, as patterns."""
    if place_of(folder, "transformer") == folder:
        return _ALONE, ("*/*", *_UNREAD)
    name = read_config(folder, "transformer").get("_class_name")
    known = any(name == family.transformer for family in FAMILIES)
    return ("model_index.json", *(_PIPELINE if known else _PIPELINE[:1])), _UNREAD


def _download(name: str, revision: str | None) -> Path:
    """The files of a repository that are read: its configs first, so that what is no checkpoint costs no gigabytes."""
    folder = _fetched(name, revision, _CONFIGS)
    _require_checkpoint(folder)
    return _fetched(name, revision, *_wanted(folder))


def _fetched(name: str, revision: str | None, wanted: Sequence[str], unread: Sequence[str] = ()) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    at = f" at '{revision}'" if revision else ""
    owner = name.partition("/")[0]
    here = f"'{owner}' is a folder here, which has no '{name.partition('/')[2]}'" if Path(owner).is_dir() else ""
    try:
        found = snapshot_download(name, revision=revision, allow_patterns=list(wanted), ignore_patterns=list(unread))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise UsageError(
            f"cannot get model '{name}'{at} from the hub: {summary(error)}; {here or 'give a local folder instead'}"
        ) from None
    if not Path(found).is_dir():  # the client makes no folder where there is no such file
        raise UsageError(
            f"model '{name}' has no {' or '.join(wanted[:3])} on the hub{at}; look at its name and revision"
        )
    return Path(found)
