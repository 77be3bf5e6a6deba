"""Loading a port: its file imported under a time limit, its function called, what it returns checked.

Whatever goes wrong is one line that names the user's file and line; `PARITY_DEBUG=1` prints the traceback beside it.
The limit is kept by faulthandler: it ends the process, native code that never returns included, and says where it was.
What a port's code changes for its whole process is seen, said, and put back.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import importlib.util
import inspect
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_args

import torch
from torch import overrides
from torch.utils import _python_dispatch as dispatch

from parity.errors import ParityError, PassingError, UsageError, line_of, summary
from parity.hooks.torchtools import on_jax
from parity.paths.port.installed import Installations, Modules, importable
from parity.paths.port.settings import PortInfo, port_timeout
from parity.port import Case, Layout, Port, Runs
from parity.settings import BY_NAME


@dataclass(frozen=True, kw_only=True)
class Entry(PortInfo):
    """A port's function, imported.

    Attributes:
        function: takes a `parity.port.Case`. modules: those beside its file; None where they are the process's own.
        installed: what it put in the place of others' functions; None where its process is somebody else's.
    """

    function: Callable[[Case], Any]
    modules: Modules | None = field(default=None, compare=False, repr=False)
    installed: Installations | None = field(default=None, compare=False, repr=False)

    @property
    def info(self) -> PortInfo:
        """What can be known of it elsewhere."""
        return PortInfo(**{f.name: getattr(self, f.name) for f in fields(PortInfo)})

    @property
    def path(self) -> Path:
        return Path(self.file)

    def running(self) -> contextlib.AbstractContextManager[None]:
        """Within it the port's code runs: it finds its own modules."""
        return contextlib.nullcontext() if self.modules is None else importable(self.path.parent, self.modules)


def load_entry(option: str, text: str) -> Entry:
    """Import a port's file.

    Raises:
        UsageError: no such file or function, an import that raises or does not end, a `SETTINGS` that is not right.
    """
    name, colon, function = text.rpartition(":")
    if not colon or not name or not function.isidentifier():
        raise UsageError(f"{option} takes FILE:FUNCTION, as in my_port.py:build; found '{text}'")
    file = Path(name).resolve()
    if file.is_dir():
        raise UsageError(
            f"{option}: '{name}' is a folder; name the port's file in it, as in {name}/my_port.py:{function}"
        )
    if not file.is_file():
        lies = file.with_name(f"{file.name}.py")
        hint = f"there is '{name}.py'" if lies.is_file() else f"`parity init {name}` writes a template"
        raise UsageError(f"{option}: '{name}' is no file; {hint}")
    try:
        content = file.read_bytes()  # before any of it runs, which may change it
    except OSError as error:
        raise UsageError(f"{option}: cannot read '{name}': {error.strerror}") from None
    said: list[str] = []
    with kept(said):
        module, modules = _import(option, file)
    if not hasattr(module, function):
        found = [n for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__]
        raise UsageError(f"{option}: '{name}' has no '{function}'; functions in it: {', '.join(found) or 'none'}")
    build = getattr(module, function)
    if not callable(build):
        raise UsageError(f"{option}: '{function}' in '{name}' is of type {type(build).__name__}, not a function")
    with failures(f"{option}: reading SETTINGS in '{file.name}'", file):
        settings = _settings(option, name, getattr(module, "SETTINGS", {}))
    return Entry(
        option=option,
        text=text,
        file=str(file),
        settings=settings,
        digest=hashlib.sha256(content).hexdigest()[:16],
        said=tuple(said),
        function=build,
        modules=modules,
        installed=Installations(file.parent),
    )


def _import(option: str, file: Path) -> tuple[ModuleType, Modules]:
    name = f"parity_port_{option.strip('-').replace('-', '_')}_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{option}: '{file.name}' is no Python file")
    module = importlib.util.module_from_spec(spec)
    modules: Modules = {}
    sys.modules[name] = module
    faulthandler.dump_traceback_later(port_timeout(), exit=True, file=2)  # which its worker passes on
    try:
        with importable(file.parent, modules), failures(f"{option}: importing '{file.name}'", file):
            spec.loader.exec_module(module)
    finally:
        faulthandler.cancel_dump_traceback_later()
    return module, modules


@contextlib.contextmanager
def failures(doing: str, file: Path) -> Iterator[None]:
    """Within it, what a port's code raises becomes one line with the user's file and line.

    Raises:
        UsageError: it raised.
    """
    try:
        yield
    except BaseException as error:
        # A side's process ignores interrupts: one that comes up there was raised by the port.
        interrupted = isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
        if interrupted or isinstance(error, (ParityError, PassingError)):
            raise
        if os.environ.get("PARITY_DEBUG") == "1":
            traceback.print_exc()
        said = f"{summary(error)}{_traced(error)} (PARITY_DEBUG=1: traceback)"
        raise UsageError(f"{doing} raised at {line_of(error, file)}{_library_line(error)}: {said}") from error


_ENGINES = ("torch", "torchax", "jax", "jaxlib", "parity")


def _library_line(error: BaseException) -> str:
    """The innermost line outside of torch, JAX and parity, where that lies in a library that the port calls."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        _, installed, file = frame.filename.partition("site-packages/")
        if installed and file.partition("/")[0] not in _ENGINES:
            return f", in {file}:{frame.lineno} `{frame.line}`"
    return ""


def _traced(error: BaseException) -> str:
    """What to do about Python that looks at a value which a compiled program has not computed yet."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "TracerArrayConversionError" in kinds:
        return "; numpy is given there what the compiled program computes: use jax.numpy"
    if "ConcretizationTypeError" not in kinds:
        return ""
    return "; Python decides there by a value that the compiled program computes: decide it outside, as a constant"


def _settings(option: str, name: str, declared: Any) -> dict[str, str]:
    if not isinstance(declared, Mapping):
        raise UsageError(f"{option}: SETTINGS in '{name}' must map setting names to values, found {declared!r}")
    for setting, value in declared.items():
        if setting not in BY_NAME:
            raise UsageError(
                f"{option}: SETTINGS in '{name}' names '{setting}', no setting (`parity info settings` lists all)"
            )
        # What parity's own paths can take yet says nothing about somebody's port.
        BY_NAME[setting].read(str(value))
    return {setting: str(value) for setting, value in declared.items()}


def build(entry: Entry, case: Case) -> tuple[Port, list[str]]:
    """Call a port's function and check what it returns; returns also what it changed for the process, put back.

    Raises:
        UsageError: it raises, or returns something else than a port.
    """
    where, said = f"{entry.named}: {entry.function.__name__}(case)", list[str]()
    with kept(said), entry.running(), failures(where, entry.path):
        port = checked(entry.function(case), where)
        port = port if entry.installed is None else entry.installed.look(port)
    return port, said


def checked(made: Any, where: str) -> Port:
    """The port that a function returned: a `Port`, or any object with its attributes.

    Raises:
        UsageError: it is none; says which attribute is missing or wrong.
    """
    names = [f.name for f in fields(Port)]
    if not isinstance(made, Port):
        if not any(hasattr(made, name) for name in ("call", "module", "vae")):
            raise UsageError(
                f"{where} returned {_a(made)}; return a parity.port.Port, or an object with `call` (or a torch "
                "`module`) and what else it needs of " + ", ".join(names)
            )
        made = Port(**{name: getattr(made, name) for name in names if hasattr(made, name)})
    is_torch = isinstance(made.module, torch.nn.Module)
    runs = made.runs or (runs_of(made.module) if is_torch else "jax")
    if wrong := _fault(made, runs, is_torch):
        raise UsageError(f"{where} returned a port whose {wrong}")
    return replace(made, runs=runs)


def runs_of(module: torch.nn.Module) -> Runs:
    """Which library a torch module is for, where its port does not say: torchax where that made or compiled it."""
    own = type(module).__module__.partition(".")[0] == "torchax"
    return "torchax" if own or on_jax(module) else "torch"


def _fault(port: Port, runs: str, is_torch: bool) -> str | None:
    decodes_alone = port.call is None and port.module is None and port.vae is not None
    if port.call is None and not callable(port.module) and not decodes_alone:
        return f"`call` is missing, and whose `module` is {_a(port.module)}: give one that can be called"
    for name in ("call", "schedule", "loop", "padded", "vae"):
        if getattr(port, name) is not None and not callable(getattr(port, name)):
            return f"`{name}` is {_a(getattr(port, name))}, not a function"
    if runs not in get_args(Runs):
        return f"`runs` is {runs!r}; it takes {', '.join(get_args(Runs))}"
    if runs != "jax" and not is_torch and not decodes_alone:
        return f"`runs` is {runs!r} and `module` {_a(port.module)}; it needs a torch.nn.Module"
    if runs == "jax" and is_torch:
        return "`runs` is 'jax' and `module` a torch.nn.Module; use 'torchax'"
    if runs == "torch" and isinstance(port.module, torch.nn.Module) and runs_of(port.module) == "torchax":
        return "`runs` is 'torch' and the tensors of `module` are torchax's: leave it out, or give 'torchax'"
    if runs != "jax" and port.weights is not None:
        return f"`weights` are given beside a torch `module` (runs={runs!r}), which holds its own: leave one out"
    if port.layout not in get_args(Layout):
        return f"`layout` is {port.layout!r}; it takes {', '.join(get_args(Layout))}"
    if not isinstance(port.branches, (tuple, list)) or not all(isinstance(b, str) for b in port.branches):
        return f"`branches` is {_a(port.branches)}, not a tuple of names"
    for name in ("rename", "inputs", "shard"):
        if not isinstance(getattr(port, name), Mapping):
            return f"`{name}` is {_a(getattr(port, name))}, not a mapping"
    return None


def _a(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "None" if value is None else f"of type {type(value).__name__}"


# --- what a port's code may change for the whole process


Switch = tuple[Callable[[], Any], Callable[[Any], Any]]
"""What reads a setting of the process, and what sets it."""


@contextlib.contextmanager
def kept(said: list[str]) -> Iterator[None]:
    """Within it, code of a port runs; on leaving, what it changed is put back and named in `said`."""
    before, torchax = {name: read() for name, (read, _) in _switches().items()}, _torchax_on()
    try:
        yield
    finally:
        if _torchax_on() and not torchax:  # before torch's modes, of which it has some
            said.append("turned torchax on for the process (torchax.enable_globally)")
            sys.modules["torchax"].disable_globally()
        for name, (read, write) in _switches().items():
            now, old = read(), before.get(name, _JAX.get(name))
            if now != old:
                said.append(f"changed {name} from {old} to {now}")
                write(old)


def _switches() -> dict[str, Switch]:
    """By name: torch's, its hooks on all modules, and JAX's where it is imported."""
    own = ((name, x) for name, x in vars(torch.nn.modules.module).items() if name.startswith("_global_"))
    hooks = {f"torch's {name}": _pile(x.__len__, x.popitem) for name, x in own if isinstance(x, dict)}
    if "jax" not in sys.modules:
        return _SWITCHES | hooks
    config = sys.modules["jax"].config
    jax = {name: (partial(getattr, config, name), partial(config.update, name)) for name in _JAX}
    return _SWITCHES | hooks | jax


def _pile(count: Callable[[], int], drop: Callable[[], object]) -> Switch:
    """What is added one after the other, as a switch of how many there are; `drop` takes the last one away."""

    def cut(number: int) -> None:
        while count() > number:
            drop()

    return count, cut


class Modes(NamedTuple):
    """A stack of torch's modes of this thread: reads it, innermost last; takes the innermost away; adds one."""

    read: Callable[[], list[Any]]
    pop: Callable[[], object]
    push: Callable[[Any], None]


MODES = (
    Modes(overrides._get_current_function_mode_stack, overrides._pop_mode, overrides._push_mode),
    Modes(dispatch._get_current_dispatch_mode_stack, dispatch._pop_mode, dispatch._push_mode),
)
"""Of functions, and of what they dispatch to."""


def is_torchax(mode: Any) -> bool:
    """Whether a mode is torchax's."""
    return type(mode).__module__.partition(".")[0] == "torchax"


def _torchax_on() -> bool:
    """Whether it is on in this thread: its `enabled` is of the whole process, and of its last operator."""
    return any(map(is_torchax, MODES[0].read()))


_JAX = {
    "jax_enable_x64": False, "jax_default_matmul_precision": None, "jax_numpy_dtype_promotion": "standard",
    "jax_disable_jit": False, "jax_debug_nans": False, "jax_default_device": None, "jax_numpy_rank_promotion": "allow",
}  # fmt: skip
"""JAX's, and what a new process has, for a port that imports JAX itself."""

_SWITCHES: dict[str, Switch] = {
    "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch's float32 matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    # None: setting the CPU explicitly would leave a mode on.
    "torch's default device": (
        torch.get_default_device,
        lambda device: torch.set_default_device(None if device.type == "cpu" else device),
    ),
    "torch's gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch's deterministic mode": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    **{
        f"torch's autocast on {device}": (
            partial(torch.is_autocast_enabled, device),
            partial(torch.set_autocast_enabled, device),
        )
        for device in ("cpu", "cuda")
    },
    "the working folder": (os.getcwd, os.chdir),
    # After the default device, which is one of them.
    "torch's function modes": _pile(lambda: len(MODES[0].read()), MODES[0].pop),
    "torch's dispatch modes": _pile(lambda: len(MODES[1].read()), MODES[1].pop),
}
