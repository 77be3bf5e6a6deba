"""The rows of `benchmarks/causes.py` as a Markdown page: four figures, then fault by fault."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def is_right(row: Row, golden: str) -> bool:
    """Whether the named causes are the true ones: the first where there is one, all of them where there are more.

    A group of faults whose errors are the same counts as the one that is there, since it is named with it. What passes,
    below the floor, is right where it is said so.
    """
    told, truth = row[golden], row["truth"]
    if row["kind"] == "loop":
        return all(any(cause.startswith(t) for cause, *_ in told["causes"]) for t in truth)
    if told["verdict"] == "pass":
        return row["kind"] != "pair"
    first = told["named"][: len(truth)] or [[name] for name in told["harmless"]]
    return all(any(t in group for group in first) for t in truth)


def _passed(rows: list[Row], golden: str) -> int:
    return sum(r[golden]["verdict"] == "pass" for r in rows)


def _line(label: str, asked: str, rows: list[Row], golden: str) -> str:
    counted = [r for r in rows if r["kind"] == "pair" or r[golden]["verdict"] != "pass"]
    right = sum(is_right(r, golden) for r in counted)
    share = f"{right / len(counted):.0%}" if counted else "-"
    return f"| {label} | {asked} | {right} of {len(counted)} | {share} |"


def markdown(rows: dict[str, Row]) -> str:
    """The page."""
    of: dict[str, list[Row]] = {}
    for row in rows.values():
        of.setdefault(row["kind"], []).append(row)
    single, beside, pair, unknown, loop = (of.get(k, []) for k in ("single", "beside", "pair", "unknown", "loop"))
    far = [r for r in unknown if r["mute"]["verdict"] != "pass"]
    silent = [r for r in far if not r["mute"]["named"] and r["mute"]["unknown"]]
    out = [
        "# Causes", "",
        "Printed by `python benchmarks/causes.py --markdown docs/causes.md`: the candidate is torchax on the tiny",
        "HunyuanVideo-1.5, float32, two steps, CPU, without jit; [explain.md](explain.md) says how causes are found.",
        "Every row is what `parity explain` says of that candidate. *Settings known*: each fault stands beside an",
        "innocent setting, and must come first. *Goldens alone*: the candidate's golden tells neither settings, nor",
        "inputs, nor weights. A fault that the floor hides is not counted as named: the run passes, and says so.",
        "Of an unknown fault stands what its values tell at the first divergence, where they tell anything.",
        "The limits from which a setting that only rounds is named were set on rows of this table.", "",
        "| | asked for | right | |", "|---|---|---|---|",
        _line("faults that are settings, settings known: right cause first", "95 %", beside, "told"),
        _line("the same from goldens alone", "85 %", single, "mute"),
        _line("pairs, settings known: both named", "80 %", pair, "told"),
        _line("pairs, goldens alone: both named", "80 %", pair, "mute"),
        _line("faults of the loop's values, goldens alone: told with their figures", "-", loop, "mute"),
        f"| unknown faults, goldens alone: called unknown | 95 % | {len(silent)} of {len(far)} | "
        f"{len(silent) / max(1, len(far)):.0%} |",
        "",
        f"Below the floor, and said so: {_passed(single, 'mute')} of the settings alone (among them those that change",
        f"nothing), {_passed(beside, 'told')} beside an innocent one, {len(unknown) - len(far)} unknown faults.", "",
    ]  # fmt: skip
    for title, kind, golden in (
        ("Settings known, beside an innocent setting", "beside", "told"), ("Goldens alone", "single", "mute"),
        ("Pairs, settings known", "pair", "told"), ("Pairs, goldens alone", "pair", "mute"),
        ("Unknown faults, goldens alone", "unknown", "mute"),
        ("Patches that do what a setting does, in a block or in all (not counted)", "near", "mute"),
        ("Faults of the loop's values, goldens alone", "loop", "mute"),
    ):  # fmt: skip
        out += [f"## {title}", "", "| candidate | named, with shares | |", "|---|---|---|"]
        out += [_row(name, row, golden) for name, row in rows.items() if row["kind"] == kind]
        out.append("")
    broken = [name for name, row in rows.items() if row["kind"] == "broken"]
    if broken:
        out += ["## Not run", "", *(f"- {name}: {rows[name]['reason'][:160]}" for name in broken), ""]
    return "\n".join(out)


def _row(name: str, row: Row, golden: str) -> str:
    told = row[golden]
    if told["verdict"] == "pass":
        return f"| {name} | passes, below the floor | |"
    named = ", ".join(f"{' or '.join(n)} {s:.0%}" for n, s in zip(told["named"], told["shares"], strict=True))
    named = named or ", ".join(f"{name} harmless" for name in told["harmless"])
    read = "; ".join(cause for cause, *_ in told["causes"])  # off values, where no known fault is named
    said = read if row["kind"] == "loop" else named or read or (told["unknown"] or ["no cause"])[0].partition(":")[0]
    good = (
        not told["named"] and told["unknown"]
        if row["kind"] == "unknown"
        else row["kind"] == "near" or is_right(row, golden)
    )
    return f"| {name} | {said} | {'' if good else 'wrong'} |"
