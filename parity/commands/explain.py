"""`parity explain`: checks the arguments, finds the causes, prints."""

from __future__ import annotations

from pathlib import Path

from parity.errors import UsageError
from parity.paths.extras import check_extras, quieten
from parity.report.console import make_consoles
from parity.report.json_report import dumps
from parity.report.progress import progress
from parity.report.terminal import print_result


def explain_command(
    *,
    first: str,
    second: str | None,
    model: str | None,
    stage1: Path | None,
    prompt: str | None,
    as_json: bool,
) -> int:
    """Explain and print; returns the exit code of the comparison.

    Raises:
        ParityError: see `parity.causes.explain.explain`.
    """
    quieten()
    console, errors = make_consoles()
    with progress(errors, quiet=as_json) as say:
        check_extras(torchax=second is None)
        from parity.causes.explain import ExplainRequest, explain, of_run
        from parity.runs.sides import Workers

        goldens = None if second is None else ExplainRequest(first, second, None, model, stage1, prompt)
        with Workers() as openers:
            request = goldens or of_run(Path(first), openers)
            result = explain(request, openers, say)
    document = dumps(result)
    if second is None:
        _keep(Path(first), document)
    if as_json:
        print(document)
    else:
        print_result(result, console)
    return result.exit_code


def _keep(run: Path, document: str) -> None:
    """Keep the causes beside the run, for `parity report`.

    Raises:
        UsageError: the folder cannot be written.
    """
    where = run / "explain.json"
    try:
        where.with_suffix(".tmp").write_text(document + "\n", encoding="utf-8")
        where.with_suffix(".tmp").replace(where)
    except OSError as error:
        raise UsageError(f"cannot keep the causes in '{where}': {error.strerror}") from None
