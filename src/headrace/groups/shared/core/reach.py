"""Whether other peers can be dialled, and which way messages to them take.

A peer that could not be dialled for a while is written to through the catalog, and dialled again
from time to time.  One that is dead cannot be dialled either, and before long does not lead any
more.  So nothing is said about a peer before it has answered through the catalog, or has answered
neither way for a while.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

WRITE_AFTER_MS = 1500
"""How long a peer cannot be dialled before it is written to: a restart is quicker."""
DIAL_AGAIN_MS = 5000
SAY_AFTER_MS = 8000
FORGET_MS = 60_000


class Way(StrEnum):
    """How a message goes to another peer."""

    DIAL = "dial"
    WRITE = "write"
    BOTH = "both"
    """Through the catalog; and a connection is tried, with a copy."""


class Unreached(msgspec.Struct):
    """A peer that cannot be dialled."""

    since_ms: int
    failed_ms: int
    """When the last attempt failed."""
    dial_ms: int
    """When to try again."""
    why: str
    """Both addresses, and what happened, in words."""
    heard: bool = False
    """Whether it has answered through the catalog."""
    said: bool = False


class Reachability:
    """What is known of the ways to other peers."""

    def __init__(self) -> None:
        self._unreached: dict[str, Unreached] = {}

    def why(self, peer: str) -> str:
        """Why a peer is written to; empty if it is dialled."""
        found = self._unreached.get(peer)
        return "" if found is None else found.why

    def failed(self, peer: str, why: str, began_ms: int, now_ms: int) -> None:
        """A peer could not be dialled; the attempt began then."""
        for other in [p for p, u in self._unreached.items() if now_ms - u.failed_ms >= FORGET_MS]:
            del self._unreached[other]
        found = self._unreached.setdefault(peer, Unreached(began_ms, now_ms, now_ms, why))
        found.failed_ms, found.why = now_ms, why
        written = now_ms - found.since_ms >= WRITE_AFTER_MS
        found.dial_ms = now_ms + DIAL_AGAIN_MS if written else now_ms

    def way(self, peer: str, now_ms: int) -> Way:
        """Which way the next message takes."""
        found = self._unreached.get(peer)
        if found is None or now_ms - found.since_ms < WRITE_AFTER_MS:
            return Way.DIAL
        if now_ms < found.dial_ms:
            return Way.WRITE
        found.dial_ms = now_ms + DIAL_AGAIN_MS
        return Way.BOTH

    def connected(self, peer: str) -> bool:
        """There is a connection; whether something was said about its absence."""
        found = self._unreached.pop(peer, None)
        return found is not None and found.said

    def heard(self, peer: str) -> None:
        """A peer has written."""
        if (found := self._unreached.get(peer)) is not None:
            found.heard = True

    def complaint(self, peer: str, now_ms: int) -> Unreached | None:
        """What is to be said about a peer now, once."""
        found = self._unreached.get(peer)
        if found is None or found.said:
            return None
        if not found.heard and now_ms - found.since_ms < SAY_AFTER_MS:
            return None
        found.said = True
        return found
