"""Sessions: the settings that matter, one per process, and executors that have the package."""

from __future__ import annotations

import importlib
import sys

import pandas
import pytest
from pyspark.sql import SparkSession

import headrace
import headrace.spark
from headrace.errors import ExecutorPackageError, InvalidOptionError, SparkSetupError
from headrace.spark.checked import loaded
from headrace.spark.session import SETTINGS, check_format, is_installed, is_local

SESSION = importlib.import_module("headrace.spark.session")


def test_a_session_has_the_settings_that_matter(spark: SparkSession) -> None:
    for name, value in SETTINGS.items():
        assert spark.conf.get(name) == value, name
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.master == "local[2]"


def test_a_second_session_is_the_first(spark: SparkSession) -> None:
    assert headrace.spark.session("again", "local[2]").sparkContext is spark.sparkContext
    with pytest.raises(SparkSetupError, match=r"on local\[2\] already"):
        headrace.spark.session("other", "local[1]")


def test_what_is_no_setting_of_spark_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="'memory' is not a setting"):
        headrace.spark.session(memory="4g")


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True),
        ("local[*]", True),
        ("local[2,4]", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://localhost:7077", False),
        ("yarn", False),
        ("k8s://https://host", False),
    ],
)
def test_which_masters_are_on_this_machine(master: str, local: bool) -> None:
    assert is_local(master) is local


def test_executors_without_this_package_are_noticed(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    headrace.spark.check_executors(spark)
    monkeypatch.setattr(headrace, "__version__", "99.0")
    with pytest.raises(ExecutorPackageError, match=r"need headrace 99\.0"):
        headrace.spark.check_executors(spark)


@pytest.mark.parametrize(
    ("master", "shipped"),
    [
        ("local[2]", {}),
        ("local[2]", {"spark.archives": "pack.tar.gz#env"}),
        ("local-cluster[2,1,1024]", {}),
    ],
)
def test_a_python_that_no_worker_can_run_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, master: str, shipped: dict[str, str]
) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    settings = {"spark.pyspark.python": "./env/bin/python"} | shipped
    with pytest.raises(SparkSetupError, match="name a Python that is here"):
        headrace.spark.session("packed", master, **settings)


def test_a_running_session_keeps_its_python(spark: SparkSession) -> None:
    own = spark.sparkContext.pythonExec
    same = headrace.spark.session("again", "local[2]", **{"spark.pyspark.python": own})
    assert same.sparkContext is spark.sparkContext
    with pytest.raises(SparkSetupError, match="whose workers run"):
        headrace.spark.session("again", "local[2]", **{"spark.pyspark.python": "/bin/sh"})


def test_a_source_that_is_not_found_is_explained(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another name, which Spark really does not find."""
    check_format(spark)
    said = r"install headrace\[spark\] in that Python"
    for reader in (spark.read, spark.readStream):
        with pytest.raises(SparkSetupError, match=said):
            loaded(spark, reader.format("headway"))
    monkeypatch.setattr(SESSION, "FORMAT", "headway")
    with pytest.raises(SparkSetupError, match=said):
        headrace.spark.check_executors(spark)


def test_a_package_that_only_this_program_finds_is_no_package_of_its_workers(
    spark: SparkSession, bare_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as by a path that the program sets: workers are processes of their own."""
    monkeypatch.setattr(spark.sparkContext, "pythonExec", bare_python)
    monkeypatch.setattr(sys, "executable", bare_python)
    is_installed.cache_clear()
    try:
        with pytest.raises(ExecutorPackageError, match="No module named 'headrace'"):
            headrace.spark.session("again", "local[2]")
    finally:
        is_installed.cache_clear()


def test_trap_12_the_source_is_light_to_import() -> None:
    """Workers pay for every import: none of the client, the groups or the command line."""
    import subprocess

    script = "import pyspark_headrace, sys; print(*[m for m in sys.modules if 'headrace' in m])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    loaded = {name.split(".")[1] for name in done.stdout.split() if "." in name}
    assert not loaded & {"client", "sync", "groups", "cli", "sim", "regions", "epochs"}


def test_trap_13_pandas_is_one_that_pyspark_is_made_for() -> None:
    assert pandas.__version__.split(".")[0] == "2"


def test_the_source_is_found_by_its_name() -> None:
    source = importlib.import_module("pyspark_headrace").DefaultSource
    assert source.name() == "headrace"
