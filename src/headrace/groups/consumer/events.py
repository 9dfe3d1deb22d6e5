"""Event by event: a unit's events as deliveries, in blocks.

What is fetched becomes Python objects a block at a time, column by column.  A delivery is made
once and kept until it is acked, so handing it out is a look-up; one that comes again is a copy
with its attempt.  Acks gather in ``soon`` and reach the dispatcher as one call per block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable
from itertools import compress
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import DeliveryError, HeadraceError
from headrace.groups.consumer.dead_letters import dead_letter
from headrace.groups.consumer.delivery import Delivery, deliveries
from headrace.groups.consumer.fetch import Fetched, Gap
from headrace.groups.consumer.run import Dying, Run
from headrace.groups.consumer.types import OwnedUnit, UnitEvents
from headrace.groups.delivery import Dispatcher, Stalled
from headrace.groups.progress import AckedRanges
from headrace.log.events import int64s
from headrace.subjects.columns import mask_array

if TYPE_CHECKING:
    from headrace.groups.consumer.units import Units

ENOUGH_EVENTS = 64
"""A take that has found this many feeds no further events to find more."""
FEED_EVENTS = 1024
"""Rows converted to deliveries at a time, to spread the fixed cost per column."""
HOLES_DELAY_MS = 200
"""Delay of a commit that only passes over events filtered out: it is not urgent."""


class EventRun(Run):
    """One unit, handed out event by event."""

    def __init__(self, runtime: Units, owned: OwnedUnit, owner: UnitEvents) -> None:
        super().__init__(runtime, owned, owner)
        self.dispatcher: Dispatcher = Dispatcher(runtime.options.delivery, owned.progress)
        self.soon: list[int] = []
        self.rows: dict[int, Delivery] = {}
        self._at = 0  # rows of ahead[0] that are fed
        self._read = self.dispatcher.next_offset

    # -- the core's state ---------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return not self.soon and super().idle

    @property
    def caught_up(self) -> bool:
        return not self.soon and super().caught_up

    def may_take(self) -> bool:
        if self.gone is not None or self.paused:
            return False
        return self.dispatcher.ready or bool(self.ahead)

    def fetched(self, found: Fetched | Gap) -> None:
        start, self._read = self._read, found.end
        super().fetched(self._sifted(found, start) if isinstance(found, Fetched) else found)

    def _sifted(self, found: Fetched, start: int) -> Fetched | Gap:
        """What was read without what is acked: of much of that, it is cheaper done at once.

        Nothing else of it is acked before it is fed, but by ``pass_over``.
        """
        offsets = int64s(found.data.column(0))
        keep = self.dispatcher.unacked(offsets)
        if keep is None or (kept := int(keep.sum())) == found.rows:
            return found
        if not kept:
            return Gap(found.end)
        assert found.keys is not None
        size = found.size_bytes * kept // found.rows
        data, keys = found.data.filter(mask_array(keep)), found.keys[keep]
        every = int(offsets[0]) == start and found.end - start == found.rows
        return Fetched(data, found.end, keys, size, sifted=every)

    # -- out ----------------------------------------------------------------------------

    def take(self, room: int, now: int) -> list[Delivery]:
        """Up to ``room`` deliveries, fed from what was fetched as far as needed."""
        dispatcher = self.dispatcher
        found: list[Delivery] = []
        # With few keys most of what is fed is parked behind its key: feed no more than needed.
        enough = min(room, ENOUGH_EVENTS)
        while room > 0:
            if self.ahead and len(found) < enough and dispatcher.walkable < enough:
                self._feed(FEED_EVENTS)
            handout = dispatcher.take(room, now)
            offsets = handout.offsets
            if offsets:
                found.extend(map(self.rows.__getitem__, offsets))
                if handout.attempts.count(1) != len(offsets):
                    self._renumber(found, len(found) - len(offsets), handout.attempts)
                room -= len(offsets)
            elif dispatcher.walkable or not self.ahead or not dispatcher.wanted:
                break
            if len(found) >= enough:
                break
        if dispatcher.dying:
            self.runtime.burials.begin(self)
        return found

    def _renumber(self, found: list[Delivery], start: int, attempts: list[int]) -> None:
        """A redelivery is a new object: answers to the old one are refused."""
        for at, attempt in enumerate(attempts, start):
            if attempt != 1:
                again = msgspec.structs.replace(found[at], attempt=attempt, _answer="")
                found[at] = self.rows[again.offset] = again

    def _feed(self, wanted: int) -> None:
        dispatcher = self.dispatcher
        while self.ahead and wanted > 0:
            part = self.ahead[0]
            if isinstance(part, Gap):
                dispatcher.feed((), (), part.end)
                self.ahead.popleft()
                self.runtime.commits.later(self, HOLES_DELAY_MS)
                continue
            count = min(wanted, part.rows - self._at, dispatcher.wanted)
            if count <= 0:
                return
            self._feed_rows(part, count)
            wanted -= count

    def _feed_rows(self, part: Fetched, count: int) -> None:
        assert part.keys is not None
        at = self._at
        self._at += count
        offsets = int64s(part.data.column(0))
        if self._at == part.rows:
            end = part.end
            self.ahead.popleft()
            self._at = 0
        else:
            end = int(offsets[at + count])
        mine = offsets[at : at + count]
        start = self.dispatcher.next_offset
        keys = part.keys[at : at + count]
        keep = self.dispatcher.feed(mine, keys, end, sifted=part.sifted)
        made = deliveries(self, part.data.slice(at, count), self.owned.strip)
        given = mine.tolist()
        if keep is not None and not keep.all():
            made, given = list(compress(made, keep)), list(compress(given, keep))
            self.hold(-(count - len(made)) * self.row_bytes)
        self.rows.update(zip(given, made, strict=True))
        if end - start != len(made) and not part.sifted:
            self.runtime.commits.later(self, HOLES_DELAY_MS)

    # -- answers ------------------------------------------------------------------------

    def settle(self) -> None:
        if not self.soon:
            return
        offsets = self.soon
        self.soon = []
        if self.gone is not None:
            return
        try:
            self.dispatcher.ack_many(offsets, self.now_ms())
        except DeliveryError:
            self._settle_slowly(offsets)
        else:
            self._release(offsets)

    def _settle_slowly(self, offsets: list[int]) -> None:
        """One of them came too late; the others count."""
        first: DeliveryError | None = None
        for offset in offsets:
            try:
                self.dispatcher.ack(offset, 1, self.now_ms())
            except DeliveryError as error:
                first = first or error
            else:
                self._release([offset])
        if first is not None:
            raise first

    def name_of(self, held: Any) -> str:
        return f"offset {held.offset} of unit {held.unit!r}"

    def ranges_of(self, held: Any) -> list[tuple[int, int]]:
        return [(held.offset, held.offset + 1)]

    def ack(self, held: Any, *, stored: bool = False) -> None:
        self.dispatcher.ack(held.offset, held.attempt, self.now_ms())
        self._release([held.offset], stored=stored)

    def _release(self, offsets: list[int], *, stored: bool = False) -> None:
        held = self.rows
        self.hold(-self.held_bytes * len(offsets) / max(1, self._held_events()))
        deque(map(held.__delitem__, offsets), maxlen=0)
        if not stored:
            self.runtime.commits.later(self, self.runtime.options.ack_delay_ms)
        if self.may_take():
            self.runtime.offer(self)

    def _held_events(self) -> int:
        ahead = sum(part.rows for part in self.ahead if isinstance(part, Fetched))
        return len(self.rows) + ahead - self._at

    def nack(self, held: Any, delay_ms: int | None, reason: str) -> Awaitable[None]:
        outcome = self.dispatcher.nack(held.offset, held.attempt, self.now_ms(), delay_ms, reason)
        return self._refused_and_stored(outcome)

    def reject(self, held: Any, reason: str) -> Awaitable[None]:
        self.dispatcher.reject(held.offset, held.attempt, self.now_ms(), reason)
        return self.runtime.burials.wait(self)

    def extend(self, held: Any) -> None:
        self.dispatcher.extend(held.offset, held.attempt, self.now_ms())

    def dying(self) -> Dying | None:
        letters = list(self.dispatcher.dying.values())
        if not letters or self.gone is not None:
            return None

        def confirm() -> None:
            for letter in letters:
                self.dispatcher.dead_lettered(letter.offset, self.now_ms())
            self._release([letter.offset for letter in letters], stored=True)

        return Dying(
            [dead_letter(self, self.rows[letter.offset], letter) for letter in letters],
            [(letter.offset, letter.offset + 1) for letter in letters],
            confirm,
        )

    # -- time and the end ---------------------------------------------------------------

    def tick(self, now: int, unseen: list[int]) -> list[Stalled]:
        self.settle()
        committing = (held.offset for held in self.committing)
        self.dispatcher.renew([*unseen, *committing], now)
        return self._expire(now)

    def recall(self, unseen: list[int]) -> None:
        self.dispatcher.recall(unseen)

    def pass_over(self, acked: AckedRanges, unseen: list[int]) -> set[int] | None:
        self.settle()
        passed = self.dispatcher.pass_over(acked, unseen)
        if passed is None:
            return None
        for at, part in enumerate(self.ahead):
            if isinstance(part, Fetched) and part.sifted:
                self.ahead[at] = msgspec.structs.replace(part, sifted=False)
        self._release(passed, stored=True)
        return set(passed).intersection(unseen)

    def drop_ahead(self) -> None:
        super().drop_ahead()
        self._at = 0

    def end(self, why: HeadraceError) -> None:
        super().end(why)
        self.rows.clear()
        self.soon.clear()
