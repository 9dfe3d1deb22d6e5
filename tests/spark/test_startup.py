"""Python processes of Spark start from the installed PySpark, and not from its zip file."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from pathlib import Path

import pytest

import headrace.spark
from headrace.spark.session import _started_quickly

STARTUP = Path(headrace.spark.__file__).with_name("startup")


class Environment:
    """An environment without pip, with packages that look like PySpark and py4j."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False)
        self.python = folder / "bin" / "python"
        self.packages = next(folder.glob("lib/python3.*/site-packages"))

    def add_pyspark(self) -> list[str]:
        """The zip files as Spark names them."""
        zips = self.packages / "pyspark" / "python" / "lib"
        zips.mkdir(parents=True)
        for name in ("pyspark", "py4j"):
            (self.packages / name).mkdir(exist_ok=True)
            (self.packages / name / "__init__.py").touch()
        return [str(zips / name) for name in ("pyspark.zip", "py4j-0.10.9.9-src.zip")]

    def path_of(self, *given: str, look: str = "sys.path") -> list[str]:
        """What a process finds that is given this PYTHONPATH."""
        code = f"import json, sys; print(json.dumps({look}))"
        known = {"PYTHONPATH": os.pathsep.join(given), "PATH": os.environ["PATH"]}
        done = subprocess.run(
            [self.python, "-c", code], env=known, capture_output=True, text=True, check=True
        )
        assert not done.stderr
        found: list[str] = json.loads(done.stdout)
        return found


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("mine"))


@pytest.fixture(scope="module")
def zips(mine: Environment) -> list[str]:
    return mine.add_pyspark()


def test_the_zip_files_of_the_installed_package_are_left_out(
    mine: Environment, zips: list[str], tmp_path: Path
) -> None:
    found = mine.path_of(*zips, str(STARTUP), str(tmp_path))
    assert str(mine.packages) in found
    assert str(tmp_path) in found
    assert not {*zips, str(STARTUP)} & set(found)
    assert set(zips) <= set(mine.path_of(*zips))


def test_another_pyspark_keeps_its_zip_files(
    mine: Environment, zips: list[str], tmp_path: Path
) -> None:
    other = Environment(tmp_path / "other")
    assert set(zips) <= set(other.path_of(*zips, str(STARTUP)))
    own = other.add_pyspark()
    assert set(zips) <= set(other.path_of(*zips, str(STARTUP)))
    assert not set(own) & set(other.path_of(*own, str(STARTUP)))
    (other.packages / "py4j" / "__init__.py").unlink()
    assert set(own) <= set(other.path_of(*own, str(STARTUP)))


def test_a_sitecustomize_of_the_users_own_is_run_too(
    mine: Environment, zips: list[str], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.argv.append('theirs')\n")
    given = (*zips, str(STARTUP), str(tmp_path))
    assert "theirs" in mine.path_of(*given, look="sys.argv")
    assert not set(zips) & set(mine.path_of(*given))


@pytest.mark.parametrize("before", [None, "/somewhere"])
def test_only_a_java_that_is_started_here_is_told(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if before is not None:
        monkeypatch.setenv("PYTHONPATH", before)
    with _started_quickly("local[2]"):
        told = os.environ["PYTHONPATH"].split(os.pathsep)
    assert told == [str(STARTUP), *([before] if before else [])]
    assert os.environ.get("PYTHONPATH") == before
    with _started_quickly("spark://elsewhere:7077"):
        assert os.environ.get("PYTHONPATH") == before
