"""Spark sessions with the settings that matter to a log.

What is set, and why, stands in ``SETTINGS``; every one can be overridden.  A session that was
built without this function can use ``format("headrace")`` all the same, only slower.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import ExecutorPackageError, InvalidOptionError, SparkSetupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER_VARIABLE = "HEADRACE_SPARK_MASTER"
"""Passes the master on to the driver's Python processes, since Spark does not."""

SETTINGS = {
    # A checkpoint's files are renamed into place by one call each, which halves a small trigger.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Events have times in UTC; a session in another zone would show and parse them in that.
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}

LOCAL_SETTINGS = {
    # All on one machine: no port needs to be open to others, and the workers are this Python.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}

_THREADS = re.compile(r"local(\[.*\])?")
_LOCAL = re.compile(rf"{_THREADS.pattern}|local-cluster\[.*\]")
DRIVER_PYTHON = "PYSPARK_DRIVER_PYTHON"
"""The Python in which Spark's driver plans, if it is not that of the workers."""
PROBES = 8
"""Tasks that look whether executors have this package; some for each of a few executors."""


def is_local(master: str) -> bool:
    """Whether everything of this master runs on the driver's machine.

    >>> is_local("local[*]"), is_local("local-cluster[2,1,1024]"), is_local("spark://host:7077")
    (True, True, False)
    """
    return _LOCAL.fullmatch(master) is not None


def session(app_name: str = "headrace", master: str = "local[*]", **settings: Any) -> SparkSession:
    """A Spark session, on this machine unless another ``master`` is given.

    ``settings`` are Spark's own, by their full names: ``session(**{"spark.driver.memory": "4g"})``.
    One process has one session: if it has one already, that is returned with the settings applied
    that can still be changed, and another master is an error.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkSetupError("PySpark is not installed: pip install 'headrace[spark]'") from error
    for name in settings:
        if not name.startswith("spark."):
            raise InvalidOptionError(
                f"{name!r} is not a setting of Spark: their names begin with 'spark.'"
            )
    if is_connect_mode():
        raise SparkSetupError(
            "this process is set up for Spark Connect, whose server has the settings; make the "
            "session with SparkSession.builder.remote(…), and use read, read_stream and "
            "write_stream with it"
        )
    running = SparkSession.getActiveSession()
    if running is not None and running.sparkContext.master != master:
        raise SparkSetupError(
            f"this process has a Spark session on {running.sparkContext.master} already; stop it "
            f"first, or ask for that master instead of {master}"
        )
    _prepare()
    os.environ[MASTER_VARIABLE] = master
    logs = Path(__file__).with_name("log4j2.properties").as_uri()
    given = {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logs}"} | SETTINGS
    if is_local(master):
        cores = os.cpu_count() or 1
        given |= LOCAL_SETTINGS | {"spark.sql.shuffle.partitions": str(max(2, cores))}
    _choose_python(settings, master, running)
    given |= {name: text_of(value) for name, value in settings.items()}
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in given.items():
        builder = builder.config(name, value)
    with _started_quickly(master):
        spark: SparkSession = builder.getOrCreate()
    try:
        check_executors_once(spark)
    except BaseException:
        if running is None:
            spark.stop()
        raise
    return spark


def _prepare() -> None:
    """What a program with a session of ours needs."""
    from headrace.spark.java import use_java
    from headrace.spark.no_tables import refuse_tables

    use_java()
    refuse_tables()


@contextmanager
def _started_quickly(master: str) -> Iterator[None]:
    """Python processes of a Java that is started meanwhile begin with ``startup/sitecustomize``."""
    if not is_local(master):
        yield
        return
    before = os.environ.get("PYTHONPATH")
    folder = str(Path(__file__).with_name("startup"))
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, before] if before else [folder])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _choose_python(settings: dict[str, Any], master: str, running: SparkSession | None) -> None:
    """Have Spark use the Python that a setting names: PySpark looks at a variable only."""
    wanted = settings.get("spark.pyspark.python")
    if wanted is None:
        if is_local(master):
            # Workers run this Python, which has the packages, and not whichever is on the path.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        return
    python = str(wanted)
    if running is not None:
        if running.sparkContext.pythonExec != python:
            raise SparkSetupError(
                f"this process has a Spark session whose workers run "
                f"{running.sparkContext.pythonExec}; stop it first, or leave spark.pyspark.python "
                "out"
            )
        return
    if shutil.which(python) is None:
        if _THREADS.fullmatch(master) or (is_local(master) and not settings.get("spark.archives")):
            raise SparkSetupError(
                f"spark.pyspark.python={python} does not run on this machine, where the workers "
                f"of {master} run: name a Python that is here. One from a package shipped with "
                "spark.archives is there for executors in processes of their own, which "
                "local-cluster[…] and clusters have"
            )
        # It is there for executors only; Spark's driver, which plans in Python too, has this one.
        os.environ[DRIVER_PYTHON] = sys.executable
    os.environ["PYSPARK_PYTHON"] = python


FORMAT = "headrace"
NOT_FOUND = "DATA_SOURCE_NOT_FOUND"


def check_format(spark: SparkSession) -> None:
    """Refuse a session whose driver does not find ``format("headrace")``, and say why."""
    from pyspark.errors import PySparkException

    with suppress(PySparkException), not_found_explained(spark):
        # Without options the source refuses it in its own words, if it is found at all.
        _ = spark.read.format(FORMAT).load().schema


@contextmanager
def not_found_explained(spark: SparkSession) -> Iterator[None]:
    """That Spark does not find our format is told in our words.

    PySpark has no exception of its own for it: a batch read raises what py4j does, which clients
    of Spark Connect need not have.
    """
    try:
        yield
    except Exception as error:
        if NOT_FOUND in str(error):
            raise not_found(spark) from error
        raise


def not_found(spark: SparkSession) -> SparkSetupError:
    """What is behind Spark's DATA_SOURCE_NOT_FOUND for our format."""
    if is_connect(spark):
        python = "its Python"
        mend = (
            "install headrace[spark] in the Python of the server, or start that with one that has "
            "it in $PYSPARK_PYTHON"
        )
    else:
        python = repr(_python_of_driver(spark))
        mend = (
            "install headrace[spark] in that Python, or name another with $PYSPARK_DRIVER_PYTHON, "
            "or spark.pyspark.python or $PYSPARK_PYTHON, before this process starts its first "
            "session"
        )
    return SparkSetupError(
        f'Spark\'s driver does not find format("headrace"): it looks for it with {python}, which '
        f"has no headrace or is not there; {mend}"
    )


def _python_of_driver(spark: SparkSession) -> str:
    return os.environ.get(DRIVER_PYTHON) or str(spark.sparkContext.pythonExec)


def workers_are_ours(spark: SparkSession) -> bool:
    """Whether Python workers run in threads of this machine's one Java, in this very Python."""
    context = spark.sparkContext
    if _THREADS.fullmatch(str(context.master)) is None:
        return False
    found = {shutil.which(each) for each in (context.pythonExec, _python_of_driver(spark))}
    own = os.path.abspath(sys.executable)
    return all(each is not None and os.path.abspath(each) == own for each in found)


@cache
def is_installed() -> bool:
    """Whether this Python has the package by itself, and not by what this program did."""
    look = "import importlib.util as i, sys; sys.exit(i.find_spec('pyspark_headrace') is None)"
    return subprocess.run([sys.executable, "-c", look], check=False).returncode == 0


def check_executors(spark: SparkSession) -> None:
    """Refuse a session whose executors lack this package, before any query finds out."""
    from headrace import __version__

    if is_connect(spark):
        raise SparkSetupError(
            "a Spark Connect session does not let its executors be asked; install "
            "'headrace[spark]' in the Python of its server and of its executors"
        )
    from headrace.spark.no_tables import refuse_tables

    refuse_tables()

    def probe(_: int) -> tuple[str, str]:
        import socket

        try:
            import headrace
            import pyspark_headrace  # noqa: F401  (with all that it needs)
        except ImportError as error:
            return socket.gethostname(), str(error)
        return socket.gethostname(), headrace.__version__

    # Makes Spark pickle it by value: by reference it would need the package that it looks for.
    probe.__module__ = "__main__"
    context = spark.sparkContext
    tasks = context.parallelize(range(PROBES), PROBES)
    found = {each for each in tasks.map(probe).collect() if each[1] != __version__}
    if found:
        told = "; ".join(f"{host}: {what}" for host, what in sorted(found))
        raise ExecutorPackageError(
            f"executors need headrace {__version__} in {context.pythonExec!r} and have not got it "
            f"({told}): install 'headrace[spark]' there, ship it with spark.archives, or name a "
            "Python that has it with spark.pyspark.python"
        )
    check_format(spark)
    _checked.add((context.applicationId, context.pythonExec))


_checked: set[tuple[str, str]] = set()
"""Applications whose executors were found to have this package, with the Python that has it."""


def check_executors_once(spark: SparkSession) -> None:
    """``check_executors`` for any session, cached per Spark application."""
    if is_connect(spark):
        return  # it cannot be checked
    context = spark.sparkContext
    if (context.applicationId, context.pythonExec) in _checked:
        return
    if not (workers_are_ours(spark) and is_installed()):
        check_executors(spark)


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is a client of Spark Connect, which has no context in this process."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def is_connect_mode() -> bool:
    """Whether sessions of this process are clients of Spark Connect."""
    from pyspark.sql.utils import is_remote

    return bool(is_remote())


def master_of(spark: SparkSession) -> str | None:
    """The master of a session, if it tells."""
    return None if is_connect(spark) else str(spark.sparkContext.master)


def text_of(value: Any) -> str:
    """A value as Spark takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
