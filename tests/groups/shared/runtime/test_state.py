"""What a leader stores: quick where nobody else has stored anything, merged where somebody has."""

from __future__ import annotations

import pytest

from headrace.catalog import Catalog, Tx, leases, progress
from headrace.groups.progress import Progress
from headrace.groups.progress.store import Joining, load, write_of
from headrace.groups.shared.core.records import Commit, ProgressRecord
from headrace.groups.shared.runtime import state
from headrace.groups.shared.runtime.state import SegmentKey

GROUP = "g:orders.>"
SEGMENTS = {"orders/0": SegmentKey(1, 10), "orders/1": SegmentKey(1, 11)}


class Leader:
    """Stores as the leader of one term does."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        name = state.lease_name(GROUP)
        taken = catalog.write(
            lambda tx: leases.acquire(tx, name, "n", 60_000), locks=(leases.lock(name),)
        )
        assert taken is not None
        self.token = taken.token
        self.joining = Joining()
        self.read = 0

    def store(self, floors: dict[str, Progress]) -> None:
        records = tuple(ProgressRecord(unit, here, False) for unit, here in floors.items())
        commit = Commit(1, self.token, records, (), ())

        def run(tx: Tx) -> None:
            rows = tx.rows

            def counting(sql: str, params: object = ()) -> list[object]:
                self.read += "FROM progress" in sql
                return rows(sql, params)  # type: ignore[arg-type,return-value]

            tx.rows = counting  # type: ignore[method-assign,assignment]
            state.run_commit(tx, GROUP, commit, SEGMENTS, joining=self.joining)
            del tx.rows

        self._catalog.write(run, locks=state.locks(GROUP, commit))


def stored(catalog: Catalog, segment_id: int) -> Progress:
    found = catalog.read(lambda tx: load(tx, GROUP, segment_id))
    assert found is not None
    return found


def test_what_only_this_leader_writes_is_not_read_again(catalog: Catalog) -> None:
    leader = Leader(catalog)
    leader.store({"orders/0": Progress(3), "orders/1": Progress(1)})
    assert leader.read == 1
    leader.store({"orders/0": Progress(5, ((7, 9),)), "orders/1": Progress(2)})
    leader.store({"orders/1": Progress(2)})
    assert leader.read == 1, "it knows what is there"
    assert stored(catalog, 10) == Progress(5, ((7, 9),))
    assert stored(catalog, 11) == Progress(2)


def test_what_somebody_else_has_written_is_kept(catalog: Catalog) -> None:
    leader = Leader(catalog)
    leader.store({"orders/0": Progress(3), "orders/1": Progress(1)})
    acked = Progress(3, ((6, 8),))
    catalog.write(
        lambda tx: progress.put(tx, progress.Progress(GROUP, 11, acked.floor, acked.encode()))
    )
    leader.store({"orders/0": Progress(4), "orders/1": Progress(2, ((5, 6),))})
    assert stored(catalog, 10) == Progress(4)
    assert stored(catalog, 11) == Progress(3, ((5, 8),))
    leader.store({"orders/1": Progress(5)})
    assert stored(catalog, 11) == Progress(8), "what it does not know is never overwritten"


def test_a_commit_that_failed_leaves_no_wrong_belief(catalog: Catalog) -> None:
    leader = Leader(catalog)
    leader.store({"orders/0": Progress(3)})

    def undone(tx: Tx) -> None:
        leader.joining.put(tx, [write_of(GROUP, 10, leader.token, Progress(4))])
        raise RuntimeError("undone")

    with pytest.raises(RuntimeError):
        catalog.write(undone)
    leader.store({"orders/0": Progress(5)})
    assert stored(catalog, 10) == Progress(5)
