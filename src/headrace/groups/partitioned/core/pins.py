"""Pins and claims: the rules that the catalog applies inside its transactions.

Theory of operation
-------------------
A *pin* is the lease of a member's active instance; its token grows with every change of hands.
A *claim* is the ownership of a partition, with a token of its own.  The owner of a claim is an
instance *under a pin token*, so a claim outlives neither a step-down nor an expiry.

A partition is claimed only when all three hold at the catalog's clock:

1. the claimant holds the pin of its member, unexpired;
2. the config of this very moment gives the partition to that member;
3. nobody else may be working on it: it was released, or its owner's pin has expired or passed on.

By (3) a partition moves only after the old owner has finished (it released) or is fenced: the
claim's token grows, and with it every ack under the old token is refused.  An owner that asks
again, because the answer was lost, is given the same token.

Tokens never start over.  Whoever deletes a group leaves the tokens of its pins and claims
behind, so that a straggler of the old group cannot pass for an owner in the new one.

These are pure functions over what a transaction has read; they are the only place that decides.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from headrace.errors import Fenced, InvalidNameError
from headrace.groups.partitioned.core.config import GroupConfig
from headrace.subjects import check_name

_JOIN = "."


class ClaimOwner(msgspec.Struct, frozen=True):
    """An instance of a member under a pin; written into a claim as text."""

    member: str
    instance: str
    pin_token: int

    def encode(self) -> str:
        """``member.instance.token``; neither name can hold a dot."""
        return f"{self.member}{_JOIN}{self.instance}{_JOIN}{self.pin_token}"

    @classmethod
    def decode(cls, text: str) -> ClaimOwner:
        """The inverse of :meth:`encode`."""
        member, _, rest = text.partition(_JOIN)
        instance, _, token = rest.partition(_JOIN)
        if not (token.isascii() and token.isdecimal()):
            raise InvalidNameError(f"{text!r} is not the owner of a claim")
        check_name(member, "member name")
        return cls(member, check_name(instance, "instance name"), int(token))


class Pin(msgspec.Struct, frozen=True):
    """The pin of a member as the catalog has it."""

    instance: str
    token: int
    expires_ms: int

    def is_held_by(self, owner: ClaimOwner, now_ms: int) -> bool:
        """Whether this owner may act under the pin now."""
        return (
            self.instance == owner.instance
            and self.token == owner.pin_token
            and now_ms < self.expires_ms
        )


class PartitionClaim(msgspec.Struct, frozen=True):
    """The claim of a partition as the catalog has it; without an owner it was released."""

    owner: ClaimOwner | None
    token: int


class Refusal(Enum):
    """Why a partition cannot be claimed now."""

    NOT_PINNED = "the pin has expired or passed to another instance"
    NOT_ASSIGNED = "the config gives the partition to another member"
    STILL_OWNED = "its owner has not finished, and its pin has not expired"


class ClaimGranted(msgspec.Struct, frozen=True):
    """The partition may be claimed with this token."""

    token: int


class ClaimRefused(msgspec.Struct, frozen=True):
    """The partition may not be claimed; ``owner`` is whom it waits for."""

    refusal: Refusal
    owner: ClaimOwner | None = None


def judge_claim(
    partition: int,
    claimant: ClaimOwner,
    *,
    claimant_pin: Pin | None,
    config: GroupConfig | None,
    claim: PartitionClaim | None,
    owner_pin: Pin | None,
    now_ms: int,
) -> ClaimGranted | ClaimRefused:
    """Whether ``claimant`` may take the partition.

    ``owner_pin`` is the pin of the member that the claim's owner belongs to.
    """
    if claimant_pin is None or not claimant_pin.is_held_by(claimant, now_ms):
        return ClaimRefused(Refusal.NOT_PINNED)
    if config is None or partition not in config.assignment().get(claimant.member, ()):
        return ClaimRefused(Refusal.NOT_ASSIGNED)
    if claim is None:
        return ClaimGranted(1)
    if claim.owner == claimant:
        return ClaimGranted(claim.token)
    if not is_free(claim, owner_pin, now_ms):
        return ClaimRefused(Refusal.STILL_OWNED, claim.owner)
    return ClaimGranted(claim.token + 1)


def is_free(claim: PartitionClaim, owner_pin: Pin | None, now_ms: int) -> bool:
    """Whether nobody may be working on the partition: released, or its owner's pin is gone."""
    if claim.owner is None or owner_pin is None:
        return True
    return not owner_pin.is_held_by(claim.owner, now_ms)


def check_claim(
    group: str, partition: int, owner: ClaimOwner, token: int, claim: PartitionClaim | None
) -> None:
    """Refuse an ack or a release that does not come from the owner under its newest token."""
    current = 0 if claim is None else claim.token
    if claim is None or claim.token != token or claim.owner != owner:
        raise Fenced(group, str(partition), token, current)


class LateRenewals:
    """Which renewals of a pin also ask for the claims that are left under it.

    While a pin was over, other members could take its partitions, although nobody took the pin
    itself.  Half its time to live is late: clocks of others may be faster.  The answer to a claim
    may come later still, so the question is repeated for as long as a pin lives.
    """

    def __init__(self, pin_ttl_ms: int) -> None:
        self._pin_ttl_ms = pin_ttl_ms
        self._until_ms = 0

    def asks(self, now_ms: int, pin_until_ms: int) -> bool:
        """Whether a renewal at this time does; the pin was known to last until then."""
        if now_ms > pin_until_ms - self._pin_ttl_ms // 2:
            self._until_ms = now_ms + self._pin_ttl_ms
        return now_ms < self._until_ms
