"""What the leaders of a process ask of the catalog from time to time, for all of them together.

Leases are renewed, and looked at when there is news of them; settings are read when some group was
made or changed.  A process may lead hundreds of groups, and news may be told to all of them, so one
transaction or one read serves all that ask meanwhile.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from headrace.catalog import Tx, leases
from headrace.errors import HeadraceError, LeaseLost
from headrace.groups import homes
from headrace.groups.shared import properties
from headrace.groups.shared.core.records import RenewLease
from headrace.groups.shared.properties import GroupProperties
from headrace.groups.shared.runtime import state

if TYPE_CHECKING:
    from headrace.groups.shared.runtime.leading import Leading
    from headrace.groups.shared.runtime.peer import LocalPeer

T = TypeVar("T")

HEARD_MS = 1000
"""How often it is asked whether there was news of any stream, also of one that is new."""

_log = logging.getLogger(__name__)


class Upkeep:
    """The catalog work that the leaders of one peer share."""

    def __init__(self, peer: LocalPeer) -> None:
        self._peer = peer
        self._renewals: dict[Leading, RenewLease] = {}
        self._told: dict[Leading, None] = {}
        """Leaders that were told of news of their lease."""
        self._settings: dict[str, GroupProperties] = {}
        """The records of all groups, as they were last read."""
        self._revision = 0
        self._started: set[str] = set()
        """Groups whose leaders may have read older settings."""
        self._renewing = self._checking = self._reading = self._asking = False
        self._heard: int | None = None
        """What the catalog had heard of streams when leaders were last told."""
        self.due_ms = 0
        """When ``tick`` has something to do."""

    def tick(self, now_ms: int) -> None:
        """Leaders that rest look at the log again, if there was news of any stream."""
        if now_ms < self.due_ms:
            return
        self.due_ms = now_ms + HEARD_MS
        heard = self._peer.host.log.catalog.heard
        if heard != self._heard:
            self._heard = heard
            for leading in self._peer.leaders.values():
                leading.stir()

    # --- leases ---

    def renew(self, leading: Leading, renewal: RenewLease) -> None:
        """Extend a lease, together with others that are due."""
        self._renewals[leading] = renewal
        if not self._renewing:
            self._renewing = True
            self._peer.spawn(self._renew())

    async def _renew(self) -> None:
        try:
            while self._renewals:
                due = dict(islice(self._renewals.items(), state.LOCKS_MAX))
                for leading in due:
                    del self._renewals[leading]
                host, names = self._peer.host, [leading.lease for leading in due]
                locks = map(leases.lock, names if host.log.catalog.locking else ())
                lost = await host.in_transaction(
                    functools.partial(_extend, due=due.values(), names=names), locks, sync=False
                )
                for (leading, renewal), error in zip(due.items(), lost, strict=True):
                    leading.renewed(renewal, error)
        except HeadraceError as error:
            _log.warning("leaders cannot renew their leases: %s", error)
        finally:
            self._renewing = False

    def check_lease(self, leading: Leading) -> None:
        """There is news of a lease: see whether it is still ours."""
        self._told[leading] = None
        if not self._checking:
            self._checking = True
            self._peer.spawn(self._check_leases())

    async def _check_leases(self) -> None:
        try:
            while self._told:
                told, self._told = self._told, {}
                names = [leading.lease for leading in told]
                found = await self._read(functools.partial(leases.not_released, names=names))
                tokens = {lease.name: lease.token for lease in found}
                for leading, name in zip(told, names, strict=True):
                    if tokens.get(name) != leading.token:
                        leading.lose(LeaseLost(name, leading.token))
        except HeadraceError as error:
            _log.warning("leaders cannot look at their leases: %s", error)
        finally:
            self._checking = False

    # --- settings ---

    def started(self, group: str) -> None:
        """A group is led here from now on."""
        self._started.add(group)
        self.check_properties()
        self.check_homes()

    def check_properties(self) -> None:
        """Some group was made, changed or deleted: read what is new."""
        if not self._reading:
            self._reading = True
            self._peer.spawn(self._read_properties())

    async def _read_properties(self) -> None:
        self._reading = False  # what changes from here on is read again
        try:
            self._revision, found = await self._read(
                lambda tx: properties.changed(tx, self._revision)
            )
        except HeadraceError as error:
            _log.warning("leaders cannot read their settings: %s", error)
            return
        changed = {each.key: each for each in found}
        self._settings |= changed
        started, self._started = self._started, set()
        for group in sorted(changed.keys() | started):
            if group in self._settings and (leading := self._peer.leaders.get(group)) is not None:
                leading.configure(self._settings[group])

    # --- homes ---

    def check_homes(self) -> None:
        """Some replicated group was moved, made or deleted: see whether one that is led here
        is to be consumed elsewhere."""
        if not self._asking:
            self._asking = True
            self._peer.spawn(self._check_homes())

    async def _check_homes(self) -> None:
        self._asking = False  # what changes from here on is read again
        led = list(self._peer.leaders)
        try:
            found = await self._read(functools.partial(homes.waiting, keys=led))
        except HeadraceError as error:
            _log.warning("leaders cannot read where their groups are at home: %s", error)
            return
        for group, why in found.items():
            if (leading := self._peer.leaders.get(group)) is not None:
                leading.leave(why)

    async def _read(self, look: Callable[[Tx], T]) -> T:
        host = self._peer.host
        return await host.in_thread(host.log.catalog.read, look, snapshot=True)


def _extend(tx: Tx, due: Iterable[RenewLease], names: Sequence[str]) -> list[LeaseLost | None]:
    """Extend leases, also those that have run out: the wall clock may have been put forward."""
    held = {lease.name: lease.token for lease in leases.hold(tx, names)}
    now_us = tx.now_us()
    lost: list[LeaseLost | None] = []
    kept = []
    for renewal, name in zip(due, names, strict=True):
        if held.get(name) == renewal.token:
            kept.append((now_us + renewal.ttl_ms * 1000, name))
            lost.append(None)
        else:
            lost.append(LeaseLost(name, renewal.token))
    if kept:
        leases.set_expiry(tx, kept)
    return lost
