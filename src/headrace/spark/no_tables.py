"""A stream is no table: what would make one is refused before Spark makes it.

Spark makes the table of ``CREATE TABLE … USING headrace``, if columns are listed, without a call to
the source, and shows ``saveAsTable`` to the sink exactly as it shows ``save``.  So neither can be
refused there.  PySpark's methods that make tables are wrapped instead (a monkey patch), in programs
with a session of ours.  SQL that comes to Spark in another way than through them is not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from headrace.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "headrace"
NO_TABLE = (
    "A stream cannot be a table, which Spark gives no options: use CREATE TEMPORARY VIEW … USING "
    "headrace OPTIONS (catalog '…', subscribe '…') to read, and save() or start() to write"
)
_MAKES_TABLE = (
    "CreateTable",
    "CreateTableAsSelect",
    "ReplaceTable",
    "ReplaceTableAsSelect",
    "CreateTableLike",
)


def refuse_tables() -> None:
    """Wrap the methods of PySpark that make tables; once in a process."""
    from pyspark.sql import DataFrameWriter, DataFrameWriterV2, SparkSession
    from pyspark.sql.catalog import Catalog
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    _check(SparkSession, "sql", _of_statement)
    _check(Catalog, "createTable", _of_new_table)
    _check(DataFrameWriter, "saveAsTable", _of_writer)
    _check(DataStreamWriter, "toTable", _of_writer)
    _check(DataFrameWriterV2, "using", _named)


def _check(owner: type, method: str, format_of: Callable[..., str | None]) -> None:
    """Have a method refuse our format, which ``format_of`` finds in what it is called with."""
    spark_own = getattr(owner, method)
    if hasattr(spark_own, "refuses_tables"):
        return

    @wraps(spark_own)
    def checked(*args: Any, **options: Any) -> Any:
        if str(format_of(*args, **options)).lower() == FORMAT:
            raise InvalidOptionError(NO_TABLE)
        return spark_own(*args, **options)

    checked.refuses_tables = True  # type: ignore[attr-defined]
    setattr(owner, method, checked)


# What PySpark's methods are called with: names and order are theirs, and what is wrong they refuse.


def _of_statement(
    spark: SparkSession,
    /,
    sqlQuery: str = "",  # noqa: N803
    *_: Any,
    **__: Any,
) -> str | None:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    if FORMAT not in str(sqlQuery).lower():
        return None
    try:
        plan: Any = spark._jsparkSession.sessionState().sqlParser().parsePlan(sqlQuery)
        kind = str(plan.nodeName())
        if kind not in _MAKES_TABLE:
            return None
        found = plan.provider() if kind == "CreateTableLike" else plan.tableSpec().provider()
        return str(found.get()) if found.isDefined() else None
    except (PySparkException, Py4JError):
        # Spark says itself what is wrong with it.
        return None


def _of_new_table(
    _catalog: object,
    _name: str = "",
    _path: str | None = None,
    /,
    source: str | None = None,
    *_: Any,
    **__: Any,
) -> str | None:
    return source


def _of_writer(
    writer: Any, _name: str = "", /, format: str | None = None, *_: Any, **__: Any
) -> str | None:
    return format or str(writer._jwrite.source())


def _named(_writer: object, /, provider: str | None = None, *_: Any, **__: Any) -> str | None:
    return provider
