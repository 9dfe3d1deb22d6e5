"""The registry of one peer: who leads a group, and becoming the leader if nobody does.

A request for a leader goes to the leader on this peer if there is one, else to where the lease
says it is.  If the lease is free or has run out, the peer claims it; the store decides between
peers that try at once, and the loser looks again.  What was read is remembered for a short while
only, since leaders move; requests that come while the answer is under way wait for it, one per
borrower at most, and borrowers ask again by themselves, so nothing here has to be kept for long.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from headrace.groups.shared.core.messages import FromBorrower, Invalidate, LeaderWanted, Message

WAITING_MAX = 10_000


class LookUp(msgspec.Struct, frozen=True):
    """Read the group's lease; claim it if it is free.  Answer with one of the three below."""

    group: str


class Forward(msgspec.Struct, frozen=True):
    """Pass a message on to the peer of the leader."""

    peer: str
    message: FromBorrower


class ToLocalLeader(msgspec.Struct, frozen=True):
    """Hand a message to the leader on this peer."""

    message: FromBorrower


class StartLeader(msgspec.Struct, frozen=True):
    """Load the group and lead it, under this token."""

    group: str
    token: int
    sent_ms: int


class Reply(msgspec.Struct, frozen=True):
    """Answer a borrower."""

    message: Invalidate


RegistryEffect: TypeAlias = LookUp | Forward | ToLocalLeader | StartLeader | Reply


class _Remote(msgspec.Struct, frozen=True):
    peer: str
    until_ms: int


class Registry:
    """Finds leaders for the borrowers of one peer."""

    def __init__(self, peer: str, *, remember_ms: int = 1000, retry_ms: int = 1000) -> None:
        self.peer = peer
        self._remember_ms = remember_ms
        self._retry_ms = retry_ms
        self._local: dict[str, int] = {}
        self._remote: dict[str, _Remote] = {}
        self._looking: dict[str, int] = {}
        """Groups being looked up, and since when."""
        self._waiting: dict[str, dict[str, FromBorrower]] = {}

    @property
    def local(self) -> dict[str, int]:
        """The groups led from this peer, with their tokens."""
        return dict(self._local)

    def wanted(
        self, message: FromBorrower, now_ms: int, *, forwarded: bool = False
    ) -> list[RegistryEffect]:
        """A borrower asks for a leader, or leaves before it had one."""
        group = message.group
        if group in self._local:
            return [ToLocalLeader(message)]
        if forwarded:
            return []  # the sender was out of date; forwarding again could loop
        remote = self._remote.get(group)
        if remote is not None and now_ms < remote.until_ms:
            return [Forward(remote.peer, message)]
        if not isinstance(message, LeaderWanted):
            return []  # good-bye to nobody
        waiting = self._waiting.setdefault(group, {})
        if len(waiting) < WAITING_MAX:
            waiting[message.borrower] = message
        since_ms = self._looking.get(group)
        if since_ms is not None and now_ms - since_ms < self._retry_ms:
            return []
        self._looking[group] = now_ms
        return [LookUp(group)]

    def received(self, message: Message, now_ms: int) -> list[RegistryEffect]:
        """A borrower writes to its leader on this peer."""
        if isinstance(message, LeaderWanted) or message.token == 0:
            return self.wanted(message, now_ms, forwarded=True)  # type: ignore[arg-type]
        if message.group in self._local:
            return [ToLocalLeader(message)]  # type: ignore[arg-type]
        reason = f"no leader of {message.group} on {self.peer}"
        return [Reply(Invalidate(message.group, message.borrower, message.token, reason))]

    def found(self, group: str, peer: str, now_ms: int) -> list[RegistryEffect]:
        """The lease is held, by the leader on `peer`."""
        self._looking.pop(group, None)
        waiting = self._waiting.pop(group, {})
        if group in self._local:
            return [ToLocalLeader(message) for message in waiting.values()]
        if peer == self.peer:
            # A lease of an earlier life of this peer; it has to run out before it can be taken.
            return []
        self._remote[group] = _Remote(peer, now_ms + self._remember_ms)
        return [Forward(peer, message) for message in waiting.values()]

    def won(self, group: str, token: int, sent_ms: int) -> list[RegistryEffect]:
        """The lease is ours: start a leader.  Requests wait until it has ``started``."""
        self._remote.pop(group, None)
        return [StartLeader(group, token, sent_ms)]

    def started(self, group: str, token: int) -> list[RegistryEffect]:
        """The leader on this peer has loaded its state."""
        self._looking.pop(group, None)
        self._local[group] = token
        waiting = self._waiting.pop(group, {})
        return [ToLocalLeader(message) for message in waiting.values()]

    def forget(self, group: str) -> None:
        """A leader elsewhere has sent its borrowers away: look again before asking it."""
        self._remote.pop(group, None)

    def failed(self, group: str) -> None:
        """The look-up, or loading the group, did not work; borrowers will ask again."""
        self._looking.pop(group, None)
        self._waiting.pop(group, None)

    def stopped(self, group: str, token: int) -> None:
        """The leader on this peer has stepped down."""
        if self._local.get(group) == token:
            del self._local[group]
