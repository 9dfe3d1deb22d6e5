"""Leases as they are seen, and for how long by a clock that nobody puts back."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Lease(msgspec.Struct, frozen=True):
    """A lease as held (or, in ``get``, as it stands): ``expires_us`` is the catalog's time."""

    name: str
    owner: str
    token: int
    expires_us: int


class Ended(msgspec.Struct, frozen=True, gc=False):
    """A lease that has run out, or is over for whoever takes it, and was not given back."""

    name: str
    owner: str
    token: int
    expires_us: int
    heard_us: int
    """When it was taken or last renewed; 0 if that is not known."""
    told: bool
    """Whether its end was recorded."""


class Watch:
    """Leases that somebody waits for, as they were first seen by his monotonic clock."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Lease, int]] = {}
        self._latest_us = self._latest_ms = 0

    def is_over(self, lease: Lease, now_us: int, now_ms: int, ttl_ms: int) -> bool:
        """Whether it has run out by the catalog's clock, or was not renewed for ``ttl_ms``."""
        since_ms = self.see(lease, now_ms)
        return lease.expires_us <= now_us or now_ms - since_ms >= ttl_ms

    def see(self, lease: Lease, now_ms: int) -> int:
        """Take in a lease as it is now; returns since when it was seen to be like that."""
        seen, since_ms = self._seen.get(lease.name, (None, 0))
        if seen != lease:
            self._seen[lease.name] = lease, now_ms
            return now_ms
        return since_ms

    def unrenewed(
        self, held: Iterable[Ended], now_us: int, now_ms: int
    ) -> tuple[set[Lease], int | None]:
        """Leases that are over although the catalog's clock, put back, says otherwise.

        Also in how many ms the next would be.  The latest that the clock ever was goes on by the
        monotonic one.  A lease that was renewed before the clock was put back (in its future, now)
        is judged by that, and every lease by how long it was seen unchanged.
        """
        steady_us = max(now_us, self._latest_us + (now_ms - self._latest_ms) * 1000)
        self._latest_us, self._latest_ms = steady_us, now_ms
        over, next_ms = set(), None
        for each in held:
            lease = Lease(each.name, each.owner, each.token, each.expires_us)
            since_ms = self.see(lease, now_ms)
            if not each.heard_us:
                continue
            left_ms = since_ms - now_ms + (each.expires_us - each.heard_us) // 1000
            if each.heard_us > now_us:
                left_ms = min(left_ms, (each.expires_us - steady_us) // 1000)
            if left_ms <= 0:
                over.add(lease)
            elif next_ms is None or left_ms < next_ms:
                next_ms = left_ms
        return over, next_ms

    def ended(
        self, held: Iterable[Ended], now_us: int, now_ms: int
    ) -> tuple[set[Lease], int | None]:
        """As :meth:`unrenewed`, with those that have run out by the catalog's clock."""
        found = {Lease(each.name, each.owner, each.token, each.expires_us): each for each in held}
        ended = {lease for lease in found if lease.expires_us <= now_us}
        for lease in ended:
            self.see(lease, now_ms)
        unrenewed, next_ms = self.unrenewed(
            [each for lease, each in found.items() if lease not in ended], now_us, now_ms
        )
        ended |= unrenewed
        left_ms = [-((now_us - lease.expires_us) // 1000) for lease in found if lease not in ended]
        return ended, min(left_ms if next_ms is None else [*left_ms, next_ms], default=None)

    def forget(self, name: str) -> None:
        """Nobody waits for it any more."""
        self._seen.pop(name, None)
