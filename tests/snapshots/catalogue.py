"""The commands whose output is frozen, as data: what is run, after what, and what stands in the snapshot.

Each command is run in one common working folder (`scene.prepare` fills it), by relative paths, so that one may read
what another kept. Together they reach every verb, both verdicts of each, and every kind of side.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Literal

JSON = "--json"
"""The document is what the command prints when it is run again with `--json`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """One frozen command.

    Attributes:
        name: of the snapshot, and what `check NAME` takes.
        line: the arguments of `parity`, as a shell would split them.
        document: `--json`, or the file (relative to the working folder) that holds the same document, which spares a
            second run; empty where the command has none.
        after: commands whose files this one reads.
        quick: needs neither torch nor jax, so that it takes a second and its numbers are the same everywhere.
        kept: `all`; `labels`: the document's keys and the words before the colons, where its values are the machine's;
            `options`: the names, forms and defaults of the options that a help page lists.
        stderr: whether stderr is frozen too; where the exit code is 2 or 125 without a document, it always is.
    """

    name: str
    line: str
    document: str = ""
    after: tuple[str, ...] = ()
    quick: bool = False
    kept: Literal["all", "labels", "options"] = "all"
    stderr: bool = False

    @property
    def argv(self) -> list[str]:
        return shlex.split(self.line)


def _run(name: str, options: str, steps: int = 1) -> Command:
    """`parity run`, whose document is kept beside the run."""
    line = f"run --steps {steps} {options} --out {name}".replace("  ", " ")
    return Command(name=name, line=line, document=f"{name}/result.json")


GOLDEN = "golden/tiny-hunyuan-video-1.5"
BFLOAT16 = "--reference dtype=bfloat16 --candidate dtype=bfloat16"
PORTS = "--reference-path model.py:reference --candidate-path"
STORY = ["attention.mask=none", "vision_states=none", "text.reorder=concatenate", "text.byt5_dtype=bfloat16"]

QUICK = (
    Command(name="models", line="models", document=JSON, quick=True),
    Command(name="doctor", line="doctor", document=JSON, kept="labels"),
    Command(name="unknown-setting", line="run --candidate attention.masks=none", quick=True),
    Command(name="invalid-value", line="run --candidate attention.mask=some", quick=True),
    Command(name="wrong-backend", line="run --reference attention.kernel=splash", quick=True),
    Command(name="invalid-option", line="run --forcing sometimes", quick=True),
    Command(name="missing-golden", line=f"diff {GOLDEN} nowhere", quick=True),
    Command(name="missing-file", line="run --stage1 nowhere.safetensors"),
    Command(name="missing-port", line="run --candidate-path nowhere.py:build"),
    Command(name="inspect", line=f"inspect {GOLDEN} --verify", document=JSON, quick=True),
    Command(name="inspect-step", line=f"inspect {GOLDEN} --step 0", document=JSON, quick=True),
    Command(name="inspect-damaged", line="inspect damaged --verify", document=JSON, quick=True),
    Command(name="diff-same", line=f"diff {GOLDEN} {GOLDEN}", document=JSON, quick=True),
    Command(name="diff-changed", line=f"diff {GOLDEN} changed", document=JSON, quick=True),
    Command(name="diff-renamed", line=f"diff {GOLDEN} renamed --map auto", document=JSON, quick=True, stderr=True),
    Command(name="diff-other-seed", line=f"diff {GOLDEN} other-seed", document=JSON, quick=True),
    Command(name="merge", line="merge merged first second", quick=True, stderr=True),
    Command(name="merge-conflict", line="merge twice first first", quick=True),
    Command(name="inspect-merged", line="inspect merged --verify", document=JSON, after=("merge",), quick=True),
    Command(
        name="bisect-commits",
        line="bisect commits --repo history --good ':/commit 0$' --run 'test ! -e broken' --state commits.json",
        document=JSON,
        quick=True,
    ),
)

RUNS = (
    Command(name="run-default", line="run --steps 1", document=JSON),
    _run("run-mask-none", "--candidate attention.mask=none"),
    _run("run-zero-kv", "--candidate attention.mask=zero_kv"),
    _run("run-harmless", "--candidate vision_states=none --candidate text.reorder=concatenate"),
    Command(name="run-schedule", line="run --steps 50 --candidate schedule_dtype=bfloat16", document=JSON),
    _run("run-latents-dtype", "--candidate latents_dtype=bfloat16 --forcing step", steps=4),
    _run("run-bfloat16", BFLOAT16),
    _run("run-bfloat16-float32", "--candidate dtype=bfloat16"),
    _run("run-forcing-module", "--forcing module --candidate refiner.mask=none"),
    _run("run-sites-all", "--sites all"),
    _run("run-precision", f"--rounds precision {BFLOAT16} --candidate attention.mask=zero_kv"),
    _run("run-story", " ".join(f"--candidate {setting}" for setting in STORY)),
    _run("run-cogvideox-1.0", "--model tiny-cogvideox-1.0"),
    _run("run-cogvideox-1.5", "--model tiny-cogvideox-1.5"),
    _run("run-stages", "--stages text,transformer,vae"),
    _run("run-stages-bfloat16", "--stages text,transformer,vae --candidate text.byt5_dtype=bfloat16"),
    _run("run-splash", "--candidate attention.kernel=splash --candidate attention.mask=segment_ids"),
    _run("run-jax-port", f"{PORTS} port.py:build"),
    _run("run-jax-port-faulty", f"{PORTS} faulty.py:build"),
    _run("run-torch-port", f"{PORTS} torch_port.py:build"),
    _run("run-torch-port-faulty", f"{PORTS} torch_faulty.py:build --forcing module"),
)

VERBS = (
    Command(
        name="explain-run", line="explain run-zero-kv", document="run-zero-kv/explain.json", after=("run-zero-kv",)
    ),
    Command(
        name="report",
        line="report run-zero-kv",
        document="run-zero-kv/report.html",
        after=("run-zero-kv", "explain-run"),
    ),
    Command(name="record-reference", line="record reference --values 'transformer_blocks.?:in'", stderr=True),
    Command(
        name="record-candidate",
        line="record candidate --side candidate --setting attention.mask=zero_kv",
        stderr=True,
    ),
    Command(name="inspect-recorded", line="inspect reference --step 0", document=JSON, after=("record-reference",)),
    Command(
        name="diff-recorded",
        line="diff reference candidate",
        document=JSON,
        after=("record-reference", "record-candidate"),
    ),
    Command(
        name="explain-goldens",
        line="explain reference candidate",
        document=JSON,
        after=("record-reference", "record-candidate"),
    ),
    Command(name="replay", line="replay reference", document=JSON, after=("record-reference",)),
    Command(
        name="replay-mask-none",
        line="replay reference --setting attention.mask=none",
        document=JSON,
        after=("record-reference",),
    ),
    Command(
        name="sweep",
        line="sweep --steps 1 --one-at-a-time --set attention.mask=none,zero_kv --set attention.kernel=flex "
        "--state sweep.json",
        document=JSON,
    ),
    Command(
        name="bisect-settings",
        line="bisect settings --rounds structure --candidate attention.mask=none --candidate vision_states=none "
        "--candidate rope=cached --state settings.json",
        document=JSON,
    ),
    Command(
        name="bisect-modules", line="bisect modules --candidate attention.mask=none --state modules.json", document=JSON
    ),
    Command(
        name="bisect-steps",
        line="bisect steps --steps 4 --candidate latents_dtype=bfloat16 --state steps.json",
        document=JSON,
    ),
)

VERBS_WITH_HELP = (
    *("run", "record", "replay", "explain", "diff", "gate", "inspect", "merge", "report", "sweep", "init", "models"),
    "doctor",
    *("bisect", "bisect settings", "bisect modules", "bisect steps", "bisect commits"),
)
HELP = tuple(
    Command(name=f"help-{verb.replace(' ', '-')}", line=f"{verb} --help", quick=True, kept="options")
    for verb in VERBS_WITH_HELP
)

COMMANDS = (*HELP, *QUICK, *RUNS, *VERBS)


def chosen(names: list[str]) -> list[Command]:
    """The commands with these names, or all; each after those that it reads from.

    Raises:
        KeyError: a name that is no command's.
    """
    by_name = {command.name: command for command in COMMANDS}
    ordered: dict[str, Command] = {}

    def add(name: str) -> None:
        for earlier in by_name[name].after:
            add(earlier)
        ordered.setdefault(name, by_name[name])

    for name in names or by_name:
        add(name)
    return list(ordered.values())
