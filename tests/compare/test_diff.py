"""The diff of two goldens: the verdict of a live run, from what lies on disk; and never more than is known."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parity.compare.diff import Auto, diff
from parity.compare.judge import Judge
from parity.compare.reason import Note
from parity.errors import UsageError
from parity.golden import Golden, StepRecords
from parity.golden.disk.table import Parts, Table
from parity.golden.records import PORT
from parity.golden.rename import decode_rename
from tests.support.made import CANDIDATE, REFERENCE, Walk, noise, none, pair, renamed, tensor, walk, write

FAR = 1e4


def test_within_the_floors_passes(tmp_path: Path) -> None:
    result = diff(*pair(tmp_path))
    assert (result.verdict, result.exit_code, result.failed) == ("pass", 0, None)
    assert [s.step for s in result.steps] == [0, 1]
    assert {c.verdict for c in result.preflight} == {"pass"}
    assert result.model == "tiny"


def test_a_fault_has_the_origin_that_the_judge_finds(tmp_path: Path) -> None:
    result = diff(*pair(tmp_path, fault=FAR))
    assert (result.verdict, result.failed, result.exit_code) == ("fail", "structure", 1)
    assert result.origin is not None
    assert str(result.origin.key) == "transformer step 1 cond blocks.1:out"
    assert result.origin.birth == "module"
    judge = Judge()
    live = [d for step in (0, 1) for d in judge.step(*walk(step, FAR).steps())]
    assert [(d.key, d.verdict, d.birth, d.distance.ratio) for d in result.sites] == [
        (d.key, d.verdict, d.birth, pytest.approx(d.distance.ratio, rel=1e-6)) for d in live
    ]


def test_a_working_dtype_fails_the_precision_round(tmp_path: Path) -> None:
    settings = {**CANDIDATE.settings, "dtype": "bfloat16"}
    result = diff(*pair(tmp_path, fault=FAR, candidate=replace(CANDIDATE, settings=settings)))
    assert result.failed == "precision"
    assert [d.setting for d in result.differing_settings] == ["dtype"]


def test_the_incomparable_is_unjudged_with_the_reason_and_no_part_is_read(tmp_path: Path) -> None:
    reference, candidate = pair(tmp_path, candidate=replace(CANDIDATE, seed=8))
    for part in Path(candidate).glob("*.safetensors"):
        part.unlink()
    result = diff(reference, candidate)
    assert (result.verdict, result.exit_code) == ("unjudged", 125)
    assert result.reason == "not comparable: seed: 7 against 8: the initial noise is another"
    assert result.sites == ()
    assert [c.check for c in result.preflight if c.verdict == "fail"] == ["seed"]


def test_keys_are_counted_in_an_attention_whose_rows_could_not_be_paired(tmp_path: Path) -> None:
    """A script that leaves a stream of padding out: 2 of its 10 tokens are zeroed, and 118 fill a block of 128."""
    rng = np.random.default_rng(6)
    q, k, v = (rng.standard_normal((14, 2, 8)) for _ in range(3))
    weights = np.exp(np.einsum("qhd,khd->hqk", q, k[:8]) / np.sqrt(8))
    out = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v[:8])
    shrunk = np.einsum("hqk,khd->qhd", weights / (weights.sum(-1, keepdims=True) + 2 + 118), v[:8])
    out[8:] = 0.0
    made = Walk(at=0)
    made.loop("latents.before", 0.0)
    made.site("joint:in.hidden_states")
    for port, ours, theirs in (("in.query", q, q[:10]), ("in.key", k, k[:10]), ("out", out, shrunk[:10])):
        sides = (tensor(f"joint.attention:{port}", x[None].astype(np.float32), held=True) for x in (ours, theirs))
        made.pair(*sides)
    made.site("joint:out", FAR)
    made.ends(FAR, FAR)
    script = replace(CANDIDATE, backend=PORT)
    written = [write(tmp_path / p.side, p, [s]) for p, s in zip((REFERENCE, script), made.steps(), strict=True)]
    result = diff(*written)
    assert result.verdict == "fail"
    assert "joint.attention (not compared)" in result.reason
    assert "120.00 phantom keys on cond = its 2 padded text tokens and the 118 that fill 10" in result.causes[0].cause


@pytest.mark.parametrize("port", [True, False])
def test_a_half_step_is_judged_by_what_both_have_whatever_a_port_calls_it(port: bool, tmp_path: Path) -> None:
    """A port may name an output otherwise, and then it is that output; of two like recordings the rest was not made."""
    made = Walk(at=0)
    made.site("blocks.0:in.hidden_states", 0.3)
    made.site("blocks.0:out", FAR if port else 0.3)
    made.loop("noise_pred", FAR if port else 0.3, branch="cond")
    ours, theirs = made.steps()
    if port:
        theirs = renamed_ports(theirs, {"blocks.0:out": "blocks.0:out.0"})
    else:
        theirs = replace(theirs, records=theirs.records[:1])
    reference = write(tmp_path / "a", REFERENCE, [ours])
    script = replace(CANDIDATE, backend=PORT) if port else CANDIDATE
    found = diff(reference, write(tmp_path / "b", script, [theirs], finish=False))
    assert found.verdict == ("fail" if port else "pass"), found.reason
    assert found.origin is None or found.origin.key.site == "blocks.0:out"


def renamed_ports(step: StepRecords, names: dict[str, str]) -> StepRecords:
    keyed = (replace(r, key=replace(r.key, site=names.get(r.key.site, r.key.site))) for r in step.records)
    return replace(step, records=tuple(keyed))


def test_without_floors_only_equality_passes(tmp_path: Path) -> None:
    reference, candidate = pair(tmp_path, floors=False)
    result = diff(reference, candidate)
    assert (result.verdict, result.exit_code, result.origin) == ("unjudged", 125, None)
    assert "no floors" in result.reason
    assert "parity record DIR --floors fp64,rounding" in result.reason
    assert {d.verdict for d in result.sites} == {"unjudged", "pass"}
    assert all(d.birth is None for d in result.sites)
    assert diff(reference, reference).verdict == "pass"


def test_without_floors_a_missing_tensor_is_no_equality(tmp_path: Path) -> None:
    ours = StepRecords(0, (tensor("a:out", noise(1)), tensor("b:in.x", noise(2))))
    theirs = StepRecords(0, (tensor("a:out", noise(1)), none("b:in.x")))
    reference, candidate = write(tmp_path / "a", REFERENCE, [ours]), write(tmp_path / "b", CANDIDATE, [theirs])
    result = diff(reference, candidate)
    assert result.verdict == "unjudged"
    assert "b:in.x (a tensor against None)" in result.reason


def test_a_site_without_a_floor_cannot_fail_a_run_alone(tmp_path: Path) -> None:
    a, b = walk(0).steps()
    key = a.records[-1].key
    some = {k: f for k, f in a.floors.items() if k != key}
    reference = write(tmp_path / "a", REFERENCE, [StepRecords(0, a.records, some)])
    result = diff(reference, write(tmp_path / "b", CANDIDATE, [b]))
    assert result.verdict == "unjudged"
    assert f"1 sites differ whose floors the reference golden does not hold, first {key}" in result.reason
    faulty = walk(1, FAR).steps()[1]
    a = walk(1).steps()[0]
    some = {k: f for k, f in a.floors.items() if k != a.records[-1].key}
    reference = write(tmp_path / "c", REFERENCE, [StepRecords(1, a.records, some)])
    assert diff(reference, write(tmp_path / "d", CANDIDATE, [faulty])).verdict == "fail", (
        "other sites are beyond theirs"
    )


def test_nothing_in_common_is_unjudged(tmp_path: Path) -> None:
    reference = write(tmp_path / "a", REFERENCE, [StepRecords(0, (none("a:out"),))])
    candidate = write(tmp_path / "b", CANDIDATE, [StepRecords(0, (none("a:out"),))])
    assert diff(reference, candidate).verdict == "unjudged"
    empty = write(tmp_path / "c", REFERENCE, [])
    assert diff(empty, empty).verdict == "unjudged"
    assert diff(reference, empty).verdict == "unjudged"


def test_an_unfinished_candidate_is_judged_up_to_its_last_step_and_it_is_said(tmp_path: Path) -> None:
    reference, _ = pair(tmp_path, fault=FAR)
    killed = write(tmp_path / "killed", CANDIDATE, [walk(0, FAR).steps()[1]], finish=False)
    result = diff(reference, killed)
    assert result.verdict == "pass"
    assert any("candidate was not finished: compared up to step 0 (1 steps)" in note.text for note in result.notes)
    assert [s.step for s in result.steps] == [0]


def test_a_damaged_part_is_an_error_even_in_the_last_step(tmp_path: Path) -> None:
    for side in ("reference", "candidate"):
        folder = tmp_path / f"of {side}"
        reference, candidate = pair(folder, fault=FAR)
        part = folder / side / "step-0001.safetensors"
        content = bytearray(part.read_bytes())
        content[-1] ^= 1
        part.write_bytes(content)
        with pytest.raises(UsageError, match=r"step-0001\.safetensors"):
            diff(reference, candidate)


RULES = {"format": 1, "rules": [{"from": r"layers\.(\d+)", "to": r"blocks.\1"}]}


def other_names(folder: Path, fault: float = 0.0) -> tuple[str, str]:
    steps = [walk(step, fault).steps() for step in (0, 1)]
    own = replace(
        CANDIDATE,
        weights={n.replace("blocks", "layers"): w for n, w in CANDIDATE.weights.items()},
        modules={"layers": "", "layers.0": "layers", "layers.1": "layers"},
    )
    theirs = [renamed(b, lambda site: site.replace("blocks", "layers").replace("in.hidden_states", "in.x"))
              for _, b in steps]  # fmt: skip
    reference = write(folder / "reference", REFERENCE, [a for a, _ in steps])
    return reference, write(folder / "candidate", own, theirs)


def test_other_names_are_compared_through_rules(tmp_path: Path) -> None:
    rules = {**RULES, "ports": [{"from": r"(.*):in\.x", "to": r"\1:in.hidden_states"}]}
    result = diff(*other_names(tmp_path, FAR), rename=decode_rename(rules))
    assert result.origin is not None
    assert str(result.origin.key) == "transformer step 1 cond blocks.1:out"
    assert diff(*other_names(tmp_path / "same"), rename=decode_rename(rules)).verdict == "pass"


def test_a_module_s_one_input_needs_no_rule_of_its_own(tmp_path: Path) -> None:
    """The candidate's `in.x` is the reference's `in.hidden_states`: with one input left a side, it can be no other."""
    result = diff(*other_names(tmp_path, FAR), rename=decode_rename(RULES))
    assert result.origin is not None
    assert str(result.origin.key) == "transformer step 1 cond blocks.1:out"
    assert "inputs match (in.x in the candidate), output differs" in result.reason
    assert not any("counterpart" in note.text for note in result.notes)
    same = diff(*other_names(tmp_path / "same"), rename=decode_rename(RULES))
    assert {d.called for d in same.sites if d.key.port == "in.hidden_states"} == {"in.x"}


def test_what_has_no_counterpart_is_counted_not_failed(tmp_path: Path) -> None:
    rules = {"format": 1, "rules": [{"from": r"layers\.(0)", "to": r"blocks.\1"}]}
    result = diff(*other_names(tmp_path), rename=decode_rename(rules))
    assert result.verdict == "pass"
    assert Note("without a counterpart: 4 sites of the reference, 4 of the candidate") in result.notes


def test_auto_finds_the_rules_and_keeps_them(tmp_path: Path) -> None:
    auto = Auto()
    result = diff(*other_names(tmp_path, FAR), rename=auto)
    assert result.origin is not None
    assert str(result.origin.key) == "transformer step 1 cond blocks.1:out"
    assert auto.proposal is not None
    assert auto.proposal.pairs == {"layers.0": "blocks.0", "layers.1": "blocks.1"}
    assert any(note.text.startswith("--map auto: 2 of 2 modules") for note in result.notes)


def test_auto_maps_nothing_between_incomparable_goldens(tmp_path: Path) -> None:
    auto = Auto()
    reference, candidate = pair(tmp_path, candidate=replace(CANDIDATE, seed=8))
    assert diff(reference, candidate, rename=auto).verdict == "unjudged"
    assert auto.proposal is None


def test_auto_is_the_plain_diff_where_names_agree(tmp_path: Path) -> None:
    sides = pair(tmp_path, fault=FAR)
    assert repr(diff(*sides, rename=Auto())) == repr(diff(*sides))


def test_a_rule_that_matches_nothing_is_a_note(tmp_path: Path) -> None:
    rules = {"format": 1, "rules": [{"from": "never", "to": "x"}]}
    assert Note("--map: rule 1 ('never') matches nothing") in diff(*pair(tmp_path), rename=decode_rename(rules)).notes


def test_two_parts_a_side_are_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, candidate = pair(tmp_path, steps=6, candidate=replace(CANDIDATE, steps=2))
    alive: list[weakref.ref[Table]] = []
    most, threads = [], set()
    read = Golden.read_step

    def watched(golden: Golden, step: int, parts: Parts) -> StepRecords:
        threads.add(threading.get_ident())
        gc.collect()
        most.append(sum(ref() is not None for ref in alive))
        found = read(golden, step, parts)
        assert isinstance(found.records, Table)
        alive.append(weakref.ref(found.records))
        return found

    monkeypatch.setattr(Golden, "read_step", watched)
    assert diff(reference, candidate).verdict == "pass"
    assert len(most) == 12
    assert max(most) <= 4, "while a step is read, the one before is judged and the one before that is let go"
    assert len(threads) == 2, "hashing is most of the work"
    assert threading.get_ident() not in threads
