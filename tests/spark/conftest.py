"""One Spark session for all tests: starting one takes longer than most of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headrace.spark


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores with a small heap, stopped when the run ends."""
    folder: Path = tmp_path_factory.mktemp("spark")
    session = headrace.spark.session(
        "tests",
        "local[2]",
        **{
            "spark.driver.memory": "768m",
            "spark.sql.shuffle.partitions": 2,
            "spark.default.parallelism": 2,
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
            "spark.python.worker.idleTimeoutSeconds": 0,
        },
    )
    yield session
    session.stop()


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """This Python without any package but what Spark brings along."""
    path = tmp_path / "bare-python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    path.chmod(0o755)
    return str(path)
