"""An instance of a member, driven event by event."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidGroupConfigError, MembershipEventError
from headrace.groups.decisions import What
from headrace.groups.partitioned.core.changes import add_members, drop_members
from headrace.groups.partitioned.core.config import ElasticGroupConfig, make_elastic, make_static
from headrace.groups.partitioned.core.membership import DECISIONS_MAX, Instance, PinTimings
from headrace.groups.partitioned.core.messages import (
    Abandon,
    AcquirePin,
    ClaimDenied,
    Claimed,
    ClaimLost,
    ClaimPartition,
    ClaimsFreed,
    Close,
    ConfigSeen,
    Consume,
    Drain,
    Drained,
    Event,
    InstanceDecision,
    InstanceEffect,
    MemberStalled,
    Phase,
    PinFreed,
    PinGranted,
    PinHeld,
    PinLost,
    PinReleased,
    PinRenewed,
    Released,
    ReleasePartition,
    ReleasePin,
    RenewPin,
    StepDownAsked,
    Tick,
)
from headrace.groups.partitioned.core.pins import ClaimOwner, Refusal


def group(*members: str, partitions: int = 4) -> ElasticGroupConfig:
    return make_elastic(
        max_members=partitions, filter="o.*", partitioning_wildcards=[1], members=members
    )


class Driver:
    """An instance, its clock, and what it did last."""

    def __init__(self, member: str = "m1") -> None:
        self.instance = Instance(member, "i1")
        self.now_ms = 0
        self.revision = 0

    def hears(self, event: Event, at_ms: int | None = None) -> list[InstanceEffect]:
        self.now_ms = self.now_ms if at_ms is None else at_ms
        effects = self.instance.handle(event, self.now_ms)
        return [e for e in effects if not isinstance(e, InstanceDecision)]

    def sees(self, config: ElasticGroupConfig | None) -> list[InstanceEffect]:
        self.revision += 1
        return self.hears(ConfigSeen(self.revision, config))

    @property
    def last(self) -> InstanceDecision:
        return self.instance.decisions[-1]


def pinned(*members: str, token: int = 3) -> Driver:
    """m1 of the members, pinned and owning everything that is its own, with tokens of 10."""
    driver = Driver()
    driver.sees(group(*members))
    driver.hears(PinGranted(token, 0))
    for partition in sorted(driver.instance.wanted):
        driver.hears(Claimed(partition, token, 10))
    assert driver.instance.settled
    return driver


# --- standing by ---------------------------------------------------------------------------


def test_a_name_that_is_not_a_member_waits_and_says_so() -> None:
    driver = Driver("m9")
    assert driver.sees(None) == []
    assert driver.last.reason == "there is no such group"
    assert driver.sees(group("m1", "m2")) == []
    assert "m9 is not a member of the group; members are: m1, m2" in driver.instance.explain()
    assert driver.instance.wake_at_ms is None
    assert driver.sees(group("m1", "m9")) == [AcquirePin(0)]
    assert driver.instance.phase is Phase.STANDBY


def test_a_standby_asks_again_when_the_pin_may_be_free() -> None:
    driver = Driver()
    driver.sees(group("m1"))
    assert driver.hears(PinHeld("i0", expires_in_ms=400)) == []
    assert driver.last.reason == "instance i0 holds the pin"
    assert driver.instance.wake_at_ms == 400
    assert driver.hears(Tick(), 399) == []
    assert driver.hears(Tick(), 400) == [AcquirePin(400)]
    assert driver.hears(PinFreed()) == [AcquirePin(400)]


def test_a_pin_that_comes_too_late_is_given_back() -> None:
    driver = Driver()
    driver.sees(group("m1"))
    driver.sees(group("m2"))
    assert driver.hears(PinGranted(4, 0)) == [ReleasePin(4)]
    assert driver.instance.phase is Phase.WAITING


def test_the_pinned_instance_claims_and_consumes_what_is_its_own() -> None:
    driver = Driver()
    driver.sees(group("m1", "m2"))
    assert driver.hears(PinGranted(3, 0)) == [ClaimPartition(0, 3), ClaimPartition(1, 3)]
    assert driver.hears(Claimed(1, 3, 7)) == [Consume(1, 7)]
    assert driver.instance.owned == {1: 7}
    assert not driver.instance.settled
    assert driver.hears(Claimed(0, 3, 2)) == [Consume(0, 2)]
    assert driver.instance.settled


def test_static_groups_have_the_same_instances() -> None:
    driver = Driver()
    driver.hears(ConfigSeen(1, make_static(max_members=2, members=["m1"])))
    assert driver.hears(PinGranted(1, 0)) == [ClaimPartition(0, 1), ClaimPartition(1, 1)]


# --- the pin -------------------------------------------------------------------------------


def test_a_pin_that_cannot_be_renewed_is_asked_for_until_the_catalog_answers() -> None:
    driver = pinned("m1")
    assert driver.hears(Tick(), 1500) == [RenewPin(3, 1500)]
    driver.hears(PinRenewed(3, 1500))
    for now_ms in (5000, 6500, 8000):
        assert driver.hears(Tick(), now_ms) == [RenewPin(3, now_ms, look=True)]
    assert driver.instance.pin_until_ms == 6500  # it hands out nothing meanwhile
    assert "could not be renewed" in driver.instance.explain()[-1]
    assert driver.instance.owned == dict.fromkeys(range(4), 10)
    driver.hears(PinRenewed(3, 8000))
    assert driver.instance.pin_until_ms == 13000
    assert len(driver.instance.explain()) == 1


def test_a_renewal_without_claims_does_no_more_than_prolong_the_pin() -> None:
    short, whole = pinned("m1"), pinned("m1")
    for driver in (short, whole):
        driver.hears(Tick(), 1500)
    assert short.instance.prolonged(3, 1500)
    assert whole.hears(PinRenewed(3, 1500)) == []
    assert short.instance.pin_until_ms == whole.instance.pin_until_ms == 6500
    assert short.instance.wake_at_ms == whole.instance.wake_at_ms
    assert not short.instance.prolonged(2, 9000)  # of an earlier pin
    assert short.instance.pin_until_ms == 6500


def test_a_pin_that_somebody_took_meanwhile_is_lost() -> None:
    driver = pinned("m1")
    assert driver.hears(Tick(), 9000) == [RenewPin(3, 9000, look=True)]
    assert driver.hears(PinLost(3)) == [*(Abandon(p, 10) for p in range(4)), AcquirePin(9000)]
    assert (driver.instance.phase, driver.instance.owned) == (Phase.STANDBY, {})


def test_partitions_that_others_took_while_the_pin_was_over_are_given_up() -> None:
    driver = pinned("m1")
    assert driver.hears(Tick(), 9000) == [RenewPin(3, 9000, look=True)]
    left = ((0, 10), (1, 11), (2, 10))  # 1 was claimed once more by a request without an answer
    effects = driver.hears(PinRenewed(3, 9000, left, whole=True))
    assert effects == [Abandon(1, 10), Abandon(3, 10)]
    assert driver.instance.owned == {0: 10, 2: 10}
    assert driver.last.reason == "taken from it: its tokens are stale"
    assert ClaimPartition(3, 3) in driver.hears(Tick(), 9200)
    assert driver.hears(Tick(), 10500)[0] == RenewPin(3, 10500, look=True)  # an answer may be late
    driver.hears(PinRenewed(3, 10500))
    assert driver.instance.owned == {0: 10, 2: 10}  # nobody has looked at the claims
    driver.hears(Claimed(3, 3, 12), 10600)
    driver.hears(PinRenewed(3, 10500, ((0, 10), (2, 10)), whole=True))
    assert driver.instance.owned == {0: 10, 2: 10, 3: 12}  # it was granted after that was asked


def test_who_doubts_its_pin_claims_nothing_until_it_is_renewed() -> None:
    driver = Driver()
    driver.hears(ConfigSeen(1, make_static(max_members=1, members=["m1"])))
    driver.hears(PinGranted(1, 0))
    assert driver.hears(Tick(), 5000) == [RenewPin(1, 5000, look=True)]
    assert driver.instance.wake_at_ms == 6500
    driver.hears(PinRenewed(1, 5000))
    assert driver.hears(Tick(), 5001) == [ClaimPartition(0, 1)]


def test_a_claim_that_is_refused_for_the_pin_asks_about_the_pin() -> None:
    driver = Driver()
    driver.hears(ConfigSeen(1, make_static(max_members=1, members=["m1"])))
    driver.hears(PinGranted(1, 0))
    assert driver.hears(ClaimDenied(0, 1, Refusal.NOT_PINNED), 100) == [RenewPin(1, 100)]
    driver.hears(PinRenewed(1, 100))
    assert driver.hears(Tick(), 300) == [ClaimPartition(0, 1)]


def test_a_lost_pin_abandons_everything_at_once() -> None:
    driver = pinned("m1", "m2")
    assert driver.hears(PinLost(3)) == [Abandon(0, 10), Abandon(1, 10), AcquirePin(0)]


def test_old_news_about_the_pin_changes_nothing() -> None:
    driver = pinned("m1", token=3)
    driver.hears(PinLost(3))
    driver.hears(PinGranted(5, 0))
    for event in (PinLost(3), PinGranted(3, 0), PinReleased(3), StepDownAsked(3), PinRenewed(3, 9)):
        assert driver.hears(event) == []
    assert driver.instance.pin_token == 5


def test_a_pin_granted_twice_counts_under_its_newer_token() -> None:
    driver = pinned("m1", "m2", token=3)
    assert driver.hears(PinGranted(4, 0)) == [
        Abandon(0, 10),
        Abandon(1, 10),
        ClaimPartition(0, 4),
        ClaimPartition(1, 4),
    ]


# --- changes of config -----------------------------------------------------------------------


def test_a_change_of_config_moves_only_what_moved_and_keeps_the_pin() -> None:
    driver = pinned("m1", "m2")
    assert driver.sees(group("m1", "m2", "m3", partitions=4)) == [
        Drain(1, 10),
        ClaimPartition(3, 3),
    ]
    assert driver.instance.pin_token == 3
    assert driver.hears(Claimed(3, 3, 1)) == [Consume(3, 1)]
    assert driver.hears(Drained(1, 10)) == [ReleasePartition(1, 10)]
    assert driver.hears(Released(1, 10)) == []
    assert driver.instance.settled


def test_a_partition_that_comes_back_while_it_is_leaving_is_claimed_again_after_release() -> None:
    driver = pinned("m1", "m2")
    driver.sees(group("m0", "m1"))
    driver.sees(group("m1", "m2"))
    assert driver.hears(Drained(0, 10)) == [ReleasePartition(0, 10)]
    assert driver.hears(Released(0, 10)) == [ClaimPartition(0, 3)]


def test_a_drain_that_takes_too_long_is_cut_off() -> None:
    driver = pinned("m1")
    driver.sees(group("m0", "m1"))
    driver.hears(Tick(), 3000)
    driver.hears(PinRenewed(3, 3000))
    driver.hears(Tick(), 7900)
    driver.hears(PinRenewed(3, 7900))
    effects = driver.hears(Tick(), 10_000)
    assert effects[1:] == [
        Abandon(0, 10),
        ReleasePartition(0, 10),
        Abandon(1, 10),
        ReleasePartition(1, 10),
    ]
    assert driver.last.reason == "it did not finish within the limit"


def test_a_dropped_member_finishes_gives_everything_back_and_waits() -> None:
    driver = pinned("m1", "m2")
    config = group("m1", "m2")
    assert driver.sees(drop_members(config, ["m1"])) == [Drain(0, 10), Drain(1, 10)]
    driver.hears(Drained(0, 10))
    driver.hears(Drained(1, 10))
    driver.hears(Released(0, 10))
    assert driver.hears(Released(1, 10)) == [ReleasePin(3)]
    assert driver.hears(PinReleased(3)) == []
    assert driver.instance.phase is Phase.WAITING
    assert driver.sees(add_members(drop_members(config, ["m1"]), ["m1"])) == [AcquirePin(0)]


def test_a_deleted_group_is_abandoned() -> None:
    driver = pinned("m1", "m2")
    effects = driver.sees(None)
    assert effects == [
        Abandon(0, 10),
        ReleasePartition(0, 10),
        Abandon(1, 10),
        ReleasePartition(1, 10),
    ]


def test_a_group_that_was_created_anew_is_another_group() -> None:
    driver = pinned("m1", "m2")
    effects = driver.sees(group("m1", "m2", partitions=9))
    assert effects[:2] == [Abandon(0, 10), ReleasePartition(0, 10)]
    assert driver.instance.phase is Phase.STEPPING_DOWN


def test_an_older_config_is_not_followed() -> None:
    driver = pinned("m1", "m2")
    assert driver.hears(ConfigSeen(0, None)) == []
    assert driver.hears(ConfigSeen(driver.revision, None)) == []
    assert driver.instance.settled


# --- claims ----------------------------------------------------------------------------------


def test_a_partition_is_waited_for_until_its_owner_has_finished() -> None:
    driver = Driver()
    driver.sees(group("m1", partitions=1))
    driver.hears(PinGranted(3, 0))
    denied = ClaimDenied(0, 3, Refusal.STILL_OWNED, ClaimOwner("m2", "i7", 1))
    assert driver.hears(denied) == []
    assert driver.last.what is What.WAITS
    assert "partition 0: claiming for m2/i7" in driver.instance.explain()
    count = len(driver.instance.decisions)
    assert driver.hears(Tick(), 200) == [ClaimPartition(0, 3)]
    assert driver.hears(denied) == []
    assert len(driver.instance.decisions) == count  # the same is not said twice
    assert driver.hears(Claimed(0, 3, 2)) == [Consume(0, 2)]


def test_a_claim_that_is_answered_too_late_is_given_back() -> None:
    driver = Driver()
    driver.sees(group("m1"))
    driver.hears(PinGranted(3, 0))
    driver.sees(group("m0", "m1"))
    assert driver.hears(Claimed(0, 3, 5)) == [ReleasePartition(0, 5)]
    assert driver.hears(Released(0, 5)) == []


def test_a_claim_that_nobody_heard_of_is_given_back_at_the_next_renewal() -> None:
    driver = pinned("m1", "m2")
    assert driver.hears(PinRenewed(3, 0, ((0, 10), (1, 10), (3, 8)))) == [ReleasePartition(3, 8)]
    assert driver.hears(Released(3, 8)) == []
    assert driver.instance.settled


def test_a_fenced_partition_is_abandoned_and_claimed_again_after_a_while() -> None:
    driver = pinned("m1", "m2")
    assert driver.hears(ClaimLost(0, 10)) == [Abandon(0, 10)]
    assert driver.last.what is What.FENCED
    assert driver.hears(Tick(), 200) == [ClaimPartition(0, 3)]


def test_requests_without_an_answer_are_made_again() -> None:
    driver = Driver()
    driver.sees(group("m1", partitions=1))
    assert driver.hears(Tick(), 1000) == [AcquirePin(1000)]
    driver.hears(PinGranted(3, 1000))
    assert driver.hears(Tick(), 2000) == [ClaimPartition(0, 3)]
    driver.hears(Claimed(0, 3, 1))
    driver.hears(StepDownAsked(3))
    driver.hears(Drained(0, 1))
    assert driver.hears(Tick(), 3000) == [RenewPin(3, 3000), ReleasePartition(0, 1)]
    assert driver.hears(Released(0, 1)) == [ReleasePin(3)]
    assert driver.hears(Tick(), 4000) == [ReleasePin(3)]


def test_repeated_answers_change_nothing() -> None:
    driver = pinned("m1", "m2")
    assert driver.hears(Claimed(0, 3, 10)) == []
    driver.sees(group("m0", "m1"))
    driver.hears(Drained(0, 10))
    assert driver.hears(Drained(0, 10)) == []
    driver.hears(Released(0, 10))
    assert driver.hears(Released(0, 10)) == []
    assert driver.hears(Claimed(0, 3, 9)) == []


# --- leaving -----------------------------------------------------------------------------------


def test_step_down_hands_over_and_lets_a_standby_go_first() -> None:
    driver = pinned("m1", "m2")
    assert driver.hears(StepDownAsked(3)) == [Drain(0, 10), Drain(1, 10)]
    for partition in (0, 1):
        driver.hears(Drained(partition, 10))
    driver.hears(Released(0, 10))
    assert driver.hears(Released(1, 10)) == [ReleasePin(3)]
    assert driver.hears(PinReleased(3)) == []
    assert driver.instance.phase is Phase.STANDBY
    assert driver.hears(PinFreed(), 2999) == []
    assert driver.hears(Tick(), 3000) == [AcquirePin(3000)]


def test_an_instance_whose_consumer_has_stalled_is_evicted() -> None:
    driver = pinned("m1", "m2")
    assert driver.hears(MemberStalled(1, 10)) == [
        Abandon(0, 10),
        ReleasePartition(0, 10),
        Abandon(1, 10),
        ReleasePartition(1, 10),
    ]
    evicted = [d for d in driver.instance.decisions if d.what is What.EVICTED]
    assert evicted[0].reason == "its consumer answers nothing on partition 1"


def test_close_finishes_first() -> None:
    driver = pinned("m1", "m2")
    assert driver.hears(Close()) == [Drain(0, 10), Drain(1, 10)]
    assert driver.hears(Close()) == []
    for partition in (0, 1):
        driver.hears(Drained(partition, 10))
        driver.hears(Released(partition, 10))
    assert driver.hears(PinReleased(3)) == []
    assert driver.instance.phase is Phase.CLOSED
    assert driver.sees(group("m1")) == []
    assert driver.hears(Tick(), 99_999) == []
    assert driver.hears(PinGranted(9, 0)) == [ReleasePin(9)]


def test_close_while_standing_by_is_immediate() -> None:
    driver = Driver()
    driver.sees(group("m1"))
    driver.hears(Close())
    assert driver.instance.phase is Phase.CLOSED


# --- what cannot be --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        PinGranted(0, 0),
        PinRenewed(4, 0),
        PinLost(0),
        PinReleased(99),
        Claimed(0, 4, 1),
        Claimed(-1, 3, 1),
        Claimed(0, 3, 0),
        ClaimDenied(0, 4, Refusal.STILL_OWNED),
        ClaimLost(0, 11),
        Drained(2, 10),
        Released(3, 1),
        MemberStalled(0, 0),
    ],
)
def test_impossible_events_raise_and_change_nothing(event: Event) -> None:
    driver = pinned("m1", "m2", token=3)
    before = (driver.instance.owned, driver.instance.wake_at_ms, len(driver.instance.decisions))
    with pytest.raises(MembershipEventError, match="while pinned") as caught:
        driver.hears(event, 500)
    assert type(event).__name__ in str(caught.value)
    after = (driver.instance.owned, driver.instance.wake_at_ms, len(driver.instance.decisions))
    assert after == before
    assert driver.hears(Tick()) == []


def test_timings_that_cannot_work_are_refused() -> None:
    with pytest.raises(InvalidGroupConfigError, match="claim_retry_ms"):
        PinTimings(claim_retry_ms=0)
    with pytest.raises(InvalidGroupConfigError, match="two renewals"):
        PinTimings(pin_ttl_ms=2000, renew_every_ms=1500)


configs = st.one_of(
    st.none(), st.lists(st.sampled_from(["m1", "m2", "m3"]), max_size=3).map(lambda m: group(*m))
)
small = st.integers(1, 4)
events = st.one_of(
    st.builds(ConfigSeen, st.integers(0, 40), configs),
    st.builds(PinGranted, small, st.integers(0, 5000)),
    st.builds(PinHeld, st.just("i9"), st.integers(0, 3000)),
    st.just(PinFreed()),
    st.builds(
        PinRenewed,
        small,
        st.integers(0, 9000),
        st.lists(st.tuples(st.integers(0, 3), small), max_size=2).map(tuple),
    ),
    st.builds(PinLost, small),
    st.builds(PinReleased, small),
    st.builds(Claimed, st.integers(0, 3), small, small),
    st.builds(ClaimDenied, st.integers(0, 3), small, st.sampled_from(Refusal)),
    st.builds(ClaimLost, st.integers(0, 3), small),
    st.builds(Drained, st.integers(0, 3), small),
    st.builds(Released, st.integers(0, 3), small),
    st.builds(MemberStalled, st.integers(0, 3), small),
    st.builds(StepDownAsked, small),
    st.just(Tick()),
)


@given(st.lists(st.tuples(events, st.integers(0, 2000)), max_size=60))
@settings(max_examples=150)
def test_whatever_it_hears_it_consumes_only_under_a_pin_and_one_token_at_a_time(
    story: list[tuple[Event, int]],
) -> None:
    instance = Instance("m1", "i1")
    consuming: dict[int, int] = {}
    draining: set[int] = set()
    now = 0
    for event, wait in story:
        now += wait
        try:
            effects = instance.handle(event, now)
        except MembershipEventError:
            continue
        for effect in effects:
            match effect:
                case Consume(partition, token):
                    assert partition not in consuming
                    consuming[partition] = token
                case Drain(partition, token):
                    assert consuming[partition] == token
                    draining.add(partition)
                case Abandon(partition, token):
                    assert consuming.pop(partition) == token
                    draining.discard(partition)
                case ReleasePartition(partition, _):
                    if partition in consuming:
                        assert partition in draining
                        draining.discard(partition)
                        del consuming[partition]
                case _:
                    pass
        assert consuming == instance.owned
        assert not consuming or instance.pin_token is not None
        assert len(instance.decisions) <= DECISIONS_MAX


def test_claims_that_were_refused_are_made_again_on_news_and_no_others() -> None:
    driver = Driver()
    driver.sees(group("m1"))
    driver.hears(PinGranted(3, 0))
    driver.hears(Claimed(0, 3, 1))
    driver.hears(ClaimDenied(1, 3, Refusal.STILL_OWNED, ClaimOwner("m2", "i7", 5)))
    assert driver.instance.waits_for_claims
    assert driver.hears(ClaimsFreed(), 5) == [ClaimPartition(1, 3)]
    driver.hears(Claimed(1, 3, 2))
    assert not driver.instance.waits_for_claims
    assert driver.hears(ClaimsFreed()) == []
    driver.hears(PinLost(3))
    assert driver.hears(ClaimsFreed()) == []
