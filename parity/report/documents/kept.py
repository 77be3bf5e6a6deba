"""`request.json` of a kept run."""

from __future__ import annotations

from typing import TypedDict


class KeptRequest(TypedDict):
    """What `parity explain` needs beside the records to run the sides again: files by their paths on the machine of the
    run, ports as `FILE:FUNCTION` with a digest of the file, settings as `NAME=VALUE` where they are not the defaults,
    and a seal by which its user's own runs are known."""

    stage1: str | None
    prompt: str | None
    model: str | None
    inputs: str | None
    reference_path: str | None
    candidate_path: str | None
    reference_code: str | None
    candidate_code: str | None
    stages: list[str]
    stage2: str | None
    reference: list[str]
    candidate: list[str]
    steps: int
    seed: int
    seal: str
