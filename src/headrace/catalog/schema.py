"""The schema's version and the steps that lead to it.

A step is an SQL file in ``migrations``; step N takes a catalog from version N-1 to N.  Steps
are never edited once released: a change is a new step.  All steps that are due run in one
transaction, so a crash leaves the old version or the new one.
"""

from __future__ import annotations

from importlib import resources

from headrace.catalog.transaction import Query, Row, Tx
from headrace.errors import CatalogError, CatalogTooNewError, CatalogTooOldError

MIGRATIONS: tuple[str, ...] = (
    "001_log.sql",
    "002_coordination.sql",
    "003_markers.sql",
    "004_producers.sql",
    "005_decisions.sql",
    "006_reader_groups.sql",
    "007_epochs.sql",
    "008_epoch_subscriptions.sql",
    "009_regions.sql",
    "010_spark_readers.sql",
    "011_spark_spans.sql",
    "012_queue_places.sql",
    "013_progress_bases.sql",
)
VERSION = len(MIGRATIONS)
REGIONS = MIGRATIONS.index("009_regions.sql") + 1
"""The first version that other regions can read."""
QUERY = "SELECT value FROM meta WHERE key = 'schema_version'"
CURRENT = (str(VERSION),)
"""What ``QUERY`` finds in a catalog of this version."""


def statements(step: str, types: dict[str, str]) -> list[str]:
    """The SQL statements of one step, with the driver's names for its types."""
    text = (resources.files("headrace.catalog") / "migrations" / step).read_text()
    for name, sql_type in types.items():
        text = text.replace("{" + name + "}", sql_type)
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    return [part.strip() for part in "\n".join(lines).split(";") if part.strip()]


def migrate(tx: Tx, types: dict[str, str], where: str, upto: int = VERSION) -> None:
    """Bring the catalog forward to version ``upto``; refuse one that is newer than the code."""
    tx.execute("CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
    found = judge(tx.row(QUERY), where)
    if found >= upto:
        return
    for step in MIGRATIONS[found:upto]:
        for statement in statements(step, types):
            tx.execute(statement)
    tx.execute("DELETE FROM meta WHERE key = 'schema_version'")
    tx.execute("INSERT INTO meta (key, value) VALUES ('schema_version', ?)", (str(upto),))


def _version(found: Row | None, where: str) -> int:
    stored = found[0] if found else 0
    try:
        return int(stored or 0)
    except ValueError:
        raise CatalogError(
            f"the version of {where} cannot be read ({stored!r} is no number); restore it from a "
            "copy"
        ) from None


def judge(found: Row | None, where: str) -> int:
    """The version that ``QUERY`` found; raises if it is newer than the code."""
    version = _version(found, where)
    if version > VERSION:
        raise CatalogTooNewError(where, version, VERSION)
    return version


def judge_look(found: Row | None, where: str) -> int:
    """The version of a catalog that is only looked at: newer ones are read as well."""
    version = _version(found, where)
    if version < REGIONS:
        raise CatalogTooOldError(where, version, REGIONS)
    return version


def asking_setting(key: str) -> Query:
    """The query of :func:`get_setting`."""
    return "SELECT value FROM meta WHERE key = ?", (key,)


def get_setting(tx: Tx, key: str) -> str | None:
    row = tx.row(*asking_setting(key))
    return None if row is None else str(row[0])


def put_setting(tx: Tx, key: str, value: str) -> None:
    tx.later(
        "INSERT INTO meta (key, value) VALUES (?, ?) "
        "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, value),
    )
