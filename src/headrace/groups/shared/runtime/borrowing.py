"""The shared subscriptions of a session: connects handler and consumer; acks go to the leader.

The handler's effects move units in and out of the session's consumer; what the consumer wants
stored goes to the handler as progress, and counts once the leader has confirmed it.  So
``ack()`` means the same here as in every other kind of group.

A report is a difference: what was acked since the last one.  Its confirmation names the same
ranges, and by them is matched to the commit that waits for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from headrace.errors import Fenced, StaleTokenError
from headrace.groups.consumer import OwnedUnit, UnitAck
from headrace.groups.consumer.acks import told
from headrace.groups.consumer.types import Done
from headrace.groups.owner import Owner, UnitSink
from headrace.groups.progress import Progress
from headrace.groups.shared.core.agent import Agent
from headrace.groups.shared.core.effects import (
    Beat,
    Confirmed,
    Effect,
    Gone,
    Install,
    Release,
    Remove,
    ToLeader,
    ToRegistry,
)
from headrace.groups.shared.core.handler import SubscriptionHandler
from headrace.groups.shared.core.messages import FromBorrower, FromLeader, Ping, Ranges, Unit
from headrace.groups.shared.core.naming import group_key, parse_subscription
from headrace.groups.shared.core.settings import BorrowerSettings
from headrace.groups.shared.runtime.reports import Report, Waiting
from headrace.groups.shared.runtime.settling import Doubt, Settler, Verdict, segment_ids
from headrace.groups.shared.runtime.state import claim_unit
from headrace.host import Host


class Post(Protocol):
    """What a session needs of its peer."""

    host: Host

    @property
    def now_ms(self) -> int: ...

    def ask(self, message: FromBorrower) -> None: ...

    def tell(self, peer: str, message: FromBorrower) -> None: ...

    def beat(self, peer: str, pings: Sequence[Ping]) -> Sequence[Ping]: ...

    def rearm(self) -> None: ...

    def hand_over(self, work: Callable[[], None]) -> None: ...


class Lending(UnitSink, Protocol):
    """What hands out the events of the units."""

    valid_until_s: float


class Lent:
    """A unit in this session."""

    def __init__(self, effect: Install, group: str, filter: str) -> None:
        self.borrower = effect.borrower
        self.unit: Unit = effect.unit
        self.token = effect.unit_token
        self.leader_token = effect.leader_token
        self.group = group
        self.filter = filter
        self.name = claim_unit(group, effect.unit)
        self.progress = effect.progress
        self.reported = effect.progress
        self.reports: deque[Report] = deque()
        self.releasing = False
        self.over = False

    def owned(self, segment_id: int) -> OwnedUnit:
        """The unit as the consumer knows it."""
        stream, _, number = self.unit.rpartition("/")
        return OwnedUnit(
            group=self.group,
            unit=self.name,
            token=self.token,
            stream=stream,
            segment=int(number),
            segment_id=segment_id,
            progress=self.progress,
            filter=self.filter,
        )

    def report(self, progress: Progress) -> tuple[Ranges, Ranges]:
        """What is new since the last report: acked ranges, and attempts."""
        last, self.reported = self.reported, progress
        # A base is made anew now and then: then it holds some of what is new.
        same = progress.base == last.base
        known = set(last.ranges if same else last.above)
        now = progress.ranges if same else progress.above
        acked = [pair for pair in now if pair not in known]
        if progress.floor > last.floor:
            acked.insert(0, (last.floor, progress.floor))
        if progress.attempts == last.attempts:
            return tuple(acked), ()
        counted = set(last.attempts)
        return tuple(acked), tuple(pair for pair in progress.attempts if pair not in counted)

    def confirm(self, ranges: Ranges) -> None:
        """The leader has stored these ranges: reports that have none left count."""
        for report in self.reports:
            report.left.difference_update(ranges)
            if not report.left:
                report.tell(Verdict.COUNTS)
        while self.reports and not self.reports[0].left:
            self.reports.popleft()

    def refuse_last(self) -> None:
        """The last report was never sent, so it does not count; those before it stay open."""
        self.reports.pop().tell(Verdict.DOES_NOT)

    def settle(self, settler: Settler) -> None:
        """No confirmation will come: find out from the catalog what became of the reports."""
        while self.reports:
            report = self.reports.popleft()
            ranges = tuple(sorted(report.left))
            doubt = Doubt(self.group, self.unit, self.token, self.leader_token, ranges)
            settler.settle(doubt, report.tell)


class Borrowing(Owner):
    """The shared subscriptions of one session; stores acks with their leaders."""

    def __init__(
        self, post: Post, sink: Lending, session: str, incarnation: int, settings: BorrowerSettings
    ) -> None:
        super().__init__(post.host, sink)
        self._post = post
        self._sink = sink
        self._session = session
        self._agent = Agent(session, incarnation, settings)
        self._grid_ms = max(1, settings.ping_ms // 10)
        self._handler = SubscriptionHandler(self._agent)
        self._held: dict[tuple[str, Unit], Lent] = {}
        self._by_name: dict[str, Lent] = {}
        self._opening: list[Lent] = []
        self._settler = Settler(post.host, settings.settle_timeout_ms)
        self._doing = False
        self._told: deque[Callable[[], None]] = deque()
        """Callbacks of commits that were decided while effects are being carried out."""
        self.gone: deque[Gone] = deque(maxlen=64)
        """The latest borrowers that ended, and why."""

    def __str__(self) -> str:
        return f"session {self._session}"

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """What the session is subscribed to."""
        return self._handler.subscriptions

    @property
    def groups(self) -> set[str]:
        """The groups that it takes part in."""
        return {borrower.group for borrower in self._agent.borrowers.values()}

    @property
    def held(self) -> tuple[str, ...]:
        """The names of the units that are here, as in their claims."""
        return tuple(self._by_name)

    def owns(self, name: str) -> bool:
        """Whether a unit belongs to a shared group; names of private groups begin with ``~``."""
        return not name.rpartition("@")[2].startswith("~")

    # --- subscriptions ---

    def subscribe(self, text: str) -> None:
        """Begin to borrow."""
        self._do(self._handler.on_subscribe(text, self._post.now_ms))

    def unsubscribe(self, text: str) -> None:
        """Stop borrowing; what is in flight is finished and reported."""
        self._do(self._handler.on_unsubscribe(text, self._post.now_ms))

    def disconnect(self) -> None:
        """The session closes: everyone says good-bye, with the last progress."""
        self._do(self._handler.on_disconnect(self._post.now_ms))

    def fence(self) -> None:
        """The session was taken over: nothing counts any more."""
        for held in list(self._held.values()):
            self._remove(held)

    # --- messages and time ---

    def receive(self, message: FromLeader) -> None:
        """A message of a leader."""
        self._do(self._handler.receive(message, self._post.now_ms))

    def on_cut(self, peer: str) -> None:
        """The connection to a leader's peer ended."""
        self._handler.on_cut(peer, self._post.now_ms)

    def seek(self, group: str) -> None:
        """The lease of a group's leader is over: ask at once who leads it."""
        self._do(self._handler.seek(group, self._post.now_ms))

    @property
    def due_ms(self) -> int:
        """When ``tick`` is called: a little late, so that many groups ping together."""
        due_ms = self._handler.due_ms
        return due_ms + -due_ms % self._grid_ms

    def tick(self) -> None:
        """Do what is due."""
        if self._post.now_ms >= self._handler.due_ms:
            self._do(self._handler.tick(self._post.now_ms))
            self._revalidate()

    def _revalidate(self) -> None:
        """After a pause of the process, nothing is handed out before ``tick`` has lost the leaders
        that may have given its units to others meanwhile."""
        self._sink.valid_until_s = self._agent.lost_ms / 1000

    # --- effects ---

    def _do(self, effects: list[Effect]) -> None:
        outer, self._doing = self._doing, True
        try:
            self._carry_out(effects)
        finally:
            self._doing = outer
        self._post.rearm()
        while self._told and not self._doing:
            self._told.popleft()()

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case ToRegistry(message=message):
                    self._post.ask(message)
                case ToLeader(leader=leader, message=message):
                    self._post.tell(leader, message)
                case Beat(leader=leader, pings=pings):
                    self._handler.answered(self._post.beat(leader, pings))
                case Install() as install:
                    self._install(install)
                case Release(borrower=borrower, unit=unit):
                    self._release(self._held[borrower, unit])
                case Remove(borrower=borrower, unit=unit):
                    if (held := self._held.get((borrower, unit))) is not None:
                        self._remove(held)
                case Confirmed(borrower=borrower, unit=unit, acked=acked):
                    if (held := self._held.get((borrower, unit))) is not None:
                        held.confirm(acked)
                case Gone() as gone:
                    self.gone.append(gone)
                    self._revalidate()

    def _install(self, effect: Install) -> None:
        text = self._handler.subscription_of(effect.borrower, effect.unit)
        group, filter = parse_subscription(text)
        held = Lent(effect, group_key(group, filter), filter)
        before = self._by_name.get(held.name)
        if before is not None:
            # Held by a borrower that is finishing: the leader has granted the unit again already.
            self._close(before)
        self._held[effect.borrower, effect.unit] = held
        self._by_name[held.name] = held
        self._opening.append(held)
        lost_s = self._agent.borrowers[effect.borrower].pulse.lost_ms / 1000
        self._sink.valid_until_s = min(self._sink.valid_until_s, lost_s)
        self.follow()

    async def look(self) -> list[OwnedUnit]:
        """Look up the segment ids of units that were granted, all in one read."""
        batch = list(self._opening)
        wanted = [held.unit for held in batch]
        host = self._post.host
        found = await host.in_thread(host.log.catalog.read, lambda tx: segment_ids(tx, wanted))
        del self._opening[: len(batch)]
        # A unit whose stream was deleted meanwhile is revoked before long.
        return [
            held.owned(found[held.unit])
            for held in batch
            if held.unit in found and not held.over and not held.releasing
        ]

    def _release(self, held: Lent) -> None:
        held.releasing = True
        if (unit := self._open(held)) is not None:
            self.drain([unit])
        else:
            self._final(held, held.reported)

    def _open(self, held: Lent) -> OwnedUnit | None:
        """The unit, if it is open in the consumer."""
        unit = self.units.get(held.name)
        return unit if unit is not None and unit.token == held.token else None

    def given_back(self, unit: OwnedUnit, progress: Progress) -> None:
        held = self._by_name.get(unit.unit)
        if held is not None and held.token == unit.token and held.releasing:
            self._final(held, progress)

    def _final(self, held: Lent, progress: Progress) -> None:
        """Send the final report of a unit."""
        if self._held.get((held.borrower, held.unit)) is held:
            self._tell(held, progress, final=True)

    def _tell(
        self, held: Lent, progress: Progress, *, final: bool = False, answered: bool = False
    ) -> Verdict | Report:
        """Report what is new; returns the verdict, or the report that will have it."""
        acked, attempts = held.report(progress)
        if not (acked or attempts or final):
            return held.reports[-1] if held.reports else Verdict.COUNTS
        if acked:
            held.reports.append(Report(acked))
        try:
            effects = self._handler.on_progress(
                held.borrower,
                held.unit,
                held.token,
                acked=acked,
                attempts=attempts,
                answered=answered,
                final=final,
                now_ms=self._post.now_ms,
            )
        except StaleTokenError:
            if acked:
                held.refuse_last()
            return Verdict.DOES_NOT
        found = held.reports[-1] if acked else Verdict.COUNTS
        self._do(effects)
        return found

    def _remove(self, held: Lent) -> None:
        del self._held[held.borrower, held.unit]
        self._close(held)
        held.settle(self._settler)

    def _close(self, held: Lent) -> None:
        """Take a unit out of the consumer, if it is still there."""
        if held.over:
            return
        held.over = True
        if self._by_name.get(held.name) is held:
            del self._by_name[held.name]
        if (unit := self._open(held)) is not None:
            self.drop(unit)

    # --- acks ---

    async def commit(self, acks: Sequence[UnitAck]) -> list[Fenced | None]:
        """Report progress, and wait until the leaders have stored it.

        Raises ``AckUnsettledError`` if a leader was lost and it cannot be told what it has stored.
        """
        return await told(partial(self.begin, acks))

    def begin(self, acks: Sequence[UnitAck], done: Done) -> None:
        """Report progress at once; ``done(results, error)`` is called when it is stored."""
        found: list[Report | Verdict] = []
        self._post.hand_over(lambda: found.extend([self._report(ack) for ack in acks]))
        Waiting(acks, found, done, self._tell_after)

    def _tell_after(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` after the current effects, since it may end units or report again."""
        if self._doing:
            self._told.append(tell)
        else:
            asyncio.get_running_loop().call_soon(tell)

    def _report(self, ack: UnitAck) -> Verdict | Report:
        held = self._by_name.get(ack.unit.unit)
        if held is None or held.token != ack.unit.token:
            return Verdict.DOES_NOT
        return self._tell(held, ack.progress, answered=ack.refused)
