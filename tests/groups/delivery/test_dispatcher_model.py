"""The dispatcher against a model that keeps one plain record per event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from headrace.errors import DeliveryError
from headrace.groups.delivery import DeadLetter, DeliveryConfig, Dispatcher, Retry, Stalled
from headrace.groups.progress import AckedRanges, Progress


@dataclass
class Known:
    """One event as the model sees it."""

    key: int
    state: str = "buffered"  # flight, refused, dying, acked
    attempts: int = 0
    deadline_ms: int = 0
    due_ms: int = 0


class DispatcherModel(RuleBasedStateMachine):
    """Random feeds, answers, time-outs and hand-overs; every hand-out is judged by the model."""

    @initialize(
        max_pending=st.integers(1, 6),
        per_key=st.integers(1, 2),
        max_deliveries=st.integers(0, 3),
        backoff=st.integers(0, 20),
    )
    def begin(self, max_pending: int, per_key: int, max_deliveries: int, backoff: int) -> None:
        self.config = DeliveryConfig(
            max_pending=max_pending,
            max_pending_per_key=per_key,
            max_deliveries=max_deliveries,
            backoff_min_ms=backoff,
            backoff_max_ms=40,
            ack_wait_ms=50,
            stall_after_ms=120,
            buffer_events_max=12,
        )
        self.dispatcher = Dispatcher(self.config)
        self.log: list[int | None] = []  # key of each offset; None holds nothing for the group
        self.events: dict[int, Known] = {}
        self.attempts_before: dict[int, int] = {}  # under earlier owners
        self.elsewhere: set[int] = set()  # acked by others before they were fed
        self.now_ms = 0
        self.silent_since_ms: int | None = None
        self.paused = False

    # --- what happens ---

    @rule(keys=st.lists(st.one_of(st.none(), st.integers(0, 3)), max_size=8))
    def feed(self, keys: list[int | None]) -> None:
        start = self.dispatcher.next_offset
        self.log += keys[: max(0, start + len(keys) - len(self.log))]
        end = min(len(self.log), start + self.dispatcher.wanted)
        ours = [o for o in range(start, end) if self.log[o] is not None]
        self.dispatcher.feed(ours, [self.log[o] or 0 for o in ours], end)
        for offset in ours:
            if offset in self.elsewhere:
                self.events[offset] = Known(self.log[offset] or 0, "acked")
            attempts = self.attempts_before.get(offset, 0)
            self.events.setdefault(offset, Known(self.log[offset] or 0, attempts=attempts))

    @rule(max_events=st.integers(0, 8))
    def take(self, max_events: int) -> None:
        unacked = [e for e in self.events.values() if e.state in ("flight", "refused", "dying")]
        assert len(unacked) <= self.config.max_pending
        handed = self.dispatcher.take(max_events, self.now_ms)
        if self.paused:
            assert not handed.offsets
            return
        for offset in sorted(self.dispatcher.dying):
            event = self.events[offset]
            if event.state == "buffered":  # deliveries used up under an earlier owner
                assert 0 < self.config.max_deliveries <= event.attempts
                event.state = "dying"
        for offset, attempt in zip(handed.offsets, handed.attempts, strict=True):
            self.judge(offset, attempt)
        if len(handed.offsets) < max_events:
            self.judge_that_nothing_was_held_back()
        if handed.offsets and self.silent_since_ms is None:
            self.silent_since_ms = self.now_ms

    def judge(self, offset: int, attempt: int) -> None:
        event = self.events[offset]
        earlier = [e for o, e in self.events.items() if o < offset and e.key == event.key]
        if event.state == "refused":
            assert event.due_ms <= self.now_ms
        else:
            assert event.state == "buffered"
            assert sum(e.state != "acked" for e in earlier) < self.config.max_pending_per_key
        assert not any(e.state in ("buffered", "refused") for e in earlier), "order within the key"
        assert attempt == event.attempts + 1
        event.state, event.deadline_ms = "flight", self.now_ms + self.config.ack_wait_ms

    def judge_that_nothing_was_held_back(self) -> None:
        """With room left, every event that may go has gone."""
        unacked = [e for e in self.events.values() if e.state in ("flight", "refused", "dying")]
        for offset, event in self.events.items():
            same = [e for o, e in self.events.items() if e.key == event.key and o < offset]
            if event.state == "refused" and event.due_ms <= self.now_ms:
                assert any(e.state == "refused" for e in same)
            if event.state == "buffered" and len(unacked) < self.config.max_pending:
                key = [e for e in self.events.values() if e.key == event.key]
                held = sum(e.state in ("flight", "refused", "dying") for e in key)
                blocked = any(e.state == "refused" for e in key)
                first = not any(e.state == "buffered" for e in same)
                assert not first or blocked or held >= self.config.max_pending_per_key

    def in_flight(self) -> list[int]:
        return sorted(o for o, e in self.events.items() if e.state == "flight")

    def answered(self) -> None:
        self.silent_since_ms = self.now_ms if self.in_flight() else None

    @precondition(lambda self: self.in_flight())
    @rule(data=st.data())
    def ack_some(self, data: st.DataObject) -> None:
        offsets = data.draw(
            st.lists(st.sampled_from(self.in_flight()), min_size=1, max_size=4, unique=True)
        )
        attempts = [self.events[o].attempts + 1 for o in offsets]
        if len(offsets) == 1:
            self.dispatcher.ack(offsets[0], attempts[0], self.now_ms)
        else:
            self.dispatcher.ack_many(offsets, self.now_ms, attempts)
        for offset in offsets:
            self.events[offset].state = "acked"
        self.answered()

    @precondition(lambda self: self.in_flight())
    @rule(data=st.data(), delay=st.one_of(st.none(), st.integers(0, 30)), reject=st.booleans())
    def refuse(self, data: st.DataObject, delay: int | None, reject: bool) -> None:
        offset = data.draw(st.sampled_from(self.in_flight()))
        attempt = self.events[offset].attempts + 1
        if reject:
            outcome: Any = self.dispatcher.reject(offset, attempt, self.now_ms)
        else:
            outcome = self.dispatcher.nack(offset, attempt, self.now_ms, delay)
        self.refused(outcome, delay, reject)
        self.answered()

    def refused(self, outcome: Retry | DeadLetter, delay: int | None, reject: bool) -> None:
        event = self.events[outcome.offset]
        event.attempts += 1
        assert outcome.attempts == event.attempts
        limit = self.config.max_deliveries
        if reject or (limit and event.attempts >= limit):
            assert isinstance(outcome, DeadLetter)
            event.state = "dying"
        else:
            assert isinstance(outcome, Retry)
            wait = self.config.backoff_ms(event.attempts) if delay is None else delay
            assert outcome.due_ms == self.now_ms + wait
            event.state, event.due_ms = "refused", outcome.due_ms

    @precondition(lambda self: self.in_flight())
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(self.in_flight()))
        self.dispatcher.extend(offset, self.events[offset].attempts + 1, self.now_ms)
        self.events[offset].deadline_ms = self.now_ms + self.config.ack_wait_ms
        self.answered()

    @rule(
        offset=st.integers(0, 20), off_by=st.integers(-1, 1), verb=st.sampled_from(["ack", "nack"])
    )
    def answer_wrongly(self, offset: int, off_by: int, verb: str) -> None:
        event = self.events.get(offset)
        if off_by == 0 and event is not None and event.state == "flight":
            return
        attempt = (event.attempts if event else 0) + 1 + off_by
        with pytest.raises(DeliveryError):
            getattr(self.dispatcher, verb)(offset, attempt, self.now_ms)

    @precondition(lambda self: self.dispatcher.dying)
    @rule(data=st.data())
    def store_dead_letter(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.dispatcher.dying)))
        self.dispatcher.dead_lettered(offset, self.now_ms)
        self.events[offset].state = "acked"

    @rule(by_ms=st.integers(0, 60))
    def time_passes(self, by_ms: int) -> None:
        self.now_ms += by_ms
        expired = {o for o in self.in_flight() if self.events[o].deadline_ms <= self.now_ms}
        outcomes = self.dispatcher.tick(self.now_ms)
        stalls = [o for o in outcomes if isinstance(o, Stalled)]
        refusals = [o for o in outcomes if not isinstance(o, Stalled)]
        assert {o.offset for o in refusals} == expired
        for outcome in refusals:
            self.refused(outcome, None, reject=False)
        if stalls:
            assert self.silent_since_ms is not None
            assert stalls[0].silent_since_ms == self.silent_since_ms
            assert self.now_ms - self.silent_since_ms >= self.config.stall_after_ms

    @precondition(lambda self: not self.paused)
    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        """What the application has not seen goes back: it comes before all else of its key."""
        flying = self.in_flight()
        unseen = data.draw(st.lists(st.sampled_from(flying), unique=True)) if flying else []
        self.dispatcher.pause()
        self.dispatcher.recall(unseen)
        self.paused = True
        for offset in unseen:
            self.events[offset].state, self.events[offset].due_ms = "refused", self.now_ms
        if not self.in_flight():
            self.silent_since_ms = None

    @precondition(lambda self: self.paused)
    @rule()
    def resume(self) -> None:
        self.dispatcher.resume()
        self.paused = False

    @rule(offsets=st.sets(st.integers(0, 30), max_size=12), data=st.data())
    def others_ack(self, offsets: set[int], data: st.DataObject) -> None:
        """Another region is through with events: what is not handed out, or unseen, is acked."""
        offsets = {o for o in offsets if o < len(self.log)}
        flying = self.in_flight()
        unseen = data.draw(st.lists(st.sampled_from(flying), unique=True)) if flying else []
        acked = AckedRanges()
        acked.ack_many(sorted(offsets))
        known = self.dispatcher.progress().acked()
        passed = self.dispatcher.pass_over(acked, unseen)
        expected = []
        for offset in sorted(offsets):
            event = self.events.get(offset)
            if event is None:  # not fed: it is known when it comes
                assert offset in self.dispatcher.progress().acked()
                self.attempts_before.pop(offset, None)
            elif event.state in ("buffered", "refused") or offset in unseen:
                expected.append(offset)
                event.state = "acked"
        assert (passed or []) == expected
        assert passed is not None or known == self.dispatcher.progress().acked()
        self.elsewhere |= offsets - self.events.keys()
        if not self.in_flight():
            self.silent_since_ms = self.dispatcher._silent_since_ms

    @rule()
    def hand_over(self) -> None:
        """A new owner begins with the stored progress: what was in flight is delivered again."""
        record = Progress.decode(self.dispatcher.progress().encode())
        self.dispatcher = Dispatcher(self.config, record)
        self.silent_since_ms = None
        self.paused = False
        unacked = {o: e for o, e in self.events.items() if e.state != "acked"}
        self.attempts_before = {o: e.attempts for o, e in unacked.items()} | {
            o: n for o, n in self.attempts_before.items() if o not in self.events
        }
        for offset in unacked:
            del self.events[offset]

    # --- what always holds ---

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "dispatcher"):
            return
        seen = self.dispatcher.statistics()
        by_state = [e.state for e in self.events.values()]
        assert seen.in_flight == by_state.count("flight")
        assert seen.refused == by_state.count("refused")
        assert seen.dying == by_state.count("dying")
        wanted = 0 if self.paused else self.config.buffer_events_max - seen.buffered
        assert self.dispatcher.wanted == wanted
        acked = self.dispatcher.progress().acked()
        for offset, event in self.events.items():
            assert (offset in acked) is (event.state == "acked")
        for offset, key in enumerate(self.log[: self.dispatcher.next_offset]):
            assert key is not None or offset in acked
        assert self.dispatcher.idle is ("flight" not in by_state and "dying" not in by_state)


TestDispatcherModel = DispatcherModel.TestCase
TestDispatcherModel.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
