"""Fixtures that tests share."""

import shutil

import pytest
from processes import Family
from study import Study


@pytest.fixture
def study(tmp_path) -> Study:
    """Make a study that has not run yet: 2 x 2 combinations, 2 seeds."""
    return Study(tmp_path)


@pytest.fixture(scope="session")
def finished_once(tmp_path_factory) -> Study:
    """Run that study once for all tests; they get copies of it."""
    study = Study(tmp_path_factory.mktemp("finished"))
    assert study.snakemake().jobs == (8, 8)
    return study


@pytest.fixture
def finished(finished_once, tmp_path) -> Study:
    """Copy the finished study, times and all."""
    shutil.copytree(finished_once.folder, tmp_path, dirs_exist_ok=True, symlinks=True)
    study = Study.__new__(Study)
    study.folder = tmp_path
    return study


@pytest.fixture
def family(tmp_path):
    """Start processes in the test's folder; none of them outlives it."""
    family = Family(tmp_path)
    yield family
    family.end()
