"""Settings from what a user wrote."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from parity.errors import UsageError
from parity.settings.catalogue import AUTO, FLEX_DEVICES, SETTINGS, SPLASH, SPLASH_BLOCK
from parity.settings.kinds import Backend, render
from parity.settings.lookup import BY_NAME
from parity.settings.values import Settings


def parse(backend: Backend, assignments: Iterable[str] = ()) -> Settings:
    """Settings of a backend from `name=value` texts over its defaults.

    A candidate of torchax's that is given a device of torch's is torch's.

    Raises:
        UsageError: an unknown name (with the nearest known one), a value out of range, a repeated name, or values that
            mean nothing together.
    """
    given = list(assignments)
    devices = [text.partition("=")[2] for text in given if text.startswith("device=")]
    backend = "torch" if any(device != AUTO for device in devices) else backend
    values = {setting.name: setting.default_for(backend) for setting in SETTINGS}
    if backend == "torch" and any(device.partition(":")[0] not in FLEX_DEVICES for device in devices):
        values["attention.kernel"] = "sdpa"
    seen: set[str] = set()
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"'{text}' is not of the form SETTING=VALUE")
        if name not in BY_NAME:
            near = difflib.get_close_matches(name, list(BY_NAME), n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise UsageError(f"unknown setting '{name}'{hint} (`parity info settings` lists them)")
        if name in seen:
            raise UsageError(f"setting '{name}' is given twice")
        seen.add(name)
        values[name] = BY_NAME[name].parse(value, backend)
    settings = Settings(backend, values)
    _check_together(settings)
    return settings


def _check_together(settings: Settings) -> None:
    """Refuse settings that mean nothing beside one another. The reference emulates blocks, so it takes them all.

    Raises:
        UsageError: naming the setting, and what it needs.
    """
    cache = settings.deep_cache
    if cache is not None and (cache.start >= cache.end or cache.interval < 2):
        raise UsageError(
            f"'cache={settings.text('cache')}' skips nothing: START must be below END, and INTERVAL at least 2"
        )
    if settings.backend == "torchax":
        _check_kernel(settings, settings.text("attention.kernel"))


def _check_kernel(settings: Settings, kernel: str) -> None:
    for setting in SETTINGS if kernel != "splash" else ():
        if SPLASH in setting.needs and settings.changed(setting.name):
            raise UsageError(
                f"'{setting.name}={render(settings[setting.name])}' needs a kernel with blocks: give {SPLASH} too "
                f"(this side's is {kernel})"
            )
    if kernel != "splash":
        return
    for name, unit in (("attention.block_q", 8), ("attention.block_kv", SPLASH_BLOCK)):
        if int(settings[name]) % unit:
            raise UsageError(f"splash takes '{name}' in multiples of {unit}, found {settings[name]}")
    if settings.text("attention.softmax_dtype") != "float32":
        raise UsageError(
            "splash always computes its softmax in float32: "
            "'attention.softmax_dtype=bfloat16' needs attention.kernel=sdpa"
        )
    if settings.text("matmul_precision") == "high":
        raise UsageError(
            "splash has no three-pass products: 'matmul_precision=high' needs attention.kernel=sdpa "
            "(splash takes: highest, default)"
        )
