"""The judgement itself: it accepts a log that is right, and complains about each thing wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.torture.account import Finding, Ledger, SegmentCopy, StreamCopy, account
from tests.torture.ledger import (
    IDENTITY,
    Acked,
    Identities,
    InDoubt,
    Intent,
    Kind,
    Part,
    Record,
    Refused,
    Spot,
    first_uid,
    identities_of,
    values_of,
)

ALPHA, BETA = 0, 1
HALF = 1 << 31
KEY_SPACE = 1 << 32
UID = first_uid(3, 2)


def part(first: int, count: int, stream: int = ALPHA, number: int = 1) -> Part:
    """Events of one key; key 5 hashes to the lower half in these made-up logs."""
    numbers = list(range(number, number + count))
    return Part(stream, UID + first, IDENTITY.itemsize, [5] * count, numbers)


def events(*parts: Part) -> Identities:
    import pyarrow as pa

    return np.concatenate([identities_of(pa.array(values_of(each))) for each in parts])


def segment(
    number: int,
    held: Identities,
    *,
    span: tuple[int, int] = (0, KEY_SPACE),
    sealed: bool = False,
    predecessors: tuple[int, ...] = (),
    head: int | None = None,
) -> SegmentCopy:
    return SegmentCopy(
        number=number,
        range_lo=span[0],
        range_hi=span[1],
        sealed=sealed,
        head=len(held) if head is None else head,
        predecessors=predecessors,
        offsets=np.arange(len(held)),
        hashes=np.full(len(held), 7, np.uint32),
        events=held,
    )


def one_segment(held: Identities) -> list[StreamCopy]:
    return [StreamCopy("alpha", (segment(0, held),)), StreamCopy("beta", (segment(0, NOTHING),))]


NOTHING = np.zeros(0, IDENTITY)
FIRST, SECOND = part(0, 3), part(3, 2, number=4)


def intent(kind: Kind, *parts: Part, producer: str | None = None) -> Intent:
    return Intent(parts[0].first, kind, list(parts), producer, None if producer is None else 1)


def acked(op: Part, start: int) -> Acked:
    return Acked(op.first, [Spot("alpha", 0, start, len(op.keys))])


SAID: list[Record] = [
    intent("batch", FIRST),
    acked(FIRST, 0),
    intent("batch", SECOND),
    acked(SECOND, 3),
]


def kinds(records: Sequence[Record], copies: Sequence[StreamCopy]) -> set[str]:
    findings, _ = account(Ledger(records), copies)
    return {finding.kind for finding in findings}


def test_a_log_that_holds_what_was_said_is_accepted() -> None:
    findings, totals = account(Ledger(SAID), one_segment(events(FIRST, SECOND)))
    assert findings == []
    assert (totals.acked, totals.in_doubt_found, totals.in_doubt_lost) == (5, 0, 0)


def test_a_lost_event_is_named() -> None:
    findings, _ = account(Ledger(SAID), one_segment(np.delete(events(FIRST, SECOND), 4)))
    assert Finding("lost", findings[0].detail) in findings
    assert "writer 3, incarnation 2, event 3: 1 of 2 events are there" in findings[0].detail


def test_a_duplicated_event_is_named_with_both_places() -> None:
    held = events(FIRST, SECOND, SECOND)
    findings, _ = account(Ledger(SAID), one_segment(held))
    (twice,) = [finding for finding in findings if finding.kind == "duplicated"]
    assert "writer 3, incarnation 2, event 3 is at alpha/0/3 and at alpha/0/5" in twice.detail


def test_what_a_loop_skipped_is_named() -> None:
    third = part(5, 2, number=6)
    said: list[Record] = [
        Intent(each.first, "loop", [each], loop=FIRST.first) for each in (FIRST, SECOND, third)
    ]
    for held in ((), (FIRST,), (FIRST, SECOND), (FIRST, SECOND, third)):
        assert kinds(said, one_segment(events(*held) if held else NOTHING)) == set()
    said.append(Intent(UID + 7, "loop", [part(7, 1, number=8)], loop=UID + 7))
    other = part(7, 1, number=8)
    assert kinds(said, one_segment(events(FIRST, other))) == set()
    findings, _ = account(Ledger(said), one_segment(events(FIRST, third)))
    (wrong,) = findings
    assert wrong.kind == "skipped in a loop"
    assert "event 5 without writer 3, incarnation 2, event 3" in wrong.detail


def test_a_reordered_event_is_named() -> None:
    held = events(FIRST, SECOND)[[0, 2, 1, 3, 4]]
    findings, _ = account(Ledger(SAID), one_segment(held))
    (wrong,) = findings
    assert wrong.kind == "reordered"
    assert "event 1 stands after writer 3, incarnation 2, event 2" in wrong.detail


@pytest.mark.parametrize("swapped", [False, True])
def test_order_is_judged_along_the_edges_of_a_split(swapped: bool) -> None:
    before, after = (SECOND, FIRST) if swapped else (FIRST, SECOND)
    copies = [
        StreamCopy(
            "alpha",
            (
                segment(0, events(before), sealed=True),
                segment(1, events(after), span=(0, HALF), predecessors=(0,)),
                segment(2, NOTHING, span=(HALF, KEY_SPACE), predecessors=(0,)),
            ),
        )
    ]
    said: list[Record] = [intent("batch", FIRST), intent("batch", SECOND)]
    assert kinds(said, copies) == ({"reordered"} if swapped else set())


def test_an_append_in_doubt_may_be_there_or_not_but_not_in_part() -> None:
    said: list[Record] = [intent("batch", FIRST), InDoubt(FIRST.first, "cut")]
    assert kinds(said, one_segment(events(FIRST))) == set()
    assert kinds(said, one_segment(NOTHING)) == set()
    assert kinds(said, one_segment(events(FIRST)[:2])) == {"torn"}


def test_a_transaction_is_there_in_both_streams_or_in_none() -> None:
    left, right = part(0, 2), part(2, 2, BETA)
    said: list[Record] = [intent("transaction", left, right)]
    both = [StreamCopy("alpha", (segment(0, events(left)),))]
    assert kinds(said, [*both, StreamCopy("beta", (segment(0, events(right)),))]) == set()
    assert kinds(said, [*both, StreamCopy("beta", (segment(0, NOTHING),))]) == {"torn"}


def test_a_refused_append_must_not_be_there() -> None:
    said: list[Record] = [intent("conditional", FIRST), Refused(FIRST.first)]
    assert kinds(said, one_segment(NOTHING)) == set()
    assert kinds(said, one_segment(events(FIRST))) == {"refused, yet there"}


def test_an_idempotent_append_must_be_resolved_with_one_answer() -> None:
    sent = intent("producer-append", FIRST, producer="p")
    held = one_segment(events(FIRST))
    assert kinds([sent], held) == {"never resolved"}
    assert kinds([sent, acked(FIRST, 0), acked(FIRST, 0)], held) == set()
    assert kinds([sent, acked(FIRST, 0), acked(FIRST, 1)], held) == {"repeat answered differently"}


def test_events_that_nobody_sent_or_that_changed_are_found() -> None:
    assert kinds([], one_segment(events(FIRST))) == {"never sent"}
    other = events(FIRST, SECOND)
    other["number"][1] = 99
    assert kinds(SAID, one_segment(other)) == {"changed on its way"}


def test_an_acknowledged_place_that_holds_another_event_is_found() -> None:
    said: list[Record] = [*SAID[:3], acked(SECOND, 0)]
    assert kinds(said, one_segment(events(FIRST, SECOND))) == {"not where acknowledged"}


def test_a_head_beyond_the_events_is_found() -> None:
    copies = [StreamCopy("alpha", (segment(0, events(FIRST, SECOND), head=6),))]
    assert kinds(SAID, copies) == {"offsets"}


def test_an_event_outside_its_segments_keys_is_found() -> None:
    copies = [
        StreamCopy(
            "alpha",
            (
                segment(0, NOTHING, span=(0, HALF)),
                segment(1, events(FIRST, SECOND), span=(HALF, KEY_SPACE)),
            ),
        )
    ]
    said: list[Record] = [intent("batch", FIRST), intent("batch", SECOND)]
    assert kinds(said, copies) == {"wrong segment"}


def test_open_segments_that_leave_keys_out_are_found() -> None:
    copies = [StreamCopy("alpha", (segment(0, NOTHING, span=(0, HALF)),))]
    assert kinds([], copies) == {"tiling"}
