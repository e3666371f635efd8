"""Fixtures of the tests of `launch`."""

import pytest
from processes import Family


@pytest.fixture
def family(tmp_path):
    """Start processes in the test's folder; none of them outlives it."""
    family = Family(tmp_path)
    yield family
    family.end()
