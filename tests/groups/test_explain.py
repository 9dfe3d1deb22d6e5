"""The decision log: the last decisions of a group, with their reasons."""

from __future__ import annotations

from pathlib import Path

import headrace.sync
from headrace.catalog import Catalog
from headrace.groups import explain
from headrace.groups.explain import DECISIONS_MAX, EventDecision


def decisions(catalog: Catalog, group: str = "g") -> list[EventDecision]:
    return catalog.read(lambda tx: explain.read(tx, group))


def record(catalog: Catalog, *given: EventDecision, group: str = "g") -> None:
    catalog.write(
        lambda tx: explain.record(tx, group, given), locks=explain.locks(group), sync=False
    )


def test_decisions_are_kept_in_order_with_their_time(catalog: Catalog) -> None:
    assert decisions(catalog) == []
    record(catalog)
    assert decisions(catalog) == []
    record(catalog, EventDecision("assigned", "nobody had it", member="m1", unit="0"))
    record(
        catalog, EventDecision("moving", "m2 joined", unit="0"), EventDecision("fenced", "too late")
    )
    record(catalog, EventDecision("assigned", "another group"), group="h")
    found = decisions(catalog)
    assert [(one.number, one.what) for one in found] == [
        (1, "assigned"),
        (2, "moving"),
        (3, "fenced"),
    ]
    assert found[0].member == "m1"
    assert 0 < found[0].at_us <= found[1].at_us == found[2].at_us
    assert [one.what for one in catalog.read(lambda tx: explain.read(tx, "g", 1))] == ["fenced"]


def test_the_oldest_make_room(catalog: Catalog) -> None:
    record(catalog, *(EventDecision("assigned", "r" * 10_000) for _ in range(DECISIONS_MAX + 5)))
    found = decisions(catalog)
    assert len(found) == DECISIONS_MAX
    assert (found[0].number, found[-1].number) == (6, DECISIONS_MAX + 5)
    assert len(found[0].reason) == explain.REASON_CHARS_MAX


def test_the_log_of_a_deleted_group_is_gone(catalog: Catalog) -> None:
    record(catalog, EventDecision("assigned", "x"))
    record(catalog, EventDecision("assigned", "x"), group="h")
    catalog.write(lambda tx: explain.forget(tx, "g"), locks=explain.locks("g"))
    assert decisions(catalog) == []
    assert len(decisions(catalog, "h")) == 1


def test_a_shared_group_tells_of_its_dead_letters_until_it_is_deleted(tmp_path: Path) -> None:
    with headrace.sync.open(tmp_path, housekeeping=False) as hr:
        hr.create_stream("orders", ["orders.>"])
        hr.shared_groups.declare("g", "orders.>", start="earliest")
        hr.publish("orders.1", b"bad")
        with hr.session("w") as session:
            session.subscribe("$share/g/orders.>")
            next(iter(session)).reject("cannot be read")
        [told] = [d for d in hr.shared_groups.explain("g").decisions if d.what == "dead letter"]
        assert (told.borrower, told.unit) == ("w", "orders/0")
        assert told.reason == "orders.1 at offset 0: rejected after 1 delivery: cannot be read"
        hr.shared_groups.delete("g")
        hr.shared_groups.declare("g", "orders.>", start="earliest")
        assert hr.shared_groups.explain("g").decisions == ()
