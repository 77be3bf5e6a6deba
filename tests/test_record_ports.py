"""Ports recorded to goldens and compared without their code: the commands that are not `parity run`."""

from __future__ import annotations

from pathlib import Path

from parity.golden import Golden
from tests.ports import PORT, write
from tests.test_run import parity


def test_goldens_of_a_port_and_its_reference_are_diffed(tmp_path: Path) -> None:
    faulty = PORT.replace('linear(w, name + ".qkv", h)', 'linear(w, name + ".qkv", h) * (1.01 if "1" in name else 1)')
    reference, candidate = write(tmp_path)
    _, broken = write(tmp_path, faulty, "broken.py")
    where = {name: str(tmp_path / name) for name in ("reference", "candidate", "broken")}
    assert parity("record", where["reference"], "--reference-path", reference, "--sites", "all").code == 0
    ports = {"candidate": candidate, "broken": broken}
    for name, port in ports.items():
        options = ["--side", "candidate", "--reference-path", reference, "--candidate-path", port, "--sites", "all"]
        done = parity("record", where[name], *options)
        assert done.code == 0, done.err
    told = Golden.open(where["candidate"]).provenance
    assert told.backend == "port"
    assert {"embed", "blocks.0", "blocks.1.qkv"} <= set(told.modules), "what it taps, under the reference's names"
    same = parity("diff", "--json", where["reference"], where["candidate"])
    assert (same.code, same.json["verdict"]) == (0, "pass"), same.json["reason"]
    assert "blocks.1.qkv:out" in {s["site"] for s in same.json["sites"]}
    other = parity("diff", "--json", where["reference"], where["broken"])
    assert (other.code, other.json["origin"]["site"]) == (1, "blocks.1.qkv:out")


def test_a_candidates_port_is_not_recorded_as_a_reference(tmp_path: Path) -> None:
    done = parity("record", str(tmp_path / "golden"), "--candidate-path", write(tmp_path)[1])
    assert (done.code, "--side candidate" in done.err) == (2, True)
