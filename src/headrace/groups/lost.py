"""What nobody is left to record: a pin, a leader or a session whose lease ran out.

Every open log looks for such leases about once a second: that is one read.  Where there is one
whose end was not told of, one program at a time, under a lease, records it: who was lost, what it
had, and when it was last heard.  Whoever takes over in time tells of it himself, in the transaction
in which he does, so nothing is told twice.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.catalog import Catalog, Tx, claims, leases, reader_groups
from headrace.catalog.leases import Ended
from headrace.errors import HeadraceError
from headrace.groups import decisions
from headrace.groups.decisions import Decision, What, ranges
from headrace.groups.decisions.core.record import moment
from headrace.groups.decisions.keys import record_key
from headrace.groups.decisions.store import LOOKED_BACK, record_linked
from headrace.groups.partitioned import deciding as partitioned
from headrace.groups.partitioned.names import GroupName
from headrace.groups.readers.names import FAMILY, ReaderGroupName
from headrace.groups.shared import deciding as shared
from headrace.groups.shared import sessions
from headrace.groups.shared.runtime.state import lease_name
from headrace.host import Host, Stage

LEASE = "watchman"
TTL_MS = 3_000
EVERY_S = 0.8
AT_ONCE = 200

_log = logging.getLogger(__name__)

READERS = f"{FAMILY}/"
READER = "/reader/"

Losses = list[tuple[str, Decision]]
"""Groups, by their names in the record, and what is to be recorded about each."""
Describe = Callable[[Tx, Ended], Losses]

_OVER = frozenset({What.LOST, What.LEFT, What.EVICTED})

_kinds: dict[str, Describe] = {}


def register(prefix: str, describe: Describe) -> None:
    """Have the end of leases with this prefix recorded; ``describe`` only reads."""
    _kinds[prefix] = describe


class Watchman:
    """The task of one open log."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._owner = host.clock.local_name()
        self._tasks = host.tasks("watchman")
        self._tasks.spawn(self._run())
        host.serve(Stage.CHORES, self)

    async def close(self) -> None:
        """Look no more."""
        await self._tasks.close()

    async def _run(self) -> None:
        while True:
            await self._host.sleep(EVERY_S)
            try:
                await self._host.in_thread(look, self._host.log.catalog, self._owner)
            except HeadraceError as error:
                _log.debug("watchman: %s", error)


@contextmanager
def watched(catalog: Catalog, owner: str) -> Iterator[None]:
    """Watch from a thread, in a program that works without an event loop."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(EVERY_S):
            try:
                look(catalog, owner)
            except HeadraceError as error:
                _log.debug("watchman: %s", error)

    thread = threading.Thread(target=watch, name="watchman", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def look(catalog: Catalog, owner: str) -> int:
    """Record what nobody has; returns how many ends of leases were told of."""

    def find(tx: Tx) -> tuple[leases.Lease | None, list[tuple[Ended, Losses]]]:
        ended = [(each, _describe(tx, each)) for each in leases.untold(tx, AT_ONCE)]
        return (leases.get(tx, LEASE) if ended else None), ended

    held, found = catalog.read(find, snapshot=True)
    if not found or (held is not None and held.owner != owner):
        return 0

    def run(tx: Tx) -> int:
        if leases.acquire(tx, LEASE, owner, TTL_MS) is None:
            return 0
        told = 0
        decided: dict[str, list[Decision]] = {}
        for lease, losses in found:
            if leases.tell(tx, lease):
                told += 1
                for group, decision in losses:
                    decided.setdefault(group, []).append(decision)
        for group, every in decided.items():
            record_linked(tx, group, every)
        return told

    groups = {group for _, losses in found for group, _ in losses}
    names = {leases.lock(LEASE), *(leases.lock(lease.name) for lease, _ in found)}
    names |= {lock for group in groups for lock in decisions.locks(group)}
    return catalog.write(run, locks=sorted(names), sync=False)


def _describe(tx: Tx, lease: Ended) -> Losses:
    for prefix, describe in _kinds.items():
        if lease.name.startswith(prefix):
            return describe(tx, lease)
    return []


def _of_pin(tx: Tx, lease: Ended) -> Losses:
    parts = lease.name.split(".")
    if len(parts) != 4:
        return []
    name = GroupName(parts[1], parts[2])
    if not partitioned.is_there(tx, name):
        return []
    return [(partitioned.key_of(name), partitioned.lost(tx, name, parts[3], lease))]


def _of_leader(tx: Tx, lease: Ended) -> Losses:  # noqa: ARG001
    return [(record_key(lease.name.removeprefix("leader ")), shared.leader_lost(lease))]


def _of_session(tx: Tx, lease: Ended) -> Losses:
    name = lease.name.removeprefix("session ")
    record = sessions.get(tx, name)
    lost = Decision(
        what=What.LOST,
        reason=f"{lease.owner}, which ran the session, was last heard {moment(lease.heard_us)}",
        source=name,
        instance=lease.owner,
        token=lease.token,
        at_us=lease.expires_us,
    )
    found: Losses = []
    for each in () if record is None else record.subscriptions:
        if not each.shared:
            found.append((record_key(sessions.private_group(name, each.filter)), lost))
            continue
        group = f"{each.text.split('/')[1]}:{each.filter}"
        key = record_key(group)
        # A leader that is alive tells of its members itself, of those that it has heard.
        if leases.get(tx, lease_name(group)) is None or _never_heard(tx, key, name):
            found.append((key, lost))
    return found


def _never_heard(tx: Tx, key: str, member: str) -> bool:
    """Whether who leads a group was elected when a member that had joined was dead already."""
    past = decisions.read(tx, key, LOOKED_BACK)
    elected = [each.number for each in past if each.what is What.ELECTED]
    own = [
        each
        for each in past
        if (each.what is What.JOINED and each.target == member)
        or (each.what in _OVER and each.source == member)
    ]
    return bool(elected and own) and own[-1].what is What.JOINED and own[-1].number < elected[-1]


def _of_reader(tx: Tx, lease: Ended) -> Losses:
    """A reader of a group; others that are alive put it offline, and tell of it then."""
    group, _, reader = lease.name.removeprefix(READERS).partition(READER)
    name = ReaderGroupName(group)
    row = reader_groups.get(tx, group)
    if row is None or row.config is None:
        return []
    now_us = tx.now_us()
    if any(each.expires_us > now_us for each in leases.beginning_with(tx, name.leases)):
        return []
    units = [claim.unit for claim in claims.owned_by(tx, name.key, reader)]
    lost = Decision(
        what=What.LOST,
        reason=f"{lease.owner}, which ran {reader}, was last heard {moment(lease.heard_us)}; no "
        "other reader is online",
        units=ranges(units),
        source=reader,
        instance=lease.owner,
        token=lease.token,
        at_us=lease.expires_us,
    )
    return [(str(name), lost)]


register(READERS, _of_reader)
register("pin.", _of_pin)
register("leader ", _of_leader)
register("session ", _of_session)
