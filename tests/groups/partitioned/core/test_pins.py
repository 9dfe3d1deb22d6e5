"""Who may claim a partition, and whose acks count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import Fenced, InvalidNameError
from headrace.groups.partitioned.core.config import make_elastic
from headrace.groups.partitioned.core.pins import (
    ClaimGranted,
    ClaimOwner,
    ClaimRefused,
    PartitionClaim,
    Pin,
    Refusal,
    check_claim,
    judge_claim,
)
from headrace.groups.partitioned.core.status import group_status

CONFIG = make_elastic(
    max_members=4, filter="o.*", partitioning_wildcards=[1], members=["m1", "m2", "m3", "m4", "m5"]
)
ME = ClaimOwner("m1", "i1", 3)
MY_PIN = Pin("i1", 3, expires_ms=100)
OTHER = ClaimOwner("m2", "i2", 7)


def judge(
    partition: int = 0,
    claim: PartitionClaim | None = None,
    owner_pin: Pin | None = None,
    claimant_pin: Pin | None = MY_PIN,
    now_ms: int = 50,
) -> ClaimGranted | ClaimRefused:
    return judge_claim(
        partition,
        ME,
        claimant_pin=claimant_pin,
        config=CONFIG,
        claim=claim,
        owner_pin=owner_pin,
        now_ms=now_ms,
    )


def test_a_partition_that_nobody_had_is_granted() -> None:
    assert judge() == ClaimGranted(1)


@pytest.mark.parametrize(
    ("pin", "now_ms"),
    [(None, 50), (Pin("i1", 4, 100), 50), (Pin("i0", 3, 100), 50), (MY_PIN, 100)],
)
def test_without_its_pin_an_instance_claims_nothing(pin: Pin | None, now_ms: int) -> None:
    assert judge(claimant_pin=pin, now_ms=now_ms) == ClaimRefused(Refusal.NOT_PINNED)


def test_only_what_the_config_gives_the_member_can_be_claimed() -> None:
    assert judge(partition=1) == ClaimRefused(Refusal.NOT_ASSIGNED)


@pytest.mark.parametrize(
    ("owner_pin", "granted"),
    [
        (Pin("i2", 7, expires_ms=51), False),
        (Pin("i2", 7, expires_ms=50), True),  # expired
        (Pin("i2", 8, expires_ms=99), True),  # passed on
        (Pin("i9", 8, expires_ms=99), True),
        (None, True),
    ],
)
def test_a_partition_moves_only_when_its_owner_has_finished_or_lost_its_pin(
    owner_pin: Pin | None, granted: bool
) -> None:
    verdict = judge(claim=PartitionClaim(OTHER, 12), owner_pin=owner_pin)
    if granted:
        assert verdict == ClaimGranted(13)
    else:
        assert verdict == ClaimRefused(Refusal.STILL_OWNED, OTHER)
    assert judge(claim=PartitionClaim(None, 12)) == ClaimGranted(13)


def test_asking_again_gives_the_same_token() -> None:
    assert judge(claim=PartitionClaim(ME, 12), owner_pin=MY_PIN) == ClaimGranted(12)


def test_an_earlier_pin_of_the_same_instance_is_another_owner() -> None:
    earlier = PartitionClaim(ClaimOwner("m1", "i1", 2), 12)
    assert judge(claim=earlier, owner_pin=MY_PIN) == ClaimGranted(13)


def test_only_the_newest_owner_may_ack() -> None:
    claim = PartitionClaim(ME, 5)
    check_claim("billing", 0, ME, 5, claim)
    for owner, token, current in ((ME, 4, claim), (OTHER, 5, claim), (ME, 5, None)):
        with pytest.raises(Fenced):
            check_claim("billing", 0, owner, token, current)
    with pytest.raises(Fenced) as caught:
        check_claim("billing", 0, ME, 5, PartitionClaim(None, 5))
    assert (caught.value.group, caught.value.unit, caught.value.current) == ("billing", "0", 5)


names = st.text(alphabet="ab-_9", min_size=1, max_size=6)


@given(names, names, st.integers(0, 2**62))
def test_owners_survive_the_round_trip(member: str, instance: str, token: int) -> None:
    owner = ClaimOwner(member, instance, token)
    assert ClaimOwner.decode(owner.encode()) == owner


@pytest.mark.parametrize(
    "text", ["", "a", "a.b", "a.b.", "a.b.x", "a.b.-1", ".b.1", "a..1", "a.b.1.2"]
)
def test_other_texts_are_not_owners(text: str) -> None:
    with pytest.raises(InvalidNameError):
        ClaimOwner.decode(text)


def test_status_names_the_missing_members_and_what_nobody_consumes() -> None:
    pins = {"m1": MY_PIN, "m2": Pin("i2", 7, expires_ms=10), "m4": Pin("i4", 1, expires_ms=90)}
    claims = {
        0: PartitionClaim(ME, 5),
        1: PartitionClaim(OTHER, 2),  # its pin has expired
        2: PartitionClaim(ClaimOwner("m4", "i4", 1), 9),  # m3's by the config
        3: PartitionClaim(None, 4),
    }
    status = group_status(CONFIG, pins, claims, now_ms=50)
    assert status.active == ("m1", "m4")
    assert [(m.member, m.assigned) for m in status.missing] == [("m2", (1,)), ("m3", (2,))]
    assert status.unconsumed == (1, 3)
    assert status.moving == (2,)
    assert status.surplus == ("m5",)
    assert status.members[0].consumed == (0,)
