"""Which jobs run: what is wanted against what is there, and when a failed one is tried again.

A job is in one of three phases.  ``running`` ends by itself or turns to ``stopping`` when the job
is no longer wanted, or wanted in another form; either way it is over only when its end is
reported, so that no two of one name ever run side by side.  ``waiting`` is the pause after an end:
none after a stop, short after a good end, and after failures an exponential back-off up to a bound,
with jitter, so that jobs that failed together do not come back together.  A round that worked
resets the count of failures.

    wanted             end while wanted           due
    ------> running -------------------> waiting -----> running
            |    ^                          |
            | no longer wanted, or changed  | no longer wanted
            v    | end, wanted in new form  v
            stopping ---------------------> forgotten
                        end, unwanted

Pure: no threads, no Spark, no clock; time and chance are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec

from headrace.errors import UnknownJobError
from headrace.spark.jobs import JobSpec


class BackOff(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait before a job is started again."""

    first_ms: int = 1_000
    most_ms: int = 60_000

    def delay_ms(self, failures: int, chance: float) -> int:
        """The pause after ``failures`` in a row; ``chance`` is the jitter, from 0 to 1.

        >>> [BackOff().delay_ms(failures, 1.0) for failures in (0, 1, 2, 3, 20)]
        [1000, 1000, 2000, 4000, 60000]
        """
        doubled = self.first_ms << min(max(0, failures - 1), 40)
        return int(min(doubled, self.most_ms) * (0.5 + 0.5 * chance))


class Phase(Enum):
    RUNNING = "running"
    STOPPING = "stopping"
    WAITING = "waiting"


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it stands."""

    spec: JobSpec
    phase: Phase
    since_ms: int
    due_ms: int = 0
    """When it is started again, while it waits."""
    failures: int = 0
    """In a row, since it last worked."""
    starts: int = 1
    last_error: str = ""
    last_error_ms: int = 0


class Start(msgspec.Struct, frozen=True):
    """Start the job; its end must be reported."""

    spec: JobSpec


class Stop(msgspec.Struct, frozen=True):
    """Tell the running job to stop."""

    name: str


class Forget(msgspec.Struct, frozen=True):
    """The job is over and no longer wanted: remove its record."""

    name: str


Effect = Start | Stop | Forget


class Supervision:
    """All jobs of one supervisor; see the module's text."""

    def __init__(self, back_off: BackOff | None = None) -> None:
        self._back_off = back_off or BackOff()
        self._wanted: dict[str, JobSpec] = {}
        self._slots: dict[str, Slot] = {}

    @property
    def slots(self) -> tuple[Slot, ...]:
        return tuple(self._slots[name] for name in sorted(self._slots))

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing is about to stop."""
        return all(slot.phase is Phase.WAITING for slot in self._slots.values())

    @property
    def next_due_ms(self) -> int | None:
        """When ``due`` has something to do next."""
        waiting = [slot.due_ms for slot in self._slots.values() if slot.phase is Phase.WAITING]
        return min(waiting, default=None)

    def want(self, specs: Iterable[JobSpec], now_ms: int) -> list[Effect]:
        """These should run, and no others."""
        self._wanted = {spec.name: spec for spec in specs}
        effects: list[Effect] = []
        for name, slot in sorted(self._slots.items()):
            wanted = self._wanted.get(name)
            if slot.phase is Phase.RUNNING and wanted != slot.spec:
                self._slots[name] = msgspec.structs.replace(
                    slot, phase=Phase.STOPPING, since_ms=now_ms
                )
                effects.append(Stop(name))
            elif slot.phase is Phase.WAITING and wanted is None:
                del self._slots[name]
                effects.append(Forget(name))
            elif slot.phase is Phase.WAITING and wanted is not None and wanted != slot.spec:
                # Perhaps the change is what it needed.
                effects.append(self._start(wanted, now_ms, slot))
        for name, spec in sorted(self._wanted.items()):
            if name not in self._slots:
                effects.append(self._start(spec, now_ms, None))
        return effects

    def stand_down(self, now_ms: int) -> list[Effect]:
        """Nothing should run."""
        return self.want((), now_ms)

    def due(self, now_ms: int) -> list[Effect]:
        """Start what has waited long enough."""
        return [
            self._start(slot.spec, now_ms, slot)
            for slot in self.slots
            if slot.phase is Phase.WAITING and slot.due_ms <= now_ms
        ]

    def worked(self, name: str) -> None:
        """The job has done a round since its start: earlier failures no longer count."""
        slot = self._running(name, "worked")
        if slot.failures:
            self._slots[name] = msgspec.structs.replace(slot, failures=0)

    def ended(self, name: str, error: str | None, now_ms: int, chance: float) -> list[Effect]:
        """The job is over; ``error`` is None when it ended well or was stopped."""
        slot = self._running(name, "ended")
        if error is not None:
            slot = msgspec.structs.replace(slot, last_error=error, last_error_ms=now_ms)
        wanted = self._wanted.get(name)
        if wanted is None:
            del self._slots[name]
            return [Forget(name)]
        if slot.phase is Phase.STOPPING:
            return [self._start(wanted, now_ms, slot)]
        failures = 0 if error is None else slot.failures + 1
        self._slots[name] = msgspec.structs.replace(
            slot,
            phase=Phase.WAITING,
            since_ms=now_ms,
            due_ms=now_ms + self._back_off.delay_ms(failures, chance),
            failures=failures,
        )
        return []

    def _running(self, name: str, event: str) -> Slot:
        slot = self._slots.get(name)
        if slot is None or slot.phase is Phase.WAITING:
            raise UnknownJobError(f"{name} {event}, and no such job is running")
        return slot

    def _start(self, spec: JobSpec, now_ms: int, before: Slot | None) -> Start:
        self._slots[spec.name] = Slot(
            spec=spec,
            phase=Phase.RUNNING,
            since_ms=now_ms,
            failures=0 if before is None else before.failures,
            starts=1 if before is None else before.starts + 1,
            last_error="" if before is None else before.last_error,
            last_error_ms=0 if before is None else before.last_error_ms,
        )
        return Start(spec)
