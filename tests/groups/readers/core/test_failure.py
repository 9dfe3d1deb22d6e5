"""Who is dead, and from where others go on."""

from __future__ import annotations

from headrace.groups.readers import END, AddReader
from headrace.groups.readers.core import failure
from headrace.groups.readers.core.failure import DeadReader, ReaderLease
from tests.groups.readers.core.helpers import Group, cut


def group_with_leases() -> Group:
    group = Group(a0=0, a1=0, a2=40)
    for number, reader in enumerate(("r1", "r2"), 1):
        group.apply(AddReader(reader, lease_token=number))
    group.claim("r1", "a/0", "a/1", "a/2")
    return group


def test_a_reader_is_dead_when_its_lease_ran_out_or_passed_on_or_is_missing() -> None:
    group = group_with_leases()
    living = {"r1": ReaderLease(1, 1000), "r2": ReaderLease(2, 900)}
    assert failure.dead_readers(group.state, living, 899) == []
    assert failure.next_expiry_ms(group.state, living, 899) == 900
    (late,) = failure.dead_readers(group.state, living, 950)
    assert (late.reader, late.token) == ("r2", group.token("r2"))
    assert "ran out 50 ms ago" in late.why
    assert failure.next_expiry_ms(group.state, living, 950) == 1000
    (replaced,) = failure.dead_readers(group.state, living | {"r1": ReaderLease(7, 5000)}, 0)
    assert "from token 1 to 7" in replaced.why
    (missing,) = failure.dead_readers(group.state, {"r1": living["r1"]}, 0)
    assert missing.why == "it has no lease"
    assert failure.next_expiry_ms(group.state, {}, 0) is None


def test_others_go_on_from_what_the_dead_reader_had_acked() -> None:
    group = group_with_leases()
    dead = DeadReader("r1", group.token("r1"), "")
    update = failure.offline(group.state, dead, cut(a0=12, a2=30, b9=1))
    group.apply(update)
    assert group.unassigned == {"a/0": 12, "a/1": 0, "a/2": 40}


def test_what_was_read_to_its_end_stays_at_its_end() -> None:
    group = Group(a0=END)
    group.join("r1")
    group.claim("r1", "a/0")
    dead = DeadReader("r1", group.token("r1"), "")
    group.apply(failure.offline(group.state, dead, cut(a0=12)))
    assert group.unassigned == {"a/0": END}


def test_a_reader_that_joined_again_meanwhile_is_not_put_offline() -> None:
    group = group_with_leases()
    dead = DeadReader("r1", group.token("r1"), "")
    update = failure.offline(group.state, dead, {})
    group.offline("r1")
    group.join("r1")
    before = group.image()
    group.apply(update)
    assert group.image() == before
