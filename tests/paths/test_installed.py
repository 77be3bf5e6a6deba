"""Ports whose code is installed and does not run, and others that may look so."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from diffusers.models import attention_processor
from torch.nn import functional

import parity
from parity.paths.port.installed import Installations, importable, lies_in
from parity.paths.port.load import build, load_entry
from parity.port import Case, Port

torchax = pytest.importorskip("torchax")

NET = """
import torch
from torch.nn import functional as F
from diffusers.models import attention_processor
from parity.port import Port

own = F.scaled_dot_product_attention


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.processor = torch.nn.Linear(8, 8), processor()

    def forward(self, x):
        q = self.lin(prepared(x))[:, None]
        return self.processor(q) if self.processor else F.scaled_dot_product_attention(q, q, q)


def processor():
    return None


def prepared(x):
    return x


def kernel(*given):
    raise NotImplementedError("no TPU here")


def mine(q, *others, **options):
    return own(q, *others, **options)


def falls(q, *others, **options):
    try:
        return kernel(q)
    except Exception:
        return own(q, *others, **options)


def asks(q, *others, **options):
    try:
        return q.nothing
    except AttributeError:
        return own(q, *others, **options)


class Falls:
    def __call__(self, q):
        try:
            return kernel(q)
        except NotImplementedError:
            return own(q, q, q)


class Norm(torch.nn.Module):
    def forward(self, x):
        return x


IMPORTED


def build(case):
    net = Net()
    BUILT
    return Port(module=net, runs="torch")
"""
FUSED, SDPA = "attention_processor.FusedAttnProcessor2_0", "F.scaled_dot_product_attention"
COPIES = "import beside\nimport package.beside\n"
OPERATOR = "import torchax; torchax.default_env().override_op_definition(torch.ops.aten.celu, mine)"
SCALE = "def scale(x):\n    return x\n"
PREPARED = """
def prepared(x):
    try:
        return kernel(x)
    except NotImplementedError:
        return x
"""

FAKES = {
    "method of another class": (
        f"{FUSED}.__call__ = mine",
        "",
        "FusedAttnProcessor2_0.__call__ and was called 0 times",
    ),
    "another function": ("F.celu = mine", "", "torch.nn.functional.celu and was called 0 times"),
    "two others": ("F.celu, F.glu = mine, asks", "", "torch.nn.functional.glu and was called 0 times"),
    "in its function": ("", f"{FUSED}.__call__ = mine", "FusedAttnProcessor2_0.__call__ and was called 0 times"),
    "method of a class that others import": (
        "attention_processor.Attention.get_attention_scores = mine",
        "",
        "was called 0",
    ),
    "decorated": (
        "F.celu = torch.no_grad()(mine)",
        "",
        "own function mine (port.py:32) stands in the place of torch.nn",
    ),
    "part of a function": ("import functools\nF.celu = functools.partial(mine)", "", "own function mine (port.py:32)"),
    "class after the model": ("", f"{FUSED} = Norm", "FusedAttnProcessor2_0 and was called 0 times"),
    "operator of torchax": (OPERATOR, "", "torchax's aten.celu and was called 0 times"),
    "one file under two names": (f"{COPIES}beside.scale = mine", "", "beside.scale and was called 0 times"),
    "the other name": (f"{COPIES}package.beside.scale = mine", "", "package.beside.scale and was called 0 times"),
    "kernel that fell back": (f"{SDPA} = falls", "", "falls (port.py:38) caught NotImplementedError"),
    "processor that fell back": ("processor = Falls", "", "Falls.__call__ (port.py:53) caught NotImplementedError"),
    "helper that fell back": (PREPARED, "", "prepared (port.py:66) caught NotImplementedError"),
    "helper that says whether its kernel ran": (
        """
def prepared(x):
    return x if tried(x) else x * 1


def tried(x):
    try:
        return bool(kernel(x))
    except NotImplementedError:
        return False
""",
        "",
        "tried (port.py:70) caught NotImplementedError",
    ),
    "forward of a base": ("class Net(Net):\n    pass\n" + PREPARED, "", "prepared (port.py:68) caught"),
    "helper of an installed kernel": (f"{SDPA} = mine\n{PREPARED}", "", "caught NotImplementedError"),
}
RIGHT = {
    "nothing": "",
    "kernel": f"{SDPA} = mine",
    "one of two is called": f"{SDPA}, F.celu = mine, asks",
    "asks whether something is there": f"{SDPA} = asks",
    "copies that are alike": COPIES,
    "asks whether a package is there": """
def prepared(x):
    return x if there() else x * 1


def there():
    try:
        return bool(__import__("flash_attn_interface"))
    except ImportError:
        return False
""",
    "asks whether a name is a number": """
def prepared(x):
    try:
        return x * int("blocks")
    except ValueError:
        return x
""",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The port's; what it installs in libraries is taken out again."""
    fused: Any = attention_processor.FusedAttnProcessor2_0
    places = [(functional, name) for name in ("scaled_dot_product_attention", "celu", "glu")]
    scores = (attention_processor.Attention, "get_attention_scores")
    for place, name in [*places, (fused, "__call__"), scores, (attention_processor, fused.__name__)]:
        monkeypatch.setattr(place, name, getattr(place, name))
    monkeypatch.setattr(torchax.default_env(), "_ops", dict(torchax.default_env()._ops))
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "beside.py").write_text(SCALE)
    (tmp_path / "beside.py").symlink_to(tmp_path / "package" / "beside.py")
    return tmp_path


def idle(folder: Path, imported: str, built: str = "pass") -> tuple[str, ...]:
    """What a port says of its installations once it has run."""
    file = folder / "port.py"
    file.write_text(NET.replace("IMPORTED", imported).replace("BUILT", built or "pass"))
    entry = load_entry("--port", f"{file}:build")
    made, _ = build(entry, Case("candidate", "", folder, {}, None, {}))
    made.module(torch.ones(1, 4, 8))
    assert entry.installed is not None
    return entry.installed.idle


@pytest.mark.parametrize(("imported", "built", "words"), FAKES.values(), ids=FAKES)
def test_what_is_installed_in_vain_is_told(imported: str, built: str, words: str, folder: Path) -> None:
    assert words in "; ".join(idle(folder, imported, built))


def test_a_package_may_name_what_its_port_has(tmp_path: Path) -> None:
    for name, text in {"own/__init__.py": "from own.helpers import scale", "own/helpers.py": SCALE}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    installed = Installations(tmp_path)
    with importable(tmp_path, {}):
        importlib.import_module("own")
        installed.look(Port(module=torch.nn.Linear(1, 1), runs="torch"))
    assert installed.idle == ()


@pytest.mark.parametrize("folder", [sys.prefix, sys.base_prefix, "/"])
def test_python_itself_is_no_port(folder: str) -> None:
    installed = Installations(Path(folder).resolve().parent)
    installed.look(Port(module=torch.nn.Linear(1, 1), runs="torch"))
    assert installed.idle == ()


@pytest.mark.parametrize("imported", RIGHT.values(), ids=RIGHT)
def test_what_runs_is_not(imported: str, folder: Path) -> None:
    assert idle(folder, imported) == ()


def test_what_is_installed_in_a_package_of_another_kind_need_not_be_called(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", huggingface_hub.hf_hub_download)  # put back at the end
    assert idle(folder, "import huggingface_hub\nhuggingface_hub.hf_hub_download = mine") == ()


def test_a_port_beside_a_checkout_of_parity_does_not_own_it() -> None:
    package = Path(parity.__file__).parent
    above = package.parent
    assert lies_in(above, str(above / "port.py"))
    assert not lies_in(above, str(package / "port.py"))
