"""The checker finds what is planted, and nothing in a history that is sound."""

from __future__ import annotations

import pytest

from tests.torture.histories.checker import Copy, Stored, check
from tests.torture.histories.records import (
    IN,
    OUT,
    SIDE,
    Acked,
    Acking,
    Delivered,
    Hold,
    Record,
    Sent,
    Spot,
    Told,
    Trimming,
    Writing,
    Written,
)


class History:
    """A log and what processes said of it; time goes on with every record."""

    def __init__(self) -> None:
        self.journals: dict[str, list[Record]] = {}
        self._now_ns = 0
        self._log: dict[str, list[Stored]] = {IN: [], SIDE: [], OUT: []}
        self.tails: dict[str, int] = {}

    def tick(self) -> int:
        self._now_ns += 1
        return self._now_ns

    def say(self, process: str, record: Record) -> None:
        self.journals.setdefault(process, []).append(record)

    def store(self, stream: str, name: str, key: str = "k") -> Spot:
        kept = self._log[stream]
        spot = Spot(stream, 0, self.tails.get(stream, 0) + len(kept))
        kept.append(Stored(spot, key, name))
        return spot

    def begin(self, process: str, *names: str, stream: str = IN, key: str = "k") -> None:
        events = [Sent(stream, key, name) for name in names]
        self.say(process, Writing(self.tick(), names[0], "append", events))

    def end(self, process: str, call: str, told: Told = "done", *spots: Spot) -> None:
        self.say(process, Written(self.tick(), call, told, list(spots) or None))

    def write(self, process: str, *names: str) -> None:
        self.begin(process, *names)
        self.end(process, names[0], "done", *(self.store(IN, name) for name in names))

    def deliver(self, process: str, name: str, token: int = 1) -> Hold:
        hold = Hold("0", token, name, 1)
        self.say(process, Delivered(self.tick(), hold))
        return hold

    def ack(self, process: str, hold: Hold, told: Told = "done", output: str = "") -> None:
        self.say(process, Acking(self.tick(), hold, output))
        self.say(process, Acked(self.tick(), hold, told))

    def consume(self, process: str, name: str, token: int = 1, told: Told = "done") -> None:
        self.ack(process, self.deliver(process, name, token), told)

    def kinds(self) -> list[str]:
        log = {}
        for stream, events in self._log.items():
            tail = self.tails.get(stream, 0)
            log[stream] = Copy(events, {0: (tail, tail + len(events))})
        findings, _ = check(self.journals, log)
        return [finding.kind for finding in findings]


@pytest.fixture
def history() -> History:
    return History()


def test_a_sound_history_has_no_findings(history: History) -> None:
    history.write("p", "a", "b")
    history.consume("c", "a")
    hold = history.deliver("c", "b")
    history.ack("c", hold, "done", "b|c|1")
    history.store(OUT, "b|c|1")
    history.store(SIDE, "b|c|1")
    assert history.kinds() == []


def test_an_acknowledged_event_that_is_missing(history: History) -> None:
    history.begin("p", "a")
    history.end("p", "a", "done")
    assert history.kinds() == ["acknowledged and missing"]


def test_an_event_that_is_doubled(history: History) -> None:
    history.write("p", "a")
    history.store(IN, "a")
    history.consume("c", "a")
    assert "doubled" in history.kinds()


def test_an_event_elsewhere_than_told(history: History) -> None:
    history.begin("p", "a")
    history.store(IN, "a")
    history.end("p", "a", "done", Spot(IN, 0, 7))
    history.consume("c", "a")
    assert history.kinds() == ["elsewhere than told"]


@pytest.mark.parametrize("told", ["given up", "unknown"])
def test_an_append_that_is_half_there(history: History, told: Told) -> None:
    history.begin("p", "a", "b")
    history.store(IN, "a")
    history.end("p", "a", told)
    history.consume("c", "a")
    assert history.kinds() == ["half there"]


def test_an_append_of_a_killed_process_that_is_half_there(history: History) -> None:
    history.begin("p", "a", "b")
    history.store(IN, "b")
    history.consume("c", "b")
    assert history.kinds() == ["half there"]


def test_what_was_trimmed_is_not_missing(history: History) -> None:
    history.begin("p", "a", "b", stream=SIDE)
    history.say("admin", Trimming(history.tick(), [(Spot(SIDE, 0, 0), "a")]))
    history.tails[SIDE] = 1
    spot = history.store(SIDE, "b")
    history.end("p", "a", "done", Spot(SIDE, 0, 0), spot)
    assert history.kinds() == []


def test_an_offset_that_is_missing(history: History) -> None:
    history.write("p", "a")
    history.consume("c", "a")
    findings, _ = check(
        history.journals,
        {
            IN: Copy([Stored(Spot(IN, 0, 0), "k", "a")], {0: (0, 2)}),
            SIDE: Copy([], {}),
            OUT: Copy([], {}),
        },
    )
    assert [finding.kind for finding in findings] == ["offsets not dense"]


def test_an_event_that_nobody_wrote(history: History) -> None:
    history.store(IN, "a")
    history.consume("c", "a")
    assert history.kinds() == ["never written"]


@pytest.mark.parametrize("second", ["p", "other"])
def test_an_acknowledged_event_behind_a_later_one_of_its_key(history: History, second: str) -> None:
    history.begin("p", "a")
    history.end("p", "a")
    history.write(second, "b")
    history.store(IN, "a")
    history.consume("c", "b")
    history.consume("c", "a")
    assert history.kinds() == ["order of a key"]


def test_an_event_that_was_given_up_behind_a_later_one_of_its_process(history: History) -> None:
    history.begin("p", "a")
    history.end("p", "a", "given up")
    history.write("p", "b")
    history.store(IN, "a")
    history.consume("c", "b")
    history.consume("c", "a")
    assert history.kinds() == ["order of a key"]


def test_an_event_that_was_given_up_may_stand_behind_one_of_another_process(
    history: History,
) -> None:
    history.begin("p", "a")
    history.end("p", "a", "given up")
    history.write("q", "b")
    history.store(IN, "a")
    history.consume("c", "b")
    history.consume("c", "a")
    assert history.kinds() == []


def test_writes_at_the_same_time_have_no_order(history: History) -> None:
    history.begin("p", "a")
    history.begin("p", "b")
    history.end("p", "a", "done", Spot(IN, 0, 1))
    history.end("p", "b", "done", Spot(IN, 0, 0))
    history.store(IN, "b")
    history.store(IN, "a")
    history.consume("c", "b")
    history.consume("c", "a")
    assert history.kinds() == []


def test_what_an_appender_took_is_ordered_by_when_it_was_stored(history: History) -> None:
    history.begin("p", "a")
    history.end("p", "a", "taken")
    history.write("q", "b")
    history.store(IN, "a")
    history.end("p", "a", "done")
    history.consume("c", "b")
    history.consume("c", "a")
    assert history.kinds() == []


def test_an_event_that_is_acked_twice(history: History) -> None:
    history.write("p", "a")
    first = history.deliver("c", "a")
    second = history.deliver("d", "a", token=2)
    history.ack("c", first)
    history.ack("d", second)
    found = history.kinds()
    assert "acked twice" in found
    assert "a stale ack counts" in found


def test_an_event_that_comes_again_after_its_ack(history: History) -> None:
    history.write("p", "a")
    history.consume("c", "a")
    history.deliver("d", "a", token=2)
    assert history.kinds() == ["delivered after an ack that counts"]


def test_a_stale_delivery_is_no_fault(history: History) -> None:
    history.write("p", "a")
    history.consume("d", "a", token=2)
    history.consume("c", "a", token=1, told="refused")
    assert history.kinds() == []


def test_a_token_with_two_owners(history: History) -> None:
    history.write("p", "a", "b")
    history.consume("c", "a")
    history.consume("d", "b")
    assert history.kinds() == ["two owners of one token"]


def test_an_event_that_was_fenced_and_counts(history: History) -> None:
    history.write("p", "a")
    history.consume("c", "a", told="refused")
    assert history.kinds() == ["counts, and was told not to"]


def test_an_event_that_was_never_delivered(history: History) -> None:
    history.write("p", "a")
    assert history.kinds() == ["never delivered"]


def test_an_event_before_its_turn(history: History) -> None:
    history.write("p", "a", "b")
    first = history.deliver("c", "a")
    history.consume("c", "b")
    history.ack("c", first)
    assert history.kinds() == ["delivered before its turn", "counted out of order"]


@pytest.mark.parametrize("told", ["refused", "done"])
@pytest.mark.parametrize("streams", [(), (OUT,), (OUT, SIDE)])
def test_a_transaction_is_what_was_told(
    history: History, told: Told, streams: tuple[str, ...]
) -> None:
    history.write("p", "a")
    history.ack("c", history.deliver("c", "a"), told, "a|c|1")
    for stream in streams:
        history.store(stream, "a|c|1")
    if told == "refused":
        history.consume("c", "a", token=2)
    found = history.kinds()
    assert ("transaction half there" in found) == (len(streams) == 1)
    assert ("output missing" in found) == (told == "done" and not streams)
    assert ("committed, and was told not to be" in found) == (told == "refused" and bool(streams))


def test_output_twice_for_one_event(history: History) -> None:
    history.write("p", "a")
    for token, output in ((1, "a|c|1"), (2, "a|c|2")):
        history.ack("c", history.deliver("c", "a", token), "unknown", output)
        history.store(OUT, output)
        history.store(SIDE, output)
    assert history.kinds() == ["output twice"]
