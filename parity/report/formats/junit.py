"""A result as JUnit XML, which CI servers show as a list of tests.

Why. A CI server tells a person which tests failed, not which of 20,000 sites; so sites are put together, and the
numbers that a person asks for next stand in the failure itself.

How. One test case for each block, step and branch, in execution order, its class the stage and step; the worst sites
that failed are in the failure's text. What could not be judged is an error, which no CI server takes for a pass; a
result without any site is one case of its own. Names come from somebody else's file: characters that XML 1.0 cannot
hold are written as Python would escape them. No times and no host: equal results give equal bytes.

Cost. One pass over the sites; a few hundred bytes a case.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from parity.compare.result import Result, SiteDiff
from parity.errors import UsageError
from parity.report.comparison import Comparison
from parity.report.document import Document, distance_cells
from parity.report.tables import block_of, remarks

MOST_SITES = 20
"""Sites listed in one failure."""

Group = tuple[str, int, str, str]

_DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>'
_NOT_XML = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(document: Document) -> str:
    """The XML document; ends with a newline.

    Raises:
        UsageError: another document than a comparison.
    """
    if not isinstance(document, Comparison):
        raise UsageError("--format junit lists the blocks of a comparison; --format json has any document")
    result = document.result
    cases = [_verdict_case(result), *(_case(result, group, sites) for group, sites in grouped(result))]
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": str(sum(case.find("error") is not None for case in cases)),
        "skipped": "0",
    }
    suites = Element("testsuites", counts)
    SubElement(suites, "testsuite", {"name": plain(f"parity {result.model}".strip()), **counts}).extend(cases)
    indent(suites, "")
    return f"{_DECLARATION}\n{tostring(suites, encoding='unicode')}\n"


def grouped(result: Result) -> Iterator[tuple[Group, list[SiteDiff]]]:
    """(stage, step, branch, block) -> its sites that decide, in execution order, the groups of one step at a time."""
    for _, sites in itertools.groupby(result.sites, lambda d: d.key.step):
        found: dict[Group, list[SiteDiff]] = {}
        for site in sites:
            if site.verdict != "ignored":
                key = site.key
                found.setdefault((key.stage, key.step, key.branch, block_of(key.module)), []).append(site)
        yield from found.items()


def plain(text: str) -> str:
    """The text without the characters that XML cannot hold."""
    return _NOT_XML.sub(lambda match: ascii(match[0])[1:-1], text)


def _verdict_case(result: Result) -> Element:
    """The verdict itself, so that a result without sites is no empty success."""
    case, notes = Element("testcase", classname="parity", name="verdict"), [note.text for note in result.notes]
    if result.verdict == "fail":
        _problem(case, "failure", result.reason, result.failed or "diverged", [result.reason, *notes])
    elif result.verdict == "inconclusive":
        blocking = [f"{c.check}: {c.detail}" for c in result.preflight if c.verdict == "fail"]
        _problem(case, "error", result.reason, "inconclusive", [result.reason, *blocking, *notes])
    return case


def _case(result: Result, group: Group, sites: Sequence[SiteDiff]) -> Element:
    stage, step, branch, block = group
    where = f"{stage}.step {step}" + (f".{branch}" if branch else "")
    case = Element("testcase", classname=plain(where), name=plain(block))
    failed = [site for site in sites if site.verdict == "fail"]
    unknown = [site for site in sites if site.verdict == "inconclusive"]
    if failed and result.verdict == "fail":
        born = next((f", introduced here ({s.birth})" for s in failed if s.birth in ("input", "module")), "")
        message = f"{len(failed)} of {len(sites)} sites beyond their floors{born}: {line(failed[0])}"
        _problem(case, "failure", message, "diverged", _lines(failed))
    elif unknown:
        message = f"{len(unknown)} of {len(sites)} sites differ and have no floor: {line(unknown[0])}"
        _problem(case, "error", message, "inconclusive", _lines(unknown))
    return case


def _problem(case: Element, element: str, message: str, kind: str, lines: Sequence[str]) -> None:
    SubElement(case, element, message=plain(message), type=plain(kind)).text = plain("\n".join(lines))


def _lines(sites: Sequence[SiteDiff]) -> list[str]:
    more = len(sites) - MOST_SITES
    return [*map(line, sites[:MOST_SITES]), *([f"and {more} more: --format json has all"] if more > 0 else [])]


def line(site: SiteDiff) -> str:
    """A site and its numbers in one line."""
    far, floor, ratio = distance_cells(site.distance)
    told = ", ".join(remarks(site))
    return f"{site.key}: rel L2 {far}, floor {floor}, ratio {ratio}" + (f" ({told})" if told else "")
