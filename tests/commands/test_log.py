"""`parity log`: what is logged of a comparison, what TensorBoard's files hold, what wandb and mlflow are called with.

TensorBoard's library is the real one. wandb's and mlflow's stand-ins here take what the real ones were seen to take.
"""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from parity.cli import app
from parity.report.tracked import TOP, Image, Tracked, tracked
from tests.compare.make_goldens import pair

PNG = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x02\x00\x00\x00\x90wS\xde\x00\x00\x00\x0c"
    b"IDATx\x9cc\xf8\xcf\xc0\x00\x00\x03\x01\x01\x00\xc9\xfe\x92\xef\x00\x00\x00\x00IEND\xaeB`\x82"
)
"""One red pixel."""


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(x) for x in arguments])


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A folder as `parity run --out` leaves it, of two goldens that part in step 1; with a pair of frames."""
    pair(tmp_path / "run", fault=9.0)
    document = json.loads(invoke("diff", tmp_path / "run/reference", tmp_path / "run/candidate", "--json").stdout)
    assert document["verdict"] == "fail"
    region = {"top": 0, "left": 0, "height": 1, "width": 1, "rel_l2": 0.5}
    apart = {"rel_l2": 0.5, "floor": 1e-3, "ratio": 500.0, "psnr": 9.0, "ssim": 0.5, "region": region}
    document["frames"] = [{"frame": 3, **apart, "in_chain": None}]
    (tmp_path / "run/result.json").write_text(json.dumps(document), "utf-8")
    for side, picture in (("reference", PNG), ("candidate", PNG + b"\0")):
        (tmp_path / "run/frames" / side).mkdir(parents=True)
        (tmp_path / "run/frames" / side / "0003.png").write_bytes(picture)
    cause = {"cause": "the mask is missing", "setting": "attention.mask", "share": 0.75}
    (tmp_path / "run/explain.json").write_text(json.dumps({"causes": [cause]}), "utf-8")
    return tmp_path / "run"


def values(found: Tracked) -> dict[tuple[str, int], float]:
    return {(s.name, s.step): s.value for s in found.scalars}


def test_what_is_logged_is_what_the_document_says(kept: Path) -> None:
    document = json.loads((kept / "result.json").read_text("utf-8"))
    found = tracked(document, "run", {"model": "tiny"}, [Image("frames/reference", 3, PNG)])
    numbers = values(found)
    for step in document["steps"]:
        for output in ("noise_pred", "latents"):
            said = step[output]
            at = (f"comparison/{output}", step["step"])
            assert numbers[f"{at[0]}/rel_l2", at[1]] == said["rel_l2"]
            assert numbers[f"{at[0]}/limit", at[1]] == 3 * numbers[f"{at[0]}/floor", at[1]] == 3 * said["floor"]
    assert numbers["failed", 0] == 1.0
    assert numbers["frames/psnr", 3] == 9.0
    assert all(math.isfinite(value) for value in numbers.values())
    assert found.texts["verdict"] == "fail (structure)"
    assert found.texts["first divergence"].startswith("blocks.1:out")
    worst = {name for name, _ in numbers if name.startswith("sites/blocks.1:out")}
    assert {name.rpartition("/")[2] for name in worst} == {"rel_l2", "floor", "limit", "ratio"}


def test_of_many_sites_those_where_it_is_introduced_come_first(kept: Path) -> None:
    document = json.loads((kept / "result.json").read_text("utf-8"))
    site = next(site for site in document["sites"] if site["verdict"] == "fail")
    grown = [{**site, "site": f"later.{i}:out", "birth": "amplified", "ratio": 1e9} for i in range(3 * TOP)]
    born = {**site, "site": "first:out", "birth": "module", "ratio": 4.0, "step": -1}
    found = tracked({**document, "sites": [born, *grown], "closer": []}, "run", {})
    names = {s.name.split("/")[1] for s in found.scalars if s.name.startswith("sites/")}
    assert len(names) == TOP
    assert any(name.startswith("first:out") for name in names)
    assert min(s.step for s in found.scalars) == 0  # what is outside the loop too: trackers take no other


def events(folder: Path) -> list[Any]:
    """The events of the one file in a folder: length, its checksum, the event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    (file,) = folder.glob("events*")
    data, found = file.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        found.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return found


def test_tensorboard(kept: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    done = invoke("log", kept, "--to", "tensorboard", "--into", tmp_path / "tb", "--name", "a/../b")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"tensorboard --logdir {tmp_path / 'tb' / 'parity'}\n"
    found = [value for event in events(tmp_path / "tb/parity/a_.._b") for value in event.summary.value]
    tags = {value.tag for value in found}
    assert {"comparison/noise_pred/rel_l2", "comparison/latents/limit", "causes/attention.mask", "failed"} <= tags
    pictures = {value.tag: value.image.encoded_image_string for value in found if value.HasField("image")}
    assert pictures == {"frames/reference": PNG, "frames/candidate": PNG + b"\0"}
    again = invoke("log", kept, "--to", "tensorboard", "--into", tmp_path / "tb", "--name", "a/../b")
    assert (again.exit_code, "has a run already" in again.stderr) == (2, True)


def test_wandb_takes_each_step_once_and_in_order(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[dict[str, Any], int]] = []
    begun: dict[str, Any] = {}

    class Run(SimpleNamespace):
        def __enter__(self) -> Run:
            return self

        def __exit__(self, *ended: object) -> None: ...

        def log(self, data: dict[str, Any], step: int) -> None:
            assert not calls or step > calls[-1][1]
            calls.append((data, step))

    def init(**given: Any) -> Run:
        begun.update(given)
        return Run(summary={}, url=None, dir="somewhere")

    fake = ModuleType("wandb")
    vars(fake).update(init=init, Image=lambda image: image.size)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    pytest.importorskip("PIL")
    done = invoke("log", kept, "--to", "wandb", "--offline", "--project", "ports")
    assert (done.exit_code, done.stdout) == (0, "somewhere\n"), done.stderr
    assert (begun["mode"], begun["project"], begun["name"]) == ("offline", "ports", "run")
    assert begun["config"]["candidate/attention.kernel"] == "sdpa"
    assert [step for _, step in calls] == [0, 1, 3]
    assert calls[-1][0]["frames/reference"] == (1, 1)


def test_mlflow_takes_no_more_than_its_api_allows(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[tuple[Sequence[Any], Sequence[Any]]] = []
    files: list[str] = []

    class Client:
        def __init__(self, tracking_uri: str | None) -> None:
            assert tracking_uri == "http://127.0.0.1:9"

        def get_experiment_by_name(self, name: str) -> None: ...

        def create_experiment(self, name: str) -> str:
            return name

        def create_run(self, number: str, run_name: str, tags: dict[str, str]) -> Any:
            assert tags["reason"]
            return SimpleNamespace(info=SimpleNamespace(run_id="1"))

        def log_batch(self, run: str, metrics: Sequence[Any] = (), params: Sequence[Any] = ()) -> None:
            batches.append((metrics, params))

        def log_artifact(self, run: str, file: str, folder: str) -> None:
            files.append(Path(file).name)

        def set_terminated(self, run: str) -> None: ...

    entities = ModuleType("mlflow.entities")
    vars(entities).update(Metric=lambda *given: given, Param=lambda *given: given)
    fake = ModuleType("mlflow")
    vars(fake).update(MlflowClient=Client, entities=entities)
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    done = invoke("log", kept, "--to", "mlflow", "--into", "http://127.0.0.1:9")
    assert (done.exit_code, done.stdout) == (0, "experiment parity, run 1\n"), done.stderr
    assert sorted(files) == ["0003-candidate.png", "0003-reference.png"]
    assert all(len(metrics) <= 1000 and len(params) <= 100 for metrics, params in batches)
    assert any(metric[0] == "comparison/noise_pred/ratio" for metrics, _ in batches for metric in metrics)


@pytest.mark.parametrize("name", ["wandb", "mlflow", "tensorboard"])
def test_a_library_that_is_missing_is_named_with_its_extra(
    name: str, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX" if name == "tensorboard" else name, None)
    done = invoke("log", kept, "--to", name)
    assert done.exit_code == 2
    assert f"pip install 'tpu-parity[{name}]'" in done.stderr


def test_what_cannot_be_logged(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--to takes mlflow, tensorboard, wandb" in invoke("log", kept, "--to", "paper").stderr
    assert "is no kept run" in invoke("log", tmp_path, "--to", "tensorboard").stderr
    (kept / "result.json").write_text('{"verdict": "fail"}', "utf-8")
    done = invoke("log", kept, "--to", "tensorboard")
    assert (done.exit_code, "its documents are damaged" in done.stderr) == (2, True)
    fake = ModuleType("wandb")
    vars(fake).update(init=lambda **given: 1 / 0)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    pair(tmp_path / "other")
    document = invoke("diff", tmp_path / "other/reference", tmp_path / "other/candidate", "--json").stdout
    (tmp_path / "other.json").write_text(document, "utf-8")
    refused = invoke("log", tmp_path / "other.json", "--to", "wandb")
    assert (refused.exit_code, "--to wandb: ZeroDivisionError" in refused.stderr) == (2, True)


def test_no_tracker_is_imported_by_the_command_line() -> None:
    program = "import sys, parity.cli; print(*{m.partition('.')[0] for m in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"wandb", "mlflow", "tensorboardX"} & set(loaded)
