"""History: figures in bounded rings, kept across restarts; the past of a group."""

from __future__ import annotations

from pathlib import Path

from headrace.groups.decisions.core.record import Decision, What, ranges
from headrace.node import history as histories
from headrace.node.core.past import as_it_was
from headrace.node.core.rings import COARSE_S, FINE_S, FINE_SLOTS, Ring, Series
from headrace.node.history import GROUP, STREAM_FIGURES, History
from tests.node.support import running
from tests.support import wait_until


def test_a_ring_forgets_what_is_too_old_and_has_gaps() -> None:
    ring = Ring(1, 10, 4)
    for at, value in ((0, 1.0), (10, 2.0), (30, 4.0), (45, 5.0)):
        ring.put(at, (value,))
    assert ring.points() == [(10, (2.0,)), (30, (4.0,)), (40, (5.0,))]
    ring.put(5, (9.0,))
    assert ring.points()[0] == (10, (2.0,))
    ring.put(1_000, (7.0,))
    assert ring.points() == [(1_000, (7.0,))]


def test_a_coarse_slot_keeps_the_worst_and_long_spans_join_both() -> None:
    series = Series(1)
    end = FINE_S * FINE_SLOTS * 3
    for at in range(0, end, FINE_S):
        series.put(at, (float(at % 1_000 == 0) * 5,))
    long = series.points(0, end)
    assert len(long) < end // FINE_S / 2
    assert [at for at, _ in long] == sorted({at for at, _ in long})
    first = [figures for at, figures in long if at < COARSE_S]
    assert first == [(5.0,)]
    assert len(series.points(end - 600, end)) == 60


def test_history_survives_a_restart_of_the_node(tmp_path: Path) -> None:
    url = str(tmp_path / "catalog")
    with running(url) as node:
        node.do(node.hr.create_stream("orders", ["orders.>"]))
        node.do(node.hr.shared_groups.declare("audit", "orders.>", start="earliest"))
        node.do(node.hr.publish("orders.a", b"1"))
        wait_until(lambda: node.get("/overview")["groups_count"] == 1, "the group")
        wait_until(
            lambda: node.get("/groups/%24share%2Faudit%2Forders.%3E/lag")["lag_events"] == 1, "lag"
        )
        kept = node.served.node.observer.history
        assert histories.store(node.hr.log, kept, "me", 86_400)
        assert not histories.store(node.hr.log, kept, "another", 86_400)
        now_s = node.do(_now_s(node.hr))
        again = History()
        histories.load(node.hr.log, again, 86_400)
        assert again.points(GROUP, "$share/audit/orders.>", now_s - 600, now_s)[-1][1][0] == 1
        assert again.points(STREAM_FIGURES, "orders", now_s - 600, now_s)


async def _now_s(hr: object) -> float:
    return float(hr.log.catalog.read(lambda tx: tx.now_us())) / 1e6  # type: ignore[attr-defined]


def _decided(at_us: int, what: What, **about: object) -> Decision:
    return Decision(what=what, reason="so", at_us=at_us, number=at_us, **about)  # type: ignore[arg-type]


def test_the_past_is_rebuilt_from_decisions() -> None:
    decisions = [
        _decided(10, What.ELECTED, target="p1"),
        _decided(20, What.ASSIGNED, target="a", units=ranges(["o/0", "o/1"])),
        _decided(30, What.MOVED, source="a", target="b", units=ranges(["o/1"])),
        _decided(40, What.LOST, source="a"),
        _decided(50, What.ASSIGNED, target="b", units=ranges(["o/0"])),
        _decided(60, What.FINISHED, units=ranges(["o/1"])),
    ]

    def owners(at_us: int) -> dict[str, str]:
        return {each.unit: each.member for each in as_it_was("g", decisions, at_us).units}

    assert owners(5) == {}
    assert owners(25) == {"o/0": "a", "o/1": "a"}
    assert owners(35) == {"o/0": "a", "o/1": "b"}
    assert owners(45) == {"o/0": "", "o/1": "b"}
    assert owners(99) == {"o/0": "b"}
    assert as_it_was("g", decisions, 45).leader == "p1"
