"""Acks from elsewhere: what other regions have acked of the units that are open here.

A replicated group *without a home* is consumed in every region at once.  The agent of the region
joins what others have acked to the rows of progress; this reads the rows of the open units when
the group's channel tells of it, and gives them to the runs, which pass over what they have not
handed out.  Groups of streams that are in one region cost nothing: no subscription, no look.  Of
the others it is heard when they become replicated.

*Looks* are at most ten a second, and take at most a tenth of the time.  A row that is still what
it was is left alone, unless the run has refused something since: what is in flight while others
ack it is not passed over, but must not come again either.

A row is only believed while the claim of its unit is the run's: after a seek it is of another
life.  Paused runs wait: they hand out nothing, and whoever they go to begins with the row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from headrace.catalog import Tx, claims, entries
from headrace.catalog import progress as stored
from headrace.errors import HeadraceError
from headrace.groups import homes
from headrace.groups.consumer.run import Run
from headrace.groups.decisions.keys import is_share
from headrace.groups.progress import AckedRanges, store
from headrace.host import Host

LOOK_S = 0.1
"""The shortest time between two looks."""
SHARE = 10
"""A look that takes long is followed by a pause that is so many times longer."""
RETRY_S = 1.0
_GROUPS = entries.channel(homes.GROUPS_BUCKET)

Pass = Callable[[Run, AckedRanges], None]


class _Asked(msgspec.Struct, frozen=True):
    """A run whose row is to be read."""

    run: Run
    seen: bytes


class _Found(msgspec.Struct, frozen=True):
    """A row that is not what it was."""

    run: Run
    state: bytes
    acked: AckedRanges


class Elsewhere:
    """Follows the rows of those open units whose group is consumed in other regions as well."""

    def __init__(self, host: Host, pass_over: Pass) -> None:
        self._host = host
        self._pass_over = pass_over
        self._runs: dict[Run, bytes] = {}
        """With the row as it was seen last."""
        self._apart: set[Run] = set()
        """Units of linked streams whose group is not consumed everywhere."""
        self._stops: dict[str, Callable[[], None]] = {}
        self._timer = host.timer(self._look)
        self._next_s = 0.0
        self._joining = False
        self._looking = False
        self._again = False

    async def follow(self, run: Run) -> None:
        """Begin to follow a run, if its group asks for it; what is known is passed over at once."""
        group = run.owned.group
        self._apart.add(run)
        await self._listen(_GROUPS, self._regrouped)
        shared = await self._host.in_thread(self._read_shared, group)
        if shared:
            await self._listen(stored.channel(group), self._heard)
        if run.gone is not None:
            self.leave(run)
        if not shared or run.gone is not None:
            return
        self._apart.discard(run)
        self._runs[run] = b""
        self._stop_unused()
        self._apply(await self._host.in_thread(self._read, [_Asked(run, b"")]))

    def again(self, run: Run) -> None:
        """Look at the row of a run, whether it has changed or not."""
        if run in self._runs:
            self._runs[run] = b""
            self._heard()

    def leave(self, run: Run) -> None:
        """The run is gone."""
        if self._runs.pop(run, None) is not None or run in self._apart:
            self._apart.discard(run)
            self._stop_unused()

    def close(self) -> None:
        """Follow nothing any more."""
        self._runs.clear()
        self._apart.clear()
        self._stop_unused()
        self._timer.clear()

    # -- subscriptions ------------------------------------------------------------------

    async def _listen(self, channel: str, heard: Callable[[], None]) -> None:
        if channel in self._stops:
            return
        stop = await self._host.listen(channel, heard)
        if self._stops.setdefault(channel, stop) is not stop:
            stop()  # two runs of the group began at once

    def _stop_unused(self) -> None:
        used = {stored.channel(run.owned.group) for run in (*self._runs, *self._apart)}
        if self._apart:
            used.add(_GROUPS)
        for channel in self._stops.keys() - used:
            self._stops.pop(channel)()

    def _regrouped(self) -> None:
        """Some group has become replicated, or is about to be consumed elsewhere."""
        if self._apart and not self._joining:
            self._joining = True
            self._host.spawn(self._follow_those_apart(), awaited=True)

    async def _follow_those_apart(self) -> None:
        await self._host.sleep(LOOK_S)
        self._joining = False  # what is told from here on is looked for again
        try:
            for run in list(self._apart):
                await self.follow(run)
        except HeadraceError:
            self._host.after(RETRY_S, self._regrouped)

    def _heard(self) -> None:
        if self._runs:
            self._timer.bring_forward(max(self._next_s, self._host.now_s()))

    # -- looking ------------------------------------------------------------------------

    def _look(self) -> None:
        if self._looking:
            self._again = True
            return
        asked = [_Asked(run, seen) for run, seen in self._runs.items() if not run.paused]
        if not asked:
            return
        self._looking = True
        task = self._host.spawn(self._look_at(asked), awaited=True)
        task.add_done_callback(lambda _: self._looked())

    def _looked(self) -> None:
        self._looking = False
        if self._again:
            self._again = False
            self._heard()

    async def _look_at(self, asked: list[_Asked]) -> None:
        begun_s = self._host.now_s()
        self._next_s = begun_s + LOOK_S
        try:
            self._apply(await self._host.in_thread(self._read, asked))
        except HeadraceError:
            self._next_s = self._host.now_s() + RETRY_S
            self._again = True
            return
        now_s = self._host.now_s()
        self._next_s = max(begun_s + LOOK_S, now_s + SHARE * (now_s - begun_s))

    def _apply(self, found: list[_Found]) -> None:
        for each in found:
            run = each.run
            if run not in self._runs or run.gone is not None or run.turns != self._host.turns:
                continue
            if run.paused:
                self._runs[run] = b""
                continue
            self._runs[run] = each.state
            self._pass_over(run, each.acked)

    # -- on a thread --------------------------------------------------------------------

    def _read_shared(self, group: str) -> bool:
        return self._host.log.catalog.read(partial(_is_everywhere, group=group))

    def _read(self, asked: list[_Asked]) -> list[_Found]:
        rows = self._host.log.catalog.read(partial(_changed, asked=asked), snapshot=True)
        return [_Found(run, row.state, store.decode(row).acked()) for run, row in rows]


def _is_everywhere(tx: Tx, group: str) -> bool:
    """Whether a group is consumed in every region, and not at a home."""
    key = ".".join(group.split(".")[:2]) if is_share(group) else group
    record = homes.replicated(tx, key)
    return record is not None and record.home is None


def _changed(tx: Tx, asked: list[_Asked]) -> list[tuple[Run, stored.Progress]]:
    """The rows that are not what they were, of units that are still their runs'."""
    held = {(one.run.owned.group, one.run.owned.unit, one.run.owned.token): one for one in asked}
    for fenced in claims.lost(tx, held):
        held.pop((fenced.group, fenced.unit, fenced.token), None)
    by_group: dict[str, dict[int, _Asked]] = {}
    for one in held.values():
        by_group.setdefault(one.run.owned.group, {})[one.run.owned.segment_id] = one
    found = []
    for group, wanted in by_group.items():
        for row in stored.of_group(tx, group, list(wanted)):
            one = wanted[row.segment_id]
            if row.state != one.seen or not row.state:
                found.append((one.run, row))
    return found
