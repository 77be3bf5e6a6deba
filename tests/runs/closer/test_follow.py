"""The reference on the candidate's own values: an error that the free run's floors hide is found, in ports too."""

from __future__ import annotations

from pathlib import Path

from parity.compare.result import Result
from parity.paths.live import InProcess
from tests.support import ports
from tests.support.tiny_dit import PORT, write

WAVY = """
class Wave(torch.nn.Module):
    def forward(self, x):
        return torch.sin(4000.0 * x)


class TinyDiT"""
"""An elementary function of a large argument, in front of the blocks."""


def compare(tmp_path: Path, port: str) -> Result:
    """A port in JAX against its reference, whose block is behind an elementary function of a large argument."""
    texts = write(tmp_path, port)
    model, made = tmp_path / "model.py", "self.time = torch.nn.Linear(1, width)"
    text = model.read_text().replace("class TinyDiT", WAVY).replace(made, f"{made}\n        self.wave = Wave()")
    model.write_text(text.replace("self.time(timestep[:, None])", "self.wave(self.time(timestep[:, None]))"))
    return ports.compare(*texts, openers=InProcess())


WAVE = PORT.replace(
    'tap("time", linear(w, "time", inputs["timestep"][:, None]))',
    'tap("wave", jnp.sin(4000.0 * tap("time", linear(w, "time", inputs["timestep"][:, None]))))',
)
PROJ = 'tap(name + ".proj", linear(w, name + ".proj", h))'


def test_a_small_error_behind_a_wide_floor_is_found_where_it_is(tmp_path: Path) -> None:
    result = compare(tmp_path, WAVE)
    assert result.verdict == "pass", result.reason
    floor = next(d for d in result.sites if d.key.site == "blocks.1:out").distance.floor
    wrong = WAVE.replace(PROJ, PROJ.replace(", h)", ", h * (1 + 1e-5))"))
    assert wrong != WAVE
    assert floor > 1e-5, "the free run's floor hides the error"
    result = compare(tmp_path, wrong)
    assert (result.verdict, result.origin and result.origin.key.site) == ("fail", "blocks.0.proj:out")
    assert "on the candidate's own values before it, output differs by" in result.reason
