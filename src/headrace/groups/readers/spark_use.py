"""Which checkpoints of Spark queries are in use, and forgetting those that are not.

A query leaves what it stored behind when it ends, since its checkpoint may be started again: what
is open tells whether its last batch was finished by whoever opened it, and what was counted last
is not read again after a reset.  A line goes when nothing was stored of it for :data:`KEPT_US`, and
no query of it holds the lease of its reader.  The same checkpoint can be started even then, and
goes on where the group is; only a batch that a foreign sink had finished just before the query
died is read once more.  Who was frozen all that time with a batch of it is fenced.

What tells whose rows a batch has, and which numbers of a query were counted, stays: a driver that
wakes late must not pass for one without a group, nor a counted batch for a new one.
"""

from __future__ import annotations

from headrace.catalog import Catalog, Tx, leases, spark_readers
from headrace.groups.readers.names import ReaderGroupName

KEPT_US = 30 * 24 * 3600 * 1_000_000


def owner_of(line: str, instance: str) -> str:
    """The owner of the lease of a query's reader.

    >>> owner_of("l1", "host-7")
    'spark/l1/host-7'
    """
    return f"spark/{line}/{instance}"


def holder_of(owner: str) -> tuple[str, str]:
    """Line and instance of an owner; a reader that is no query has no line."""
    kind, _, rest = owner.partition("/")
    line, slash, instance = rest.partition("/")
    return (line, instance) if kind == "spark" and slash else ("", owner)


def forget_unused(catalog: Catalog, kept_us: int = KEPT_US) -> int:
    """Forget the lines that nobody used for so long; returns how many."""

    def due(tx: Tx, *, hold: bool = False) -> list[str]:
        names = spark_readers.unused(tx, tx.now_us() - kept_us)
        rows = spark_readers.lines(tx, names, hold=hold)
        return [name for name, row in rows.items() if not _in_use(tx, row)]

    def forget(tx: Tx) -> int:
        spark_readers.stamp_lines(tx, tx.now_us())
        # A query may have stored something while its row was waited for: look again.
        held = set(due(tx, hold=True))
        going = [name for name in due(tx) if name in held]
        spark_readers.forget_lines(tx, going)
        return len(going)

    return catalog.write(forget) if catalog.read(due) else 0


def _in_use(tx: Tx, row: spark_readers.LineRow) -> bool:
    lease = leases.get(tx, ReaderGroupName(row.group).lease(row.reader))
    return lease is not None and holder_of(lease.owner)[0] == row.line
