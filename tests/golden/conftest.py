"""Fixtures of goldens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from parity.golden import Moments, Provenance, Record, StepRecords
from parity.golden.values import moments_of
from tests.support import made


@pytest.fixture(scope="session")
def make_step() -> Callable[..., StepRecords]:
    return made.mixed_step


@pytest.fixture(scope="session")
def make_record() -> Callable[..., Record]:
    return made.tensor_record


@pytest.fixture(scope="session")
def make_moments() -> Callable[[np.ndarray], Moments]:
    return moments_of


@pytest.fixture(scope="session")
def provenance() -> Provenance:
    return made.PROVENANCE


@pytest.fixture(scope="session")
def assert_same() -> Callable[[StepRecords, StepRecords], None]:
    return made.assert_same
