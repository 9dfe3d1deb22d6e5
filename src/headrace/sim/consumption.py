"""A consumer in a simulated world: the real dispatcher, group commits, and bad habits.

A :class:`ConsumingProcess` owns units, each with a dispatcher, and behaves as a runtime will: it
reads ahead as far as the dispatcher wants, answers for the application, commits progress in
groups under the unit's token, stores dead letters before it confirms them, and drops a unit when
the store says that its token is stale.  The application acks, nacks, rejects, extends, forgets,
takes its time or answers nothing at all; *poison* events always fail.

:class:`DeliveryOracle` adds to the oracle of all groups what delivery alone promises: attempts are
bounded and counted across hand-overs, a dead letter was really tried that often, and offsets that
hold nothing for the group need nobody's ack.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from headrace.errors import DeliveryError, Fenced
from headrace.groups.delivery import DeadLetter, DeliveryConfig, Dispatcher, Reason, Stalled
from headrace.groups.progress import Progress
from headrace.sim.faults import Fault
from headrace.sim.log import Event
from headrace.sim.oracle import GroupOracle
from headrace.sim.store import Conflict, Done, Outcome, Snapshot
from headrace.sim.world import Process, World

PROGRESS = "progress"
DEAD_LETTERS = "dead letters"
TICK_MS = 100
COMMIT_TIMEOUT_MS = 600
TAKE_MAX = 5


class DeliveryOracle(GroupOracle):
    """Knows every delivery, every attempt and every dead letter of one group."""

    def __init__(
        self,
        world: World,
        group: str,
        current_token: Callable[[int], int],
        config: DeliveryConfig,
        ours: Callable[[str], bool],
    ) -> None:
        super().__init__(world, group, current_token)
        self.config = config
        self.ours = ours
        self._attempts: dict[int, dict[int, int]] = {}  # durable, by unit
        self._deliveries: Counter[tuple[int, int]] = Counter()
        self.dead: dict[tuple[int, int], DeadLetter] = {}

    def given(self, owner: str, unit: int, token: int, progress: Progress) -> None:
        """An owner was told that a unit is its own."""
        super().given(owner, unit, token, progress)
        if self._is_current(unit, token):
            # Show what is durable once more: from here on it may grow under the new token only.
            super().stored(unit, Progress.of(self.durable(unit), {}))

    def handed_out(self, owner: str, unit: int, token: int, event: Event, attempt: int) -> None:
        """A consumer was handed an event."""
        self.delivered(owner, unit, token, event)
        self._deliveries[unit, event.offset] += 1
        known, limit = 0, self.config.max_deliveries
        if self._is_current(unit, token):
            known = self._attempts.get(unit, {}).get(event.offset, 0)
        if self.ours(event.key) and known < attempt and (not limit or attempt <= limit):
            return
        what = f"{owner} was handed offset {event.offset} of unit {unit}, attempt {attempt}"
        self._require(self.ours(event.key), "only what passes the filter is delivered", what)
        self._require(attempt > known, "attempts are carried over", f"{what}, after {known}")
        self._fail("deliveries are bounded", what)

    def passed_over(self, unit: int, token: int, offset: int) -> None:
        """The log shows that an offset holds nothing for the group."""
        self.acked(unit, token, offset)

    def stored(self, unit: int, progress: Progress) -> None:
        """A progress is durable."""
        super().stored(unit, progress)
        acked, attempts = progress.acked(), dict(progress.attempts)
        for offset, known in self._attempts.get(unit, {}).items():
            if offset not in acked and attempts.get(offset, 0) < known:
                self._fail(
                    "attempts are carried over",
                    f"unit {unit} forgets that offset {offset} was tried {known} times",
                )
        self._attempts[unit] = attempts

    def died(self, unit: int, token: int, letter: DeadLetter) -> None:
        """A dead letter is durable, and its event counts as done."""
        tried = self._deliveries[unit, letter.offset]
        self._require(
            tried >= letter.attempts
            and (letter.reason is Reason.REJECTED or letter.attempts >= self.config.max_deliveries),
            "a dead letter was tried as often as it says",
            f"{letter} of unit {unit} was delivered {tried} times",
        )
        self.dead[unit, letter.offset] = letter
        self.acked(unit, token, letter.offset)


def is_poison(event: Event) -> bool:
    """Whether processing an event always fails; true of about one in thirty."""
    return zlib.crc32(f"{event.key}/{event.key_sequence}".encode()) % 31 == 0


class OwnedUnit:
    """A unit in a process: its dispatcher, and what is on its way to the store."""

    def __init__(self, number: int, token: int, config: DeliveryConfig, start: Progress) -> None:
        self.number = number
        self.token = token
        self.dispatcher = Dispatcher(config, start)
        self.draining = False
        self.stored = start
        self.unconfirmed: list[int] = []
        self.together: list[tuple[int, int]] = []  # acks that the application gives as a batch
        self.commit_number = 0
        self.commit_since_ms: int | None = None
        self.burying: dict[int, int] = {}  # dead letters on their way to the store
        # what the application knows by itself, to judge the dispatcher by
        self.newest_attempt: dict[int, int] = {}
        self.refused = dict(start.attempts)


class ConsumingProcess(Process):
    """A process that consumes units; subclasses decide which, and check the tokens."""

    ack_ms: tuple[int, int] = (1, 40)
    fails = False
    never_acks = False
    sluggish = False
    oracle: DeliveryOracle
    FAIL_PROBABILITY: ClassVar[float] = 0.15

    def start(self) -> None:
        """Begin with nothing."""
        self.units: dict[int, OwnedUnit] = {}

    # --- for subclasses ---

    def check_token(self, tx: Snapshot, unit: OwnedUnit) -> None:
        """Raise StoreConflictError when the unit's token is stale."""
        raise NotImplementedError

    def fenced(self, unit: OwnedUnit) -> None:
        """The store refused a commit: the unit is someone else's."""
        raise NotImplementedError

    def stalled(self, unit: OwnedUnit) -> None:
        """The application answers nothing."""
        raise NotImplementedError

    def drained(self, unit: OwnedUnit) -> None:
        """A draining unit is idle and everything acked is durable."""
        raise NotImplementedError

    # --- owning ---

    def consume(self, number: int, token: int, start: Progress) -> None:
        """Begin to hand out a unit's events."""
        self.oracle.given(self.owner_name, number, token, start)
        self.world.reach("unit.taken over" if start != Progress() else "unit.begun")
        if start.ranges:
            self.world.reach("unit.taken over with acked ranges")
        if start.attempts:
            self.world.reach("unit.taken over with attempts")
        unit = OwnedUnit(number, token, self.oracle.config, start)
        self.units[number] = unit
        self.pump(unit)

    @property
    def owner_name(self) -> str:
        """This life of this process."""
        return f"{self.name}-{self.incarnation}"

    def drop(self, number: int) -> None:
        """Stop at once; what the application still answers must be refused."""
        self.let_go(self.units.pop(number))

    def let_go(self, unit: OwnedUnit) -> None:
        """Whatever the application still says of this unit does not count."""
        lost = Fenced(self.oracle.group, str(unit.number), unit.token)
        unit.dispatcher.fence(lost)

    def owns(self, unit: OwnedUnit) -> bool:
        """Whether this is still the unit that the process works on."""
        return self.units.get(unit.number) is unit

    # --- handing out ---

    def work(self) -> None:
        """To be called with every tick."""
        for unit in list(self.units.values()):
            if self.owns(unit):
                self._ack_together(unit)
                self.pump(unit)
                self.commit(unit)

    def pump(self, unit: OwnedUnit) -> None:
        """Let time pass, read on, hand out, and bury what is dying."""
        dispatcher, now_ms = unit.dispatcher, self.now_ms
        for outcome in dispatcher.tick(now_ms):
            self.world.reach(f"delivery.{type(outcome).__name__}")
            if isinstance(outcome, Stalled):
                self.note("stalls: %s", outcome)
                self.stalled(unit)
                self.world.require(
                    not self.owns(unit), "a stalled consumer loses its units", str(outcome)
                )
            else:
                unit.refused[outcome.offset] = outcome.attempts
        if not self.owns(unit):
            return
        self._read_on(unit)
        handout = dispatcher.take(TAKE_MAX, now_ms)
        events = self.world.log.segments[unit.number].events
        for offset, attempt in zip(handout.offsets, handout.attempts, strict=True):
            self.note("is handed %s/%s attempt %s", unit.number, offset, attempt)
            self.oracle.handed_out(
                self.owner_name, unit.number, unit.token, events[offset], attempt
            )
            unit.newest_attempt[offset] = attempt
            delay_ms = self.world.rng.randint(*self.ack_ms)
            if not self.never_acks:
                self.after(delay_ms, ("answer", unit, offset, attempt))
        self._bury(unit)

    def _read_on(self, unit: OwnedUnit) -> None:
        dispatcher = unit.dispatcher
        events = self.world.log.segments[unit.number].events
        start = dispatcher.next_offset
        end = min(len(events), start + dispatcher.wanted)
        if end <= start:
            return
        ours = [offset for offset in range(start, end) if self.oracle.ours(events[offset].key)]
        for offset in range(start, end):
            if not self.oracle.ours(events[offset].key):
                self.oracle.passed_over(unit.number, unit.token, offset)
        keys = [zlib.crc32(events[offset].key.encode()) for offset in ours]
        dispatcher.feed(ours, keys, end)

    def _bury(self, unit: OwnedUnit) -> None:
        for offset, letter in unit.dispatcher.dying.items():
            since_ms = unit.burying.get(offset)
            if since_ms is not None and self.now_ms - since_ms < COMMIT_TIMEOUT_MS:
                continue
            unit.burying[offset] = self.now_ms

            def bury(tx: Snapshot, letter: DeadLetter = letter) -> None:
                self.check_token(tx, unit)
                tx.put(DEAD_LETTERS, (unit.number, letter.offset), letter)

            self.submit(("buried", unit, letter), bury)

    # --- answering ---

    def answer(self, unit: OwnedUnit, offset: int, attempt: int) -> None:
        """The application is through with an event, or thinks so."""
        rng, faults = self.world.rng, self.world.faults
        fails = faults.strikes(Fault.FAIL, self.FAIL_PROBABILITY) and self.fails
        forgets = faults.strikes(Fault.SLOW, 0.03)
        habit, delay_ms = rng.random(), rng.randint(0, 300)
        event = self.world.log.segments[unit.number].events[offset]
        dispatcher, now_ms = unit.dispatcher, self.now_ms
        counted = not forgets
        try:
            if forgets:
                self.world.reach("application.forgets")
            elif is_poison(event) and habit < 0.2:
                dispatcher.reject(offset, attempt, now_ms, "poison")
                unit.refused[offset] = attempt
            elif is_poison(event) or fails:
                dispatcher.nack(offset, attempt, now_ms, delay_ms if habit < 0.5 else None)
                unit.refused[offset] = attempt
            elif habit < 0.1:
                dispatcher.extend(offset, attempt, now_ms)
                self.after(1 + delay_ms, ("answer", unit, offset, attempt))
            elif habit < 0.4:
                unit.together.append((offset, attempt))
                counted = False
            else:
                dispatcher.ack(offset, attempt, now_ms)
                self._acked(unit, [(offset, attempt)])
        except Fenced:
            self.world.reach("answer.fenced")
            return
        except DeliveryError as error:
            self.note("answers too late: %s", error)
            self.world.reach(f"answer.{type(error).__name__}")
            counted = False
        if not self.owns(unit):
            if counted:
                self.world.fail("nothing counts after the unit was lost", f"{unit.number}/{offset}")
            return
        self.pump(unit)
        if rng.random() < 0.3:
            self.commit(unit)

    def _ack_together(self, unit: OwnedUnit) -> None:
        batch, unit.together = unit.together, []
        if not batch:
            return
        offsets = [offset for offset, _ in batch]
        before = unit.dispatcher.progress()
        try:
            unit.dispatcher.ack_many(offsets, self.now_ms, [attempt for _, attempt in batch])
            self._acked(unit, batch)
        except DeliveryError:
            self.world.reach("answer.batch refused")
            if unit.dispatcher.progress() != before:
                self.world.fail("a refused batch changes nothing", f"{offsets}")
            for offset, attempt in batch:
                try:
                    unit.dispatcher.ack(offset, attempt, self.now_ms)
                except DeliveryError:
                    continue
                self._acked(unit, [(offset, attempt)])

    def _acked(self, unit: OwnedUnit, batch: list[tuple[int, int]]) -> None:
        for offset, attempt in batch:
            newest = unit.newest_attempt.pop(offset, None)
            if newest != attempt:
                what = f"attempt {attempt} of {unit.number}/{offset} was acked"
                self.world.fail(
                    "an answer to an earlier attempt does not count",
                    f"{what}, the newest is {newest}",
                )
            self.oracle.acked(unit.number, unit.token, offset)
            unit.unconfirmed.append(offset)

    # --- committing ---

    def commit(self, unit: OwnedUnit) -> None:
        """Store the progress, one commit at a time; an unanswered one is made again."""
        if not self.owns(unit):
            return
        since_ms = unit.commit_since_ms
        if since_ms is not None and self.now_ms - since_ms < COMMIT_TIMEOUT_MS:
            return
        progress = unit.dispatcher.progress()
        if progress == unit.stored:
            if unit.draining and unit.dispatcher.idle:
                self.drained(unit)
            return
        self._check_attempts(unit, progress)
        unit.commit_number += 1
        unit.commit_since_ms = self.now_ms
        confirmed = list(unit.unconfirmed)
        self.submit(
            ("committed", unit, unit.commit_number, progress, confirmed),
            lambda tx: self.put_progress(tx, unit, progress),
        )

    def _check_attempts(self, unit: OwnedUnit, progress: Progress) -> None:
        acked, counted = progress.acked(), dict(progress.attempts)
        for offset, attempts in list(unit.refused.items()):
            if offset in acked:
                del unit.refused[offset]
            else:
                self.world.require(
                    counted.get(offset) == attempts,
                    "attempts are carried over",
                    f"{unit.number}/{offset} was refused {attempts} times: {counted.get(offset)}",
                )

    def put_progress(self, tx: Snapshot, unit: OwnedUnit, progress: Progress) -> None:
        """The transaction of a commit: only under the newest token."""
        self.check_token(tx, unit)
        tx.put(PROGRESS, unit.number, progress)

    def stored(self, tag: Any, outcome: Outcome) -> None:
        match tag, outcome:
            case ("committed", unit, number, progress, confirmed), Done():
                self._committed(unit, number, progress, confirmed)
            case ("buried", unit, letter), Done():
                if self.owns(unit) and letter.offset in unit.dispatcher.dying:
                    del unit.burying[letter.offset]
                    self.world.reach(f"dead letter.{letter.reason.name}")
                    self.oracle.died(unit.number, unit.token, letter)
                    unit.dispatcher.dead_lettered(letter.offset, self.now_ms)
                    self.pump(unit)
            case ("committed" | "buried", unit, *_), Conflict(reason=reason):
                if self.owns(unit):
                    self.note("is fenced: %s", reason)
                    self.world.reach("commit.fenced")
                    self.fenced(unit)
            case ("committed", unit, number, *_), _ if unit.commit_number == number:
                unit.commit_since_ms = None
            case ("buried", unit, letter), _:
                unit.burying.pop(letter.offset, None)

    def _committed(
        self, unit: OwnedUnit, number: int, progress: Progress, confirmed: list[int]
    ) -> None:
        for offset in confirmed:
            self.oracle.confirmed(self.owner_name, unit.number, offset, offset + 1)
        if number == unit.commit_number:
            unit.commit_since_ms = None
            unit.stored = progress
            unit.unconfirmed = unit.unconfirmed[len(confirmed) :]
            self.commit(unit)

    def timer(self, tag: Any) -> None:
        match tag:
            case ("answer", unit, offset, attempt):
                self.answer(unit, offset, attempt)


def watch_progress(oracle: DeliveryOracle, seen_revision: int) -> int:
    """Show the oracle what has become durable after a revision; for a scenario's check."""
    store = oracle.world.store
    if store.revision != seen_revision:
        for number in oracle.world.log.segments:
            entry = store.entries.get((PROGRESS, number))
            if entry is not None and entry.revision > seen_revision:
                oracle.stored(number, entry.value)
    return store.revision


def check_everything_done(oracle: DeliveryOracle) -> None:
    """In the end every event was acked or is a dead letter, and poison is nothing else."""
    for segment in oracle.world.log.segments.values():
        for event in segment.events:
            place = (segment.number, event.offset)
            dead = place in oracle.dead
            oracle.world.require(
                dead == (is_poison(event) and oracle.ours(event.key)) or not is_poison(event),
                "poison becomes a dead letter",
                f"{event} is {'' if dead else 'not '}a dead letter",
            )
