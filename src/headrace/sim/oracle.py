"""The test oracle of groups: it sees everything and checks what every kind of group promises.

It watches one group: who is given a unit, what is delivered and acked, what becomes durable and
what is confirmed.  An owner whose fencing token is stale may not know it yet and still hand out
events.  That is allowed; what is checked is that nothing it does takes effect.

* one owner per unit and token;
* a new owner starts from exactly what is durable, and only when all predecessors are finished;
* what is durably acked is not delivered again by the owner;
* the events of a key are delivered in order, each after the one before was acked;
* progress never shrinks, and nothing counts as acked but what the owner's consumer has acked;
* what was confirmed to a consumer is durable, and what was refused is not.

An ack may have an *unknown outcome*: the answer of the store was lost.  It has counted or it has
not, and its owner cannot tell.  So that owner may be handed the event again, whichever it was, as
long as none of its acks of it was confirmed; nobody else may, once the ack has counted.  Until it
is seen to have counted, the next event of its key waits.  In the end it is acked like every other.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.groups.progress import Progress
from headrace.groups.progress.ranges import AckedRanges
from headrace.sim.log import Event
from headrace.sim.world import World

UnitNumber = int


class GroupOracle:
    """Watches one group that reads the world's log; units are segment numbers."""

    def __init__(
        self, world: World, group: str, current_token: Callable[[UnitNumber], int]
    ) -> None:
        self.world = world
        self.group = group
        self._current_token = current_token
        self._owners: dict[tuple[UnitNumber, int], str] = {}
        self._durable: dict[UnitNumber, AckedRanges] = {}
        self._tokens: dict[UnitNumber, int] = {}
        """The token of each unit when its progress was last looked at."""
        self._acked_under: dict[tuple[UnitNumber, int], set[int]] = {}
        self._unknown: set[tuple[UnitNumber, int, int]] = set()
        """Acks of unknown outcome: unit, token and offset; until the event is acked again."""
        self._once_unknown: set[tuple[UnitNumber, int, int]] = set()
        self._counted_under: dict[tuple[UnitNumber, int], int] = {}
        """The token under which an event (unit, offset) became durably acked."""
        self.durable_events = 0
        """How many events are durably acked."""

    def durable(self, unit: UnitNumber) -> AckedRanges:
        """What is durably acked of a unit."""
        found = self._durable.get(unit)
        if found is None:
            found = self._durable[unit] = AckedRanges()
        return found

    def finished(self, unit: UnitNumber) -> bool:
        """Whether a segment and all that it follows from are sealed and durably consumed."""
        segment = self.world.log.segments[unit]
        consumed = segment.sealed and self.durable(unit).floor >= segment.head
        return consumed and all(map(self.finished, segment.predecessors))

    def given(self, owner: str, unit: UnitNumber, token: int, progress: Progress) -> None:
        """An owner was told that a unit is its own."""
        first = self._owners.setdefault((unit, token), owner)
        self._require(
            first == owner,
            "one owner per unit and token",
            f"unit {unit} token {token} was given to {first} and to {owner}",
        )
        for predecessor in self.world.log.segments[unit].predecessors:
            self._require(
                self.finished(predecessor),
                "successors wait for all predecessors",
                f"unit {unit} was given to {owner} while {predecessor} is not finished",
            )
        start = progress.acked()
        added = start.copy()
        added.merge(self.durable(unit))
        if self._is_current(unit, token):
            self._require(
                added == start,
                "a hand-over is exact",
                f"{owner} starts unit {unit} at {start}, but {self.durable(unit)} is durable",
            )
        self._require(
            len(start) + start.floor == 0 or self._covers(self.durable(unit), start),
            "nothing is lost",
            f"{owner} starts unit {unit} at {start}, but only {self.durable(unit)} is durable",
        )

    def delivered(self, owner: str, unit: UnitNumber, token: int, event: Event) -> None:
        """A consumer was handed an event."""
        if not self._is_current(unit, token):
            self.world.reach("oracle.stale delivery")
            return
        if event.offset in self.durable(unit) and not self.is_unknown(unit, token, event.offset):
            self._fail(
                "nothing acked is delivered again",
                f"{owner} was handed {event}, which is durably acked",
            )
        if event.key_sequence == 0:
            return
        before = self.world.log.places[event.key, event.key_sequence - 1]
        done = before[1] in self.durable(before[0]) or (
            before[0] == unit
            and before[1] in self._acked_under.get((unit, token), ())
            and not self.is_unknown(unit, token, before[1])
        )
        if not done:
            self._fail(
                "key order",
                f"{owner} was handed {event} before {before} of the same key was acked",
            )

    def acked(self, unit: UnitNumber, token: int, offset: int) -> None:
        """A consumer has acked an event (whether that counts is another matter)."""
        self._acked_under.setdefault((unit, token), set()).add(offset)
        self._unknown.discard((unit, token, offset))

    def outcome_unknown(self, unit: UnitNumber, token: int, offset: int) -> None:
        """A consumer was told that nobody knows whether its ack has counted."""
        self._unknown.add((unit, token, offset))
        self._once_unknown.add((unit, token, offset))

    def is_unknown(self, unit: UnitNumber, token: int, offset: int) -> bool:
        """Whether nobody knows if the owner's ack has counted."""
        return (unit, token, offset) in self._unknown

    def refused(self, unit: UnitNumber, token: int, offset: int) -> None:
        """A consumer was told that its ack does not count; an earlier one, of unknown outcome, may
        have counted nevertheless."""
        self._require(
            self._counted_under.get((unit, offset)) != token
            or (unit, token, offset) in self._once_unknown,
            "what is refused is not stored",
            f"the ack of {offset} of unit {unit} under {token} is durable, and was refused",
        )

    def stored(self, unit: UnitNumber, progress: Progress) -> None:
        """A progress is durable."""
        before = self.durable(unit)
        after = progress.acked()
        self._require(
            after.floor >= before.floor,
            "floors never fall",
            f"unit {unit} fell from {before.floor} to {after.floor}",
        )
        owner_token = self._tokens.get(unit, 0)
        self._tokens[unit] = self._current_token(unit)
        if after.copy().merge(before):
            self._fail("nothing acked is forgotten", f"unit {unit} went from {before} to {after}")
        self._require_acked(unit, after, owner_token)
        total = after.floor + after.acked_above_floor
        self.durable_events += total - (before.floor + before.acked_above_floor)
        self._durable[unit] = after

    def confirmed(self, owner: str, unit: UnitNumber, low: int, high: int) -> None:
        """A consumer was told that its acks are durable."""
        durable = self.durable(unit)
        if not all(offset in durable for offset in range(low, high)):
            told = f"{owner} was told that [{low}, {high}) of unit {unit} is durable"
            self._fail("what is confirmed is durable", f"{told}, which is {durable}")

    def _is_current(self, unit: UnitNumber, token: int) -> bool:
        return self._current_token(unit) == token

    @staticmethod
    def _covers(whole: AckedRanges, part: AckedRanges) -> bool:
        return whole.copy().merge(part) == 0

    def _require_acked(self, unit: UnitNumber, progress: AckedRanges, owner_token: int) -> None:
        """Nothing is lost: whatever is new was acked by a consumer, and under the right token."""
        acked = self._acked_under.get((unit, owner_token), set())
        known, counted = self.durable(unit), self._counted_under
        for low, high in ((known.floor, progress.floor), *progress.to_tuples()):
            for offset in range(low, high):
                if offset not in acked and offset not in known:
                    self._fail(
                        "only what the owner has acked counts",
                        f"offset {offset} of unit {unit} counts as acked, but the owner under "
                        f"token {owner_token} has not acked it",
                    )
                counted.setdefault((unit, offset), owner_token)

    def _require(self, holds: bool, invariant: str, detail: str) -> None:
        if not holds:
            self._fail(invariant, detail)

    def _fail(self, invariant: str, detail: str) -> None:
        self.world.fail(invariant, f"group {self.group}: {detail}")
