"""Every program in benchmarks/ can be started, and those that measure observing run in their smallest form."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from parity.golden import Golden
from parity.models.spec import Case

pytestmark = pytest.mark.slow

pytest.importorskip("torchax")
FOLDER = Path(__file__).parents[1] / "benchmarks"
PROGRAMS = sorted(f.stem for f in FOLDER.glob("*.py") if "__main__" in f.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def _found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_says_what_it_takes(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{program}.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(program).main()
    assert ended.value.code == 0
    assert "usage:" in capsys.readouterr().out


def test_observe_in_its_smallest_form(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    observe = importlib.import_module("observe")
    asked = "--blocks 1 --frames 1 --repeats 1 --sites blocks"
    monkeypatch.setattr(sys, "argv", ["observe.py", *asked.split()])
    observe.main()
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[3:]]
    assert rows == [[side, sites] for side in ("torch", "torchax") for sites in ("unobserved",) * 2 + ("blocks",) * 2]


def test_the_table_of_families_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    families = importlib.import_module("families")
    state, document = tmp_path / "state.json", tmp_path / "families.md"
    asked = ["--family", "cogview4", "--family", "zimage", "--how", "float32-jit", "--state", str(state)]
    monkeypatch.setattr(sys, "argv", ["families.py", *asked, "--markdown", str(document)])
    families.main()
    lines = document.read_text().partition("\n| class")[1:]
    lines = "".join(lines).strip().splitlines()
    assert lines[0] == "| class | float32 jit |"
    assert lines[2].startswith("| CogView4Transformer2DModel | pass, ")
    assert lines[3] == "| ZImageTransformer2DModel | refused |"
    assert lines[5].startswith("- ZImageTransformer2DModel: ")
    assert lines[-1].startswith("1 of 2 passed. Measured on a CPU")
    capsys.readouterr()
    monkeypatch.setattr(families, "outcome", None)  # what is known is not run again
    families.main()
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["cogview4", "zimage"]


def test_what_needs_a_gpu_runs_on_a_cpu_and_says_that_it_did() -> None:
    gpu = importlib.import_module("gpu")
    assert "no GPU" in gpu.machine("cpu").lines[1]
    assert len(gpu.products("cpu", gpu.SMALL).lines) == 5
    large = gpu.large("cpu", gpu.SMALL).lines
    assert [line.split(":")[0] for line in large[1:4]] == ["unobserved", "blocks", "all"]
    assert large[4] == "observed outputs equal the unobserved bit for bit: yes"
    assert large[5] == "the same call again, unobserved: 0.00e+00 apart at most"


def test_a_command_of_the_gpu_s_report_is_told_with_its_figures() -> None:
    gpu = importlib.import_module("gpu")
    golden = str(FOLDER.parent / "golden" / "tiny-hunyuan-video-1.5")
    assert gpu._command(("diff", golden, golden)).startswith("pass, noise_pred 0.00e+00, floor ")
    assert gpu._command(("diff", golden, "nowhere")).startswith("exit code 2, ")


def test_without_a_gpu_no_report_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = importlib.import_module("gpu")
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--markdown", str(tmp_path / "gpu.md")])
    assert gpu.main() == 2
    assert not (tmp_path / "gpu.md").exists()
    assert "--small" in capsys.readouterr().err


def test_full_size_goes_on_where_it_stopped_and_tells_what_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full, plans = importlib.import_module("full_size"), importlib.import_module("full_size_plan")

    def program(depth: int, more: int) -> Any:
        memory = {"arguments": depth << 30, "temporaries": more << 30, "output": 0, "code": 0, "aliased": 0}
        sent = {"all-reduce": (10 * depth, depth << 30)}
        return full.Program(memory=memory, accessed=(depth + more) * 10**9, flops=depth, collectives=sent)

    case, refused, *_ = full.CASES
    known = [
        full.Outcome(case=case, depth=d, plain=program(d, 1), observed=program(d, 2), units=(40, 38, 1)) for d in (2, 4)
    ]
    no = full.Program(refusal="the kernel needs 2 MiB")
    known.append(full.Outcome(case=refused, depth=2, plain=no, observed=no))
    figures = {"records": 7, "step_bytes": 10**9, "parameters": 10**9, "latents": 1}
    blocks = {"block_ports": 1 << 28, "block_inner": 0, "block_parameters": 0}
    state, document = tmp_path / "state.json", tmp_path / "full-size.md"
    planned = {name: plans.Plan(**figures, **blocks) for name in full.MODELS}
    full.write_state(state, {o.key: o for o in known}, planned)
    asked = [f"--case={case}", f"--case={refused}", "--hours=0", "--state", str(state), "--markdown", str(document)]
    monkeypatch.setattr(sys, "argv", ["full_size.py", *asked])
    full.main()
    said = capsys.readouterr().out.splitlines()
    assert said == [
        f"{case} 2: 38 of 40 units unchanged, 1 cut, bytes accessed 1.33 x, temporaries 2.00 x (0 and 0 s)",
        f"{case} 4: 38 of 40 units unchanged, 1 cut, bytes accessed 1.20 x, temporaries 2.00 x (0 and 0 s)",
        f"{refused} 2: refused: the kernel needs 2 MiB",
    ]
    text = document.read_text()
    # 54 blocks of a GiB each, and what does not grow with them.
    assert "| 54 | 55.00 GiB, 56.00 GiB | 32.00 GiB | 55 GB, 56 GB (1.02 x) | all-reduce 540, 54.00 GiB |" in text
    assert "| 2 | no: the kernel needs 2 MiB | - | - | - |" in text
    assert f"Not measured: {len(full.CASES) - 2} of {len(full.CASES)} cases" in text
    assert "| 1.00 billion | 7 | 50.0 GB | 11 GiB | 1.0 GiB |" in text


def test_the_size_of_a_golden_by_its_plan_is_that_of_one_recorded(tiny_case: Case) -> None:
    plan = importlib.import_module("full_size_plan")
    golden = FOLDER.parent / "golden" / "tiny-hunyuan-video-1.5"
    (part,) = golden.glob("*.safetensors")
    traced = plan._traced(tiny_case.folder, "blocks")
    assert traced.step_bytes == pytest.approx(part.stat().st_size, rel=0.02)
    assert traced.records == len(Golden.open(golden).read_step(0).records)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (extra aot)")
def test_full_size_in_its_smallest_form(tiny_case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    full, models = importlib.import_module("full_size"), importlib.import_module("full_size_models")
    large = models.MODELS["hunyuan-video-1.5"]
    small = {"num_attention_heads": 2, "num_refiner_layers": 1, "text_embed_dim": 64, "text_embed_2_dim": 48}
    spec = {"height": 64, "width": 96, "num_frames": 5, "tokenizer_max_length": 64, "tokenizer_2_max_length": 32}
    model = dataclasses.replace(
        large,
        transformer={**large.transformer, **small},
        spec={**large.spec, **spec, "vision_num_semantic_tokens": 16},
    )
    case = full.Case(model="hunyuan-video-1.5", topology="v6e:2x2", mesh=(1, 1, 1), blocks=(0, 0))
    found = full.outcome(case, model, 1, 600.0)
    assert found.failed == ""
    assert found.plain.refusal == found.observed.refusal == ""
    assert 0 < found.units[1] <= found.units[0]
    assert found.plain.accessed < found.observed.accessed
