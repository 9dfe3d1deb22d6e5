"""Shared groups and sessions."""

from __future__ import annotations

from headrace.errors.inputs import HeadraceError, InvalidInputError


class ProtocolError(HeadraceError):
    """A core was given something its state does not allow; its state is unchanged.

    ``replies`` are messages that the receiver may send back, so that a peer which has lost
    touch learns of it; sending them changes nothing either.
    """

    def __init__(self, message: str, *, state: str, replies: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.state = state
        self.replies = replies


class UnexpectedMessageError(ProtocolError):
    """A message or call that makes no sense in this state, or from this sender."""


class StaleTokenError(ProtocolError):
    """A message with the token of an ownership or a leadership that has passed on."""


class DeposedError(ProtocolError):
    """The leader has lost its lease; somebody else may lead now."""


class UnknownSubscriptionError(InvalidInputError):
    """A session has no shared subscription of that name."""


class UnknownSharedGroupError(HeadraceError, LookupError):
    """There is no shared group of that name."""


class SharedGroupExistsError(HeadraceError):
    """The shared group exists already, with other properties."""


class SharedGroupBusyError(HeadraceError):
    """The shared group has live members; delete it with force, or let them leave first."""

    def __init__(self, group: str, members: int) -> None:
        shown = "1 live member" if members == 1 else f"{members} live members"
        super().__init__(f"shared group {group} has {shown}; let them leave, or use force")
        self.group = group
        self.members = members


class AckUnsettledError(HeadraceError):
    """It is not known whether an ack counts: its leader was lost, and nobody leads since.

    The event comes again if it does not count.  Whoever was told :class:`Fenced` knows that its
    work does not count; here it may.
    """

    def __init__(self, units: tuple[str, ...]) -> None:
        super().__init__(
            f"it is not known whether acks of {', '.join(units)} count: the leader was lost before "
            "it said so; what does not count is delivered again"
        )
        self.units = units


class StartBeforeHistoryError(InvalidInputError):
    """Events after the wanted start are no longer kept; ``history_start`` is what still is."""

    def __init__(self, stream: str, wanted: str, history_start: str) -> None:
        super().__init__(
            f"start {wanted} lies before the history of stream {stream!r}, which begins at "
            f"{history_start}; start there or later, or at 'earliest'"
        )
        self.stream = stream
        self.history_start = history_start


class UnknownSessionError(HeadraceError, LookupError):
    """There is no session of that name."""


class SessionBusyError(HeadraceError):
    """The session is connected; close it first, or use force."""


class SessionTakenOverError(HeadraceError):
    """Another process has opened the session of this name; this one is over."""


class SessionClosedError(HeadraceError):
    """The session is closed, or was never opened; use it with ``async with``."""


class SubscriptionExistsError(InvalidInputError):
    """A session has that shared subscription already."""
