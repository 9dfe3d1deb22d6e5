"""Which jobs run, when, and how often a failed one is tried."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.errors import UnknownJobError
from headrace.spark.jobs import JobSpec, Meter
from headrace.spark.supervision import (
    BackOff,
    Effect,
    Forget,
    Phase,
    Start,
    Stop,
    Supervision,
)

ORDERS = JobSpec("compaction", "orders", "1")
CHANGED = JobSpec("compaction", "orders", "2")
BILLING = JobSpec("partition", "orders.billing", "1")


def test_what_is_wanted_is_started_once() -> None:
    supervision = Supervision()
    assert supervision.want([ORDERS, BILLING], 0) == [Start(ORDERS), Start(BILLING)]
    assert supervision.want([ORDERS, BILLING], 1) == []


def test_what_is_no_longer_wanted_is_stopped_and_then_forgotten() -> None:
    supervision = Supervision()
    supervision.want([ORDERS, BILLING], 0)
    assert supervision.want([ORDERS], 1) == [Stop(BILLING.name)]
    assert supervision.want([ORDERS], 2) == [], "it was told once"
    assert supervision.ended(BILLING.name, None, 3, 1.0) == [Forget(BILLING.name)]
    assert [slot.spec for slot in supervision.slots] == [ORDERS]


def test_a_job_wanted_again_while_it_stops_starts_once_it_is_over() -> None:
    supervision = Supervision()
    supervision.want([ORDERS], 0)
    supervision.want([], 1)
    assert supervision.want([ORDERS], 2) == [], "never two of one name"
    assert supervision.ended(ORDERS.name, "cut off", 3, 1.0) == [Start(ORDERS)]


def test_a_changed_job_is_stopped_and_started_in_its_new_form() -> None:
    supervision = Supervision()
    supervision.want([ORDERS], 0)
    assert supervision.want([CHANGED], 1) == [Stop(ORDERS.name)]
    assert supervision.ended(ORDERS.name, None, 2, 1.0) == [Start(CHANGED)]


def test_a_change_ends_the_wait_of_a_failed_job() -> None:
    supervision = Supervision()
    supervision.want([ORDERS], 0)
    supervision.ended(ORDERS.name, "no", 0, 1.0)
    assert supervision.want([ORDERS], 1) == []
    assert supervision.want([CHANGED], 2) == [Start(CHANGED)]


def test_failures_in_a_row_wait_longer_up_to_a_bound() -> None:
    supervision = Supervision(BackOff(first_ms=100, most_ms=1000))
    supervision.want([ORDERS], 0)
    waits = []
    for _ in range(7):
        assert supervision.ended(ORDERS.name, "no", 0, 1.0) == []
        due_ms = supervision.next_due_ms
        assert due_ms is not None
        waits.append(due_ms)
        assert supervision.due(due_ms - 1) == []
        assert supervision.due(due_ms) == [Start(ORDERS)]
    assert waits == [100, 200, 400, 800, 1000, 1000, 1000]
    assert supervision.next_due_ms is None


def test_work_makes_earlier_failures_count_no_more() -> None:
    supervision = Supervision(BackOff(first_ms=100))
    supervision.want([ORDERS], 0)
    for _ in range(5):
        supervision.ended(ORDERS.name, "no", 0, 1.0)
        supervision.due(10**6)
    supervision.worked(ORDERS.name)
    supervision.ended(ORDERS.name, "again", 0, 1.0)
    (slot,) = supervision.slots
    assert (slot.failures, slot.due_ms, slot.last_error, slot.starts) == (1, 100, "again", 6)


def test_a_good_end_is_followed_by_a_short_wait() -> None:
    supervision = Supervision(BackOff(first_ms=100))
    supervision.want([ORDERS], 0)
    supervision.ended(ORDERS.name, None, 0, 0.0)
    assert (supervision.next_due_ms, supervision.idle) == (50, True)


def test_standing_down_stops_everything() -> None:
    supervision = Supervision()
    supervision.want([ORDERS, BILLING], 0)
    supervision.ended(BILLING.name, "no", 1, 1.0)
    assert supervision.stand_down(2) == [Stop(ORDERS.name), Forget(BILLING.name)]
    assert not supervision.idle
    supervision.ended(ORDERS.name, None, 3, 1.0)
    assert supervision.slots == ()


def test_events_of_jobs_that_do_not_run_are_refused() -> None:
    supervision = Supervision()
    supervision.want([ORDERS], 0)
    supervision.ended(ORDERS.name, "no", 0, 1.0)
    before = supervision.slots
    for name in (ORDERS.name, BILLING.name):
        with pytest.raises(UnknownJobError, match=name):
            supervision.ended(name, None, 0, 1.0)
        with pytest.raises(UnknownJobError, match=name):
            supervision.worked(name)
    assert supervision.slots == before


@given(st.integers(0, 10**6), st.floats(0, 1))
def test_pauses_stay_within_their_bounds(failures: int, chance: float) -> None:
    assert 500 <= BackOff().delay_ms(failures, chance) <= 60_000


class Machine(RuleBasedStateMachine):
    """Any order of wishes, ends and time: jobs run as wanted, and never two of one name."""

    @initialize()
    def begin(self) -> None:
        self.supervision = Supervision(BackOff(first_ms=10, most_ms=100))
        self.running: dict[str, JobSpec] = {}
        self.told: set[str] = set()
        self.wanted: dict[str, JobSpec] = {}
        self.now_ms = 0

    def apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start(spec=spec):
                    assert spec.name not in self.running
                    assert self.wanted[spec.name] == spec
                    self.running[spec.name] = spec
                case Stop(name=name):
                    assert name in self.running
                    assert name not in self.told
                    self.told.add(name)
                case Forget(name=name):
                    assert name not in self.running
                    assert name not in self.wanted

    @rule(specs=st.sets(st.sampled_from([ORDERS, CHANGED, BILLING])))
    def want(self, specs: set[JobSpec]) -> None:
        self.wanted = {spec.name: spec for spec in sorted(specs)}
        self.apply(self.supervision.want(sorted(specs), self.now_ms))

    @rule(data=st.data(), failed=st.booleans())
    def end(self, data: st.DataObject, failed: bool) -> None:
        if self.running:
            name = data.draw(st.sampled_from(sorted(self.running)))
            del self.running[name]
            self.told.discard(name)
            error = "no" if failed else None
            self.apply(self.supervision.ended(name, error, self.now_ms, 1.0))

    @rule(ms=st.integers(0, 150))
    def time(self, ms: int) -> None:
        self.now_ms += ms
        self.apply(self.supervision.due(self.now_ms))

    @invariant()
    def all_that_is_wanted_runs_stops_or_waits(self) -> None:
        slots = {slot.spec.name: slot for slot in self.supervision.slots}
        assert set(self.wanted) <= set(slots)
        for name, slot in slots.items():
            assert (slot.phase is not Phase.WAITING) == (name in self.running)
            assert (slot.phase is Phase.STOPPING) == (name in self.told)
            if slot.phase is Phase.WAITING:
                assert slot.due_ms <= self.now_ms + 100


TestMachine = Machine.TestCase


def test_a_meter_tells_the_rate_of_the_last_minute() -> None:
    meter = Meter()
    assert meter.rate_per_s(5) == 0
    meter.add(100, 10)
    meter.add(500, 20)
    assert meter.rate_per_s(30) == 30
    assert meter.rate_per_s(75) == 500 / 60
    assert meter.rate_per_s(200) == 0
    assert meter.total == 600
