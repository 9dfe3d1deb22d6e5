"""Finding who leads a group, or claiming it, and loading what is stored of a group that was won.

A leader's lease is over when it has run out by the catalog's clock, or when it was not renewed for
its time to live by the clock of whoever waits: a wall clock may be put back.  So that this time has
begun when a leader dies, the leases of leaders elsewhere are looked at twice a second, and when one
is over.  Borrowers that look for a leader are told then: they ask once a second only, and whom they
were told last is remembered for as long.
"""

from __future__ import annotations

import functools
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.catalog import Tx, leases
from headrace.errors import HeadraceError, LeaseLost
from headrace.groups import homes
from headrace.groups.shared import deciding, properties
from headrace.groups.shared.core.records import StoredGroup
from headrace.groups.shared.core.registry import StartLeader
from headrace.groups.shared.properties import GroupProperties
from headrace.groups.shared.runtime import state

if TYPE_CHECKING:
    from headrace.groups.shared.runtime.peer import LocalPeer

LOAD_RETRY_S = 0.2
WATCH_S = 0.5

Found = tuple[GroupProperties | None, leases.Lease | None]
"""A group that may be led here, and who leads it."""

_log = logging.getLogger(__name__)


class Election:
    """Who leads what, as far as one peer takes part in it."""

    def __init__(self, peer: LocalPeer) -> None:
        self._peer = peer
        self._watch = leases.Watch()
        self._over: set[leases.Lease] = set()
        """Leases that are over, as they were left."""
        self._watching = peer.host.timer(self._look_at_leases)

    def watch(self) -> None:
        """Look at the leases of leaders elsewhere from time to time."""
        self._watching.bring_forward(self._peer.host.now_s() + WATCH_S)

    def stop(self) -> None:
        """Look no more."""
        self._watching.clear()

    def _look_at_leases(self) -> None:
        if groups := self._peer.led_elsewhere:
            self._peer.spawn(self._see(groups))
        self.watch()

    async def _see(self, groups: set[str]) -> None:
        host = self._peer.host
        names = {state.lease_name(group): group for group in sorted(groups)}

        def look(tx: Tx) -> tuple[int, list[leases.Ended]]:
            return tx.now_us(), leases.last_owners(tx, list(names))

        with suppress(HeadraceError):
            now_us, found = await host.in_thread(host.log.catalog.read, look)
            over, next_ms = self._watch.ended(found, now_us, self._peer.now_ms)
            new, self._over = over - self._over, over
            if next_ms is not None:
                self._watching.bring_forward_ms(self._peer.now_ms + next_ms)
            for lease in sorted(new, key=lambda lease: lease.name):
                self._peer.seek(names[lease.name])

    def _is_over(self, lease: leases.Lease, found: GroupProperties) -> bool:
        """Whether it was not renewed for its time to live, whatever the catalog's clock says."""
        if lease in self._over:
            return True
        since_ms = self._watch.see(lease, self._peer.now_ms)
        return self._peer.now_ms - since_ms >= found.settings.lease_ttl_ms

    async def look_up(self, group: str) -> None:
        """Find who leads a group, and claim it if nobody does."""
        peer = self._peer
        sent_ms = peer.now_ms
        name = state.lease_name(group)

        asking = homes.asking_of(peer.host)

        def read(tx: Tx, asked: int | None) -> tuple[homes.HomeStanding, Found]:
            tx.foresee(homes.asking(group), properties.asking(group), leases.asking(name))
            stands = homes.standing(tx, group, asked)
            found = None if stands.waits else properties.get(tx, group)
            return stands, (found, leases.get(tx, name))

        def claim(tx: Tx, over: leases.Lease | None) -> tuple[str | None, int]:
            tx.foresee(
                *(homes.asking(group), properties.asking(group), leases.asking(name)),
                *(leases.asking_last_owner(name), leases.asking_taking(tx, name)),
                leases.asking_floor(),
                *deciding.asking(group),
            )
            _, (found, held) = read(tx, asking.number(group))
            if found is None or (held is not None and held != over):
                return None if held is None else held.owner, 0
            before = leases.last_owner(tx, name)
            taken = leases.acquire(tx, name, peer.name, found.settings.lease_ttl_ms, over)
            if taken is None:
                return None, 0
            deciding.elected(tx, group, peer.name, taken.token, before)
            return None, taken.token

        try:
            found, held = await asking.look(group, read)
            owner, token = None if held is None else held.owner, 0
            may_lead = not peer.closing and peer.now_ms >= peer.leads_from_ms
            if found is not None and may_lead and (held is None or self._is_over(held, found)):
                owner, token = await peer.host.in_transaction(
                    lambda tx: claim(tx, held), (leases.lock(name), *deciding.locks(group))
                )
        except HeadraceError as error:
            _log.warning("cannot find the leader of %s: %s", group, error)
            peer.registry.failed(group)
            return
        if token:
            peer.post(lambda: peer.do(peer.registry.won(group, token, sent_ms)))
        elif owner is not None:
            leader = owner
            peer.post(lambda: peer.do(peer.registry.found(group, leader, peer.now_ms)))
        else:
            peer.registry.failed(group)  # no such group, now; borrowers ask again

    async def load(self, start: StartLeader) -> None:
        """Read the group's state and lead it; again, until it works or the lease is gone."""
        peer, group = self._peer, start.group

        def read(tx: Tx) -> tuple[GroupProperties, StoredGroup]:
            name = state.lease_name(group)
            tx.foresee(leases.asking(name), properties.asking(group), *state.asking(group))
            leases.check(tx, name, start.token)
            found = properties.require(tx, group)
            return found, state.load(tx, group, found.filter)

        while not peer.closed:
            try:
                found, rows = await peer.host.in_thread(
                    peer.host.log.catalog.read, read, snapshot=True
                )
            except (LeaseLost, LookupError):
                break
            except HeadraceError as error:
                _log.warning("cannot load %s: %s", group, error)
                await peer.host.sleep(LOAD_RETRY_S)
                if peer.now_ms - start.sent_ms > peer.options.leader.lease_ttl_ms:
                    break
            else:
                peer.post(functools.partial(peer.start, start, found, rows))
                return
        peer.registry.failed(group)
