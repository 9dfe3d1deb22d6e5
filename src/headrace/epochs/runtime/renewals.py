"""The leases of all publishers of one program, renewed in one transaction.

Commits extend a lease as well; what this adds is for publishers that have nothing to say.  Running
out fences nobody: a lease that nobody took over is extended again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from weakref import WeakMethod

import msgspec

from headrace.catalog import Tx, leases
from headrace.errors import HeadraceError
from headrace.host import Host

_log = logging.getLogger(__name__)


class Renewed(msgspec.Struct, frozen=True):
    """A lease to keep, and whom to tell when it was taken over, unless it was dropped by then."""

    name: str
    token: int
    ttl_ms: int
    lost: WeakMethod[Callable[[], None]]


class Renewals:
    """What a host keeps; use :func:`renewals_of`."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._kept: dict[str, Renewed] = {}
        self._timer = host.timer(self._due)
        self._busy = False

    def keep(self, lease: Renewed) -> None:
        """Renew it from now on."""
        self._kept[lease.name] = lease
        self._timer.bring_forward(self._host.now_s() + lease.ttl_ms / 3000)

    def drop(self, name: str) -> None:
        """Renew it no more."""
        self._kept.pop(name, None)

    def _due(self) -> None:
        if self._kept and not self._busy:
            self._busy = True
            self._host.spawn(self._renew(list(self._kept.values())))

    async def _renew(self, kept: list[Renewed]) -> None:
        names = [each.name for each in kept]

        def renew(tx: Tx) -> dict[str, int]:
            found = {lease.name: lease.token for lease in leases.hold(tx, names)}
            now_us = tx.now_us()
            due = [
                (now_us + each.ttl_ms * 1000, each.name)
                for each in kept
                if found.get(each.name) == each.token
            ]
            leases.set_expiry(tx, due)
            return found

        try:
            found = await self._host.in_transaction(renew, small=len(kept) < 100)
        except HeadraceError as error:
            _log.warning("leases of epoch publishers were not renewed: %s", error)
        else:
            for each in kept:
                if found.get(each.name) != each.token and self._kept.get(each.name) is each:
                    self.drop(each.name)
                    if (lost := each.lost()) is not None:
                        lost()
        finally:
            self._busy = False
            if self._kept:
                soonest = min(each.ttl_ms for each in self._kept.values())
                self._timer.after(soonest / 3000)


def renewals_of(host: Host) -> Renewals:
    """The renewals of a program."""
    found = host.parts.get(Renewals)
    if not isinstance(found, Renewals):
        found = host.parts[Renewals] = Renewals(host)
    return found
