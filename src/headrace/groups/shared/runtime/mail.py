"""Messages within a process: calls for its leaders, and messages for its sessions.

Both wait in queues, since cores are not re-entrant; when both are empty, leaders plan.

*Who empties them.*  Normally the event loop at its next turn (``post``), so that messages that come
together make one plan.  But an ack would wait for several turns, and in each of them the threads
that read ahead may take the GIL.  So there are two short cuts.  Acks are delivered to leaders of
this process within the call (``hand_over``), which is safe because leaders never call a session,
they only queue messages for it.  And a commit that is stored delivers its confirmations to the
sessions in the same turn (``run``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from headrace.groups.shared.core.messages import FromLeader


class Mail:
    """The two queues of one peer."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        deliver: Callable[[FromLeader], None],
        plan: Callable[[], None],
    ) -> None:
        """`deliver` gives a message to its session; `plan` is called when all is delivered."""
        self._loop = loop
        self._deliver = deliver
        self._plan = plan
        self.queue: deque[Callable[[], None]] = deque()
        """Calls for leaders and for the registry, in order."""
        self._letters: deque[FromLeader] = deque()
        """Messages for sessions, in order."""
        self.plan_due = False
        """Whether a leader has something to plan."""
        self._drain_due = False
        self._draining = False

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self.queue and not self._letters

    def post(self, work: Callable[[], None]) -> None:
        """Queue a call; the event loop makes it at its next turn."""
        self.queue.append(work)
        self._drain_soon()

    def deliver_soon(self, messages: Iterable[FromLeader]) -> None:
        """Queue messages for sessions."""
        self._letters += messages
        self._drain_soon()

    def _drain_soon(self) -> None:
        if not self._draining and not self._drain_due:
            self._drain_due = True
            self._loop.call_soon(self.drain)

    def run(self, work: Callable[[], None]) -> None:
        """Make a call, then empty both queues; if they are being emptied, only the call is made.

        Not to be called by sessions: they are not re-entrant, and this delivers their messages.
        """
        if self._draining:
            work()
            return
        self._draining = True
        try:
            work()
        finally:
            self._draining = False
            self.drain()

    def hand_over(self, work: Callable[[], None]) -> None:
        """Make a call that sends to leaders; those of this process have it when this returns."""
        if self._draining:
            work()
            return
        self._draining = True
        try:
            work()
            self._empty_queue()
        finally:
            self._draining = False
            if self._letters or self.queue or self.plan_due:
                self._drain_soon()

    def drain(self) -> None:
        """Empty both queues, and let leaders plan."""
        if self._draining:
            return
        self._draining = True
        self._drain_due = False
        try:
            waiting = True
            while waiting:
                while not self.empty:
                    self._empty_queue()
                    while self._letters:
                        self._deliver(self._letters.popleft())
                self.plan_due = False
                self._plan()
                waiting = not self.empty
        finally:
            self._draining = False

    def _empty_queue(self) -> None:
        while self.queue:
            work = self.queue.popleft()
            try:
                work()
            except Exception as error:  # must not reach the caller, who may be any session
                context = {"message": "shared groups: a message was lost", "exception": error}
                self._loop.call_exception_handler(context)


def session_key(message: FromLeader) -> str:
    """The part of a borrower's name that says which session it belongs to."""
    return message.borrower.rpartition(":")[0]
