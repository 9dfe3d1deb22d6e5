"""Dead letters: events that could not be processed, kept with what is known about them.

They go to an internal stream of the group that is made when the first one is written.  The
letter and the progress that passes over the event are one commit, which checks the claim: there
is neither an event that is passed over and kept nowhere, nor a letter of a stale owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from headrace.catalog.streams import Consumed
from headrace.errors import AlreadyAckedError, Fenced, HeadraceError, UnknownStreamError
from headrace.groups.consumer.transaction import acked
from headrace.groups.consumer.types import UnitAck
from headrace.groups.decisions import Decision, What, ranges, record
from headrace.groups.decisions import locks as decision_locks
from headrace.groups.decisions.keys import is_share, record_key
from headrace.groups.delivery import DeadLetter
from headrace.groups.letter_names import (
    ATTEMPTS,
    DETAIL,
    DIED,
    GROUP,
    LIVES,
    MEMBER,
    OFFSET,
    PUT_BACK,
    REASON,
    SEGMENT,
    STREAM,
    stream_of,
)
from headrace.log.events import Event, batch_of, now_us

if TYPE_CHECKING:
    from headrace.catalog import Tx
    from headrace.groups.consumer.delivery import Delivery
    from headrace.groups.consumer.run import Dying, Run
    from headrace.groups.consumer.units import Units

DETAIL_CHARS_MAX = 1000
TOLD_MAX = 8
"""Decisions per commit at most; further dead letters are only counted."""
RETRY_S = 0.5


def dead_letter(run: Run, delivery: Delivery, letter: DeadLetter) -> Event:
    """The event as it is kept: what it was, and in its headers why and from where."""
    about = (
        (REASON, letter.reason.value),
        (DETAIL, letter.detail[:DETAIL_CHARS_MAX]),
        (STREAM, run.owned.stream),
        (SEGMENT, str(run.owned.segment)),
        (OFFSET, str(letter.offset)),
        (ATTEMPTS, str(letter.attempts)),
        (GROUP, run.owned.group),
        (MEMBER, run.runtime.options.member),
        (DIED, str(now_us())),
        (LIVES, str(_lives_before(run.owned.group, delivery) + 1)),
    )
    kept = tuple(pair for pair in about if pair[1])
    return Event(
        subject=delivery.subject,
        value=delivery.value,
        key=delivery.key,
        headers=(*(each for each in delivery.headers if each[0] not in (PUT_BACK, LIVES)), *kept),
        timestamp=delivery.timestamp,
    )


def _lives_before(group: str, delivery: Delivery) -> int:
    """How often the event died before, if it was this group that put it back."""
    about = {key: bytes(value) for key, value in delivery.headers if key in (PUT_BACK, LIVES)}
    by, lives = about.get(PUT_BACK, b"").decode(errors="replace"), about.get(LIVES, b"")
    mine = by == group or (":" not in by and group.startswith(f"{by}.member."))
    return int(lives) if by and mine and lives.isdigit() and len(lives) < 10 else 0


def decisions(run: Run, dying: Dying) -> list[Decision]:
    """What ``headrace group explain`` tells of dead letters."""
    lines = []
    for letter in dying.letters[:TOLD_MAX]:
        assert isinstance(letter.headers, tuple)
        about = {key: str(value) for key, value in letter.headers}
        attempts = about.get(ATTEMPTS, "0")
        line = f"{letter.subject} at offset {about[OFFSET]}: {about[REASON]}"
        if attempts != "0":
            line += f" after {attempts} deliver{'y' if attempts == '1' else 'ies'}"
        lines.append(line + (f": {about[DETAIL]}" if DETAIL in about else ""))
    if len(dying.letters) > TOLD_MAX:
        lines.append(f"and {len(dying.letters) - TOLD_MAX:,} more at once")
    owned = run.owned
    partition = owned.unit.isdigit() and not is_share(owned.group)
    units = ranges([owned.unit if partition else f"{owned.stream}/{owned.segment}"])
    member = run.runtime.options.member
    return [
        Decision(what=What.DEAD_LETTER, reason=line, units=units, source=member) for line in lines
    ]


async def bury(runtime: Units, run: Run, dying: Dying) -> None:
    """Store dead letters, the progress over them and the reasons in one commit."""
    stream = runtime.options.dead_letters or stream_of(run.owned.group)
    log = runtime.host.log
    ack = UnitAck(run.owned, acked(dying.ranges))
    batch = batch_of(dying.letters, now_us())
    told = decisions(run, dying)

    def stage(tx: Tx) -> None:
        runtime.acks.stage(tx, ack)
        record(tx, group, told)

    group = record_key(run.owned.group)
    locks = [*runtime.acks.locks(run.owned), *decision_locks(group)]
    for made in (False, True):
        write = log.write_of()
        write.add(stream, batch, segment=0, captured=True)
        write.stage, write.stage_locks = stage, locks
        try:
            await runtime.host.commit(write)
        except UnknownStreamError:
            if made:
                raise
            log.routes.forget(stream)
            await runtime.host.in_thread(log.create_internal_stream, stream, 1, Consumed())
        else:
            return


class Burials:
    """Dead letters that are being stored, one commit of a run at a time.

    What is dying stays so until it is stored: whatever fails is tried again.
    """

    def __init__(self, runtime: Units, surface: Callable[[HeadraceError], None]) -> None:
        self._runtime = runtime
        self._surface = surface
        self._tasks: dict[Run, asyncio.Task[None]] = {}

    def begin(self, run: Run) -> None:
        """Start to store the run's dead letters, unless that is under way."""
        if run not in self._tasks:
            task = self._runtime.host.spawn(self._bury_all(run), awaited=True)
            self._tasks[run] = task
            task.add_done_callback(lambda _: self._ended(run))

    def wait(self, run: Run) -> Awaitable[None]:
        """Store the run's dead letters and wait for it; raises when they do not count."""
        self.begin(run)
        return asyncio.shield(self._tasks[run])

    async def close(self, patience_s: float) -> None:
        """Wait up to ``patience_s`` for commits under way, then cancel them."""
        tasks = list(self._tasks.values())
        if not tasks:
            return
        await asyncio.wait(tasks, timeout=patience_s)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    def _ended(self, run: Run) -> None:
        del self._tasks[run]

    async def _bury_all(self, run: Run) -> None:
        while (dying := run.dying()) is not None:
            try:
                await self._bury(run, dying)
            except Fenced as fenced:
                self._runtime.lost(run, fenced)
                raise
            except HeadraceError as error:
                self._surface(error)
                await self._runtime.host.sleep(RETRY_S)
                continue
            if run.gone is not None:
                break
            dying.confirm()
            if self._runtime.acks.repeats_transactions:
                self._runtime.commits.later(run, 0)
        if run.gone is not None:
            raise run.gone
        self._runtime.check_end(run)

    async def _bury(self, run: Run, dying: Dying) -> None:
        try:
            await bury(self._runtime, run, dying)
        except AlreadyAckedError:
            # An earlier try was stored after all; only its answer was lost.
            for part in dying.apart() if len(dying.letters) > 1 else ():
                await self._bury(run, part)
