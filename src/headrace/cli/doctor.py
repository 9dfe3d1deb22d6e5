"""``headrace doctor``: what this machine has, what is wrong with it, and how to mend that."""

from __future__ import annotations

import importlib.metadata
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.table import Table
from rich.text import Text

from headrace.cli.checks import Check
from headrace.cli.doctor_regions import check_regions
from headrace.cli.doctor_server import check_server
from headrace.cli.done_shapes import Doctor
from headrace.cli.failures import EXIT_FAILED, shown_place, without_passwords
from headrace.cli.options import NONE, Options
from headrace.cli.output import counted, table
from headrace.errors import HeadraceError, JavaMissingError, SparkSetupError
from headrace.groups import claims_audit
from headrace.groups.progress import audit as progress_audit
from headrace.log import audit
from headrace.log.log import Log

app = App(name="doctor", help="Check Python, Java, Spark, the catalog and the store.")

PYTHON_MIN = (3, 11)
PYSPARK = ((4, 2), (4, 4))
"""The supported versions: the lowest, and the first that was not tried (exclusive)."""
PANDAS_BELOW = (3,)

FLAWS_MAX = 50
"""How many findings of a deep check are shown."""


@app.default
def doctor(
    *,
    spark: Annotated[bool, Parameter(negative="")] = False,
    deep: Annotated[bool, Parameter(negative="")] = False,
    options: Options = NONE,
) -> int:
    """Check Python, Java, Spark, the catalog and the store; status 1 when something is wrong.

    Of a catalog that is a region, also what stands between it and the other regions.

    Example: `headrace doctor --catalog ./data`

    Parameters
    ----------
    spark
        Start Spark as well, and run a small query on it (takes some seconds).
    deep
        Read every event and compare all that the catalog says of streams and groups with what is
        there (takes as long as reading the whole log).
    """
    checks = list(examine(options, start_spark=spark, deep=deep))
    failed = any(check.state == "failed" for check in checks)
    options.show(Doctor(ok=not failed, checks=tuple(checks)), _table(checks))
    return EXIT_FAILED if failed else 0


def examine(options: Options, *, start_spark: bool = False, deep: bool = False) -> Iterator[Check]:
    """All checks, in their order."""
    yield check_python(sys.version_info[:3])
    pyspark = version_of("pyspark")
    yield check_pyspark(pyspark)
    if pyspark is not None:
        yield check_pandas(version_of("pandas"))
    yield check_java(needed=pyspark is not None)
    if start_spark and pyspark is not None:
        yield check_session()
    yield from check_log(options, deep=deep)


def check_python(version: tuple[int, ...]) -> Check:
    shown = ".".join(map(str, version))
    if version[:2] < PYTHON_MIN:
        return Check("Python", "failed", shown, "install Python 3.11 or newer")
    return Check("Python", "ok", shown)


def check_pyspark(version: str | None) -> Check:
    install = "pip install 'headrace[spark]'"
    if version is None:
        return Check("PySpark", "warning", "not installed", f"to use Spark: {install}")
    first, beyond = PYSPARK
    if not first <= numbers(version) < beyond:
        shown = [".".join(map(str, each)) for each in PYSPARK]
        mend = f"needs {shown[0]} or newer, below {shown[1]}: {install}"
        return Check("PySpark", "failed", version, mend)
    return Check("PySpark", "ok", version)


def check_pandas(version: str | None) -> Check:
    install = "pip install 'pandas<3'"
    if version is None:
        return Check("pandas", "failed", "not installed", f"PySpark needs it: {install}")
    if numbers(version) >= PANDAS_BELOW:
        return Check("pandas", "warning", version, f"PySpark is made for pandas 2: {install}")
    return Check("pandas", "ok", version)


def check_java(*, needed: bool) -> Check:
    from headrace.spark.java import find_java

    try:
        java = find_java()
    except JavaMissingError as error:
        found, _, mend = str(error).partition(": ")
        return Check("Java", "failed" if needed else "warning", found, mend)
    where = "bundled with the java extra" if java.bundled else str(java.home)
    return Check("Java", "ok", f"{java.release} ({where})")


def check_session() -> Check:
    """Start Spark and have it find the source by its name."""
    from headrace.spark import session
    from headrace.spark.session import check_format

    try:
        running = session("headrace doctor", "local[1]")
        try:
            count = running.range(10).count()
            check_format(running)
            names = running.sparkContext.parallelize([0], 1).map(_has_package).collect()
        finally:
            running.stop()
    except (SparkSetupError, RuntimeError, OSError) as error:
        return Check("Spark", "failed", _line(error), "see the message, and the checks above")
    if count != 10 or names != [True]:
        mend = "install headrace in the Python of $PYSPARK_PYTHON, or unset that"
        return Check("Spark", "failed", "its workers do not have this package", mend)
    return Check("Spark", "ok", "started, ran a query, and found the source")


def _has_package(_: int) -> bool:
    import importlib.util

    return importlib.util.find_spec("pyspark_headrace") is not None


def check_log(options: Options, *, deep: bool = False) -> Iterator[Check]:
    """The catalog, if there is one, and its store."""
    place = shown_place(options.place)
    if "://" not in options.place and not Path(options.place).expanduser().exists():
        given = options.catalog is not None
        yield Check(
            "catalog",
            "failed" if given else "warning",
            f"there is none at {place}",
            "name another with --catalog, or make it: headrace stream create …",
        )
        return
    try:
        with options.open() as log:
            if deep:
                yield from check_contents(log)
            count = counted(len(log.streams()), "stream")
            yield Check("catalog", "ok", f"{place}: {count}, {_reach(log.catalog.shared)}")
            yield from check_server(log.catalog)
            yield from check_regions(log)
            if log.store is None:
                yield Check("store", "ok", "none: every batch lives inside the catalog")
                return
            path = f"{log.prefix}/doctor/{uuid.uuid4().hex}"
            log.store.put(path, b"headrace")
            same = log.store.get(path) == b"headrace"
            log.store.delete(path)
            if same:
                found = f"{log.store.url}: writes and reads, {_reach(log.store.shared)}"
                yield Check("store", "ok", found)
            else:
                found = f"{log.store.url}: other bytes than written"
                yield Check("store", "failed", found, "replace it")
    except HeadraceError as error:
        name = "store" if "store" in type(error).__name__.lower() else "catalog"
        yield Check(name, "failed", _line(error), f"see what is at {place}, or name another")


def _reach(shared: bool) -> str:
    return "reachable by other machines" if shared else "on this machine"


def check_contents(log: Log) -> Iterator[Check]:
    """Every event, file and row."""
    flaws = list(audit.examine(log))
    flaws += log.catalog.read(lambda tx: list(progress_audit.examine(tx)))
    flaws += log.catalog.read(lambda tx: list(claims_audit.examine(tx)), snapshot=True)
    for flaw in flaws[:FLAWS_MAX]:
        yield Check("contents", "failed", _line(flaw), "restore it from a backup")
    if len(flaws) > FLAWS_MAX:
        more = f"and {len(flaws) - FLAWS_MAX} more"
        yield Check("contents", "failed", more, "mend what stands above first")
    if not flaws:
        yield Check("contents", "ok", "every event was read, and all agrees with the catalog")


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version.

    >>> numbers("4.3.0"), numbers("3.0rc1")
    ((4, 3, 0), (3,))
    """
    found = []
    for part in version.split("."):
        if not part.isdigit():
            break
        found.append(int(part))
    return tuple(found)


def _line(error: BaseException | str) -> str:
    return without_passwords(" ".join(str(error).split()))[:400]


_MARKS = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "failed": "[red]failed[/]"}


def _table(checks: list[Check]) -> Table:
    rows = ((c.name, Text.from_markup(_MARKS[c.state]), c.found, c.mend) for c in checks)
    return table(("check", "", "found", "what to do"), rows)
