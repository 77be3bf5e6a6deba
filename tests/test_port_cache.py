"""A port with a feature cache of its own: parity says at which steps it may skip, and carries what it keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.errors import UsageError
from tests.ports import PORT, REFERENCE
from tests.test_run_ports import compare

CACHE = "deepcache:0,2,2"

CACHED_REFERENCE = (
    REFERENCE.replace(
        "def forward(self, hidden_states, timestep):",
        """def forward(
        self, hidden_states, timestep, kept=None, keeps=False
    ):""",
    )
    .replace(
        """        for block in self.blocks:
            x = block(x, temb)
        return self.out(x).transpose(1, 2).unflatten(2, grid)
""",
        """        before = x
        for block in self.blocks if kept is None else ():
            x = block(x, temb)
        kept = (x - before,) if kept is None else kept
        out = self.out(before + kept[0]).transpose(1, 2).unflatten(2, grid)
        return (out, kept) if keeps else out
""",
    )
    .replace(
        "def reference(case):\n    return Port(module=TinyDiT(), inputs=inputs())",
        """SETTINGS = {"cache": "CACHE"}


def reference(case):
    net, keeps = TinyDiT(), case.settings["cache"] != "off"
    return Port(module=net, call=lambda inputs, kept=None: net(**inputs, kept=kept, keeps=keeps), inputs=inputs())""",
    )
)

CACHED_PORT = (
    PORT.replace("def forward(w, inputs):", "def forward(w, inputs, kept=None, keeps=False):")
    .replace("    for i in range(2):", "    before = x\n    for i in range(2 if kept is None else 0):")
    .replace(
        '    return linear(w, "out", x).reshape(1, *grid, -1)',
        """    kept = (x - before,) if kept is None else kept
    out = linear(w, "out", before + kept[0]).reshape(1, *grid, -1)
    return (out, kept) if keeps else out""",
    )
    .replace("SETTINGS = {", 'SETTINGS = {"cache": "CACHE", ')
    .replace(
        "call=forward",
        'call=partial(forward, keeps=True) if case.settings["cache"] != "off" else forward',
    )
    .replace("import jax\n", "from functools import partial\n\nimport jax\n", 1)
)


def write(folder: Path, ours: str, theirs: str, steps: int) -> tuple[str, str]:
    text = CACHED_REFERENCE.replace("torch.tensor([0.7])", f"torch.linspace(0.9, 0.3, {steps})")
    (folder / "model.py").write_text(text.replace("CACHE", ours))
    (folder / "port.py").write_text(CACHED_PORT.replace("CACHE", theirs))
    return f"{folder / 'model.py'}:reference", f"{folder / 'port.py'}:build"


def test_both_sides_keep_and_skip_at_the_same_steps(tmp_path: Path) -> None:
    assert CACHED_PORT.count("kept") > 5
    same = compare(*write(tmp_path, CACHE, CACHE, 4), steps=4)
    assert same.verdict == "pass", same.reason
    called = {d.key.step for d in same.sites if d.key.module == "blocks.0"}
    assert called == {0, 2}, "the blocks are called at the steps that are multiples of the interval"


def test_a_cache_of_one_side_differs_where_it_skips(tmp_path: Path) -> None:
    other = compare(*write(tmp_path, "off", CACHE, 3), steps=3)
    assert [d.setting for d in other.differing_settings] == ["cache"]
    ratios = [step.noise_pred.ratio for step in other.steps]
    assert ratios[0] < 3 < ratios[1]
    assert other.verdict == "fail"


def test_a_port_that_does_not_return_what_it_keeps_is_told(tmp_path: Path) -> None:
    paths = write(tmp_path, "off", CACHE, 2)
    port = tmp_path / "port.py"
    port.write_text(port.read_text().replace("return (out, kept) if keeps else out", "return out"))
    with pytest.raises(UsageError, match=r"with a cache `call\(..., kept\)` returns \(prediction, kept\)"):
        compare(*paths, steps=2)
