"""What the package's sources may hold: imports of lower layers alone, messages that an installed parity can keep."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import parity

ROOT = Path(parity.__file__).parent
SHARED = {
    "records",
    "sketch",
    "floors",
    "settings",
    "errors",
    "cache",
    "redact",
    "files",
    "signals",
    "transforms",
    "versions",
}
"""Modules that every layer may import."""

BELOW: dict[str, set[str]] = {
    "errors": set(),
    "cache": {"errors"},
    "redact": set(),
    "signals": {"errors"},
    "files": {"errors"},
    "settings": {"errors"},
    "port": set(),
    "records": set(),
    "sketch": {"records"},
    "floors": {"records", "sketch"},
    "transforms": set(),
    "versions": set(),
    "golden": SHARED,
    "compare": SHARED | {"golden"},
    "hooks": SHARED | {"golden"},
    "models": SHARED | {"golden", "hooks"},
    "paths": SHARED | {"golden", "hooks", "models", "port"},
    "recorder": SHARED | {"golden", "hooks", "port"},
    "tpu": SHARED | {"golden", "hooks", "models", "paths"},
    "runs": SHARED | {"golden", "hooks", "models", "paths", "compare", "tpu"},
    "bisect": SHARED | {"golden", "hooks", "models", "paths", "compare", "runs"},
    "causes": SHARED | {"golden", "hooks", "models", "paths", "compare", "runs", "bisect"},
    "report": SHARED | {"golden", "compare"},
}
"""Layer -> what it may import beside itself. The commands stand on top and may import everything."""

TOP = {"", "face", "cli", "commands", "__main__"}
HEAVY = {"torch", "torchax", "jax", "jaxlib", "diffusers", "transformers"}
WITHOUT_HEAVY = {"port", *SHARED, "golden", "compare", "report"}
REPORT_READS = (
    "parity.compare.independent",
    "parity.compare.places",
    "parity.compare.result",
    "parity.compare.reason",
    "parity.compare.sites",
    "parity.records",
)
"""The reports compute nothing: they read result types."""

MODULES = sorted(ROOT.rglob("*.py"))


def imports(source: str, module: str, is_package: bool = False) -> Iterator[str]:
    """Full names of everything a module imports, inside functions too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                parents = parents[: len(parents) - node.level + is_package]
                base = ".".join([*parents, *([base] if base else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def layer_of(name: str) -> str:
    """The part of parity that a full name lies in; `""` for the package itself."""
    return name.split(".")[1] if "." in name else ""


def complaints(module: str, imported: str) -> Iterator[str]:
    """What is wrong with a module importing a name."""
    layer, top = layer_of(module), imported.split(".")[0]
    if layer in WITHOUT_HEAVY and top in HEAVY:
        yield f"{module} imports {top}"
    if top != "parity" or layer in TOP:
        return
    target = layer_of(imported)
    if not target or (not (ROOT / target).is_dir() and not (ROOT / f"{target}.py").is_file()):
        return  # a name of the package itself, such as its version
    if target not in BELOW.get(layer, set()) | {layer}:
        yield f"{module} imports {imported}, which is not below it"
    if layer == "report" and target not in ("report", *SHARED) and not imported.startswith(REPORT_READS):
        yield f"{module} reads {imported}, which is no result type"


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_modules_import_only_from_lower_layers() -> None:
    assert {layer_of(name_of(path)) for path in MODULES} <= {"", *BELOW, *TOP}, "say in BELOW where it stands"
    found = []
    for path in MODULES:
        module = name_of(path)
        for name in imports(path.read_text(encoding="utf-8"), module, path.name == "__init__.py"):
            found += complaints(module, name)
    assert found == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("parity.compare.judge", "def f():\n    from jax import numpy"),
        ("parity.compare.judge", "from parity.hooks.sites import block_of"),
        ("parity.golden.disk.read", "from ...report import terminal"),
        ("parity.paths.loop", "from parity.compare.result import Result"),
        ("parity.report.comparison", "from parity.compare.metrics import distance"),
        ("parity.bisect.commits", "from parity.commands import run"),
    ],
)
def test_what_breaks_a_layer_is_seen(module: str, source: str) -> None:
    assert [c for name in imports(source, module) for c in complaints(module, name)]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("parity.golden.disk.read", "from .codec import decode_step"),
        ("parity.commands.run", "from parity.report import terminal\nfrom parity.paths import loop"),
        ("parity.compare.judge", "from parity import __version__"),
    ],
)
def test_what_keeps_the_layers_is_let_through(module: str, source: str) -> None:
    assert [c for name in imports(source, module) for c in complaints(module, name)] == []


PARENT = (
    "parity", "parity.cli", "parity.golden", "parity.compare", "parity.report.comparison", "parity.commands.run",
    "parity.commands.explain", "parity.commands.diff",
    "parity.runs.compare",
    "parity.face.verbs", "parity.runs.follow",
    "parity.runs.memo", "parity.runs.sides", "parity.causes.explain", "parity.bisect.settings", "parity.paths.plan",
    "parity.paths.worker.wire", "parity.paths.worker.process", "parity.runs.record",
    "parity.tpu.compiler",
)  # fmt: skip
"""What a command's own process runs: torch and jax are its sides' alone."""


def test_commands_load_neither_torch_nor_jax() -> None:
    program = f"import sys, {', '.join(PARENT)}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


# --- what is printed

ELSEWHERE = re.compile(r"\b(docs|tests|examples|benchmarks)/|README|CONTRIBUTING|CHANGELOG")
"""What an installed parity lacks: documents of the repository, folders of it."""


def said(source: str) -> Iterator[str]:
    """Every text of a module but its docstrings: what a message may be made of."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_messages_point_to_nothing_outside_the_wheel() -> None:
    found = []
    for module in MODULES:
        source = module.read_text("utf-8")
        texts = [source] if module.parent.name == "templates" else said(source)  # a template is printed whole
        found += [(module.name, text) for text in texts if ELSEWHERE.search(text)]
    assert found == []


def test_it_would_be_noticed() -> None:
    assert [t for t in said('"""docs/a.md"""\nx = f"see docs/{1}.md"') if ELSEWHERE.search(t)] == ["see docs/"]
