"""`parity models`: what can be run and how it can be set, without loading any of it.

How. Everything is known from names: the built-in models, the families by the transformer class that they run, and the
settings from `parity.settings.SETTINGS`, with what each backend takes today.

Cost. Starting: neither torch nor jax is imported; the cache folder is looked into once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from parity.cache import cache_dir
from parity.commands.parts.options import Output
from parity.commands.parts.unfold import command
from parity.models.registry import DEFAULT_MODEL, FAMILIES, tiny_names
from parity.report.document import Listing, Section, Table
from parity.settings import SETTINGS, Backend, Setting, render

CLASSES = {family.title: family.transformer for family in FAMILIES if family.transformer}
"""Family -> the transformer class that it runs."""

ANY = "any diffusers transformer by class and config"

MODEL_FAMILIES = {name: family.title for family in FAMILIES for name in family.tiny}
"""Built-in model -> family."""

BACKENDS: tuple[Backend, ...] = get_args(Backend)


@command
def models(output: Output) -> None:
    """List built-in models, families, and settings with their values."""
    output.show(Listing(document(), _sections()))


def document() -> dict[str, Any]:
    """What `parity models --json` prints."""
    return {
        "format": 1,
        "models": [_model(name) for name in tiny_names()],
        "families": [{"family": family, "transformer": kind} for family, kind in CLASSES.items()],
        "settings": [_setting(setting) for setting in SETTINGS],
    }


def cached_folder(name: str) -> Path | None:
    """A built-in model's checkpoint in the cache (`<name>-v<N>`, the newest); None until a run has made one."""
    folders = [path for path in (cache_dir() / "models").glob("*-v*") if _versioned(path, name) and path.is_dir()]
    return max(folders, key=lambda path: int(path.name.rpartition("-v")[2]), default=None)


def _versioned(path: Path, name: str) -> bool:
    stem, _, version = path.name.rpartition("-v")
    return stem == name and version.isdecimal()


def _model(name: str) -> dict[str, Any]:
    folder = cached_folder(name)
    return {
        "model": name,
        "family": MODEL_FAMILIES[name],
        "default": name == DEFAULT_MODEL,
        "cached": folder is not None,
        "folder": None if folder is None else str(folder),
    }


def _setting(setting: Setting) -> dict[str, Any]:
    """A setting; `takes` lists what a backend takes today, or says in words what form a value has."""
    return {
        "setting": setting.name,
        "meaning": setting.meaning,
        "values": list(setting.values),
        "takes": {
            backend: list(setting.takes.get(backend, setting.values)) or setting.allowed(backend)
            for backend in BACKENDS
        },
        "default": {backend: render(setting.default_for(backend)) for backend in BACKENDS},
    }


def _sections() -> tuple[Section, ...]:
    known = tuple((m["model"], m["family"], "yes" if m["default"] else "no", _cached(m)) for m in document()["models"])
    also = ("a folder in diffusers layout, or owner/name on the hub", f"{', '.join(CLASSES)}, {ANY}", "no", "-")
    return (
        Table("Models", "model", ("model", "family", "default", "in the cache"), (*known, also)),
        Table("Families", "family", ("family", "transformer class"), tuple(CLASSES.items())),
        Table(
            "Settings (--reference NAME=VALUE, --candidate NAME=VALUE)",
            "setting",
            ("setting", "default", "values", "meaning"),
            tuple(_setting_row(setting) for setting in SETTINGS),
            folds=("default", "values", "meaning"),
        ),
    )


def _cached(model: Mapping[str, Any]) -> str:
    return "yes" if model["cached"] else "no: made by the first run"


def _setting_row(setting: Setting) -> tuple[str, ...]:
    default = _by_backend({backend: render(setting.default_for(backend)) for backend in BACKENDS})
    values = _by_backend({backend: setting.allowed(backend) for backend in BACKENDS})
    return setting.name, default, values, setting.meaning


def _by_backend(texts: Mapping[Backend, str]) -> str:
    """One text where the backends agree."""
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return " / ".join(f"{backend}: {text}" for backend, text in texts.items())
