"""A durable store as the catalog will offer it, made to refuse and to forget.

Entries with revisions (create-if-absent, update-if-revision), leases with tokens that expire by
the *store's* clock, and claims of units.  A transaction is a function over :class:`Snapshot`; it
runs whole or, if it raises, not at all.

Faults.  `refuse`: the transaction is not run and the caller is told.  `lose`: an un-acknowledged
write disappears, or the write is kept and its answer disappears; the caller hears nothing and
cannot know which.  What was answered with :class:`Done` is never lost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import HeadraceError
from headrace.sim.faults import Fault

if TYPE_CHECKING:
    from headrace.sim.world import World

REFUSE_PROBABILITY = 0.05
LOSE_PROBABILITY = 0.04


class StoreConflictError(HeadraceError):
    """A precondition of a transaction does not hold; nothing was changed."""


class Done(msgspec.Struct, frozen=True):
    """The transaction is durable; `value` is what it returned."""

    value: Any


class Conflict(msgspec.Struct, frozen=True):
    """A precondition failed; nothing was changed."""

    reason: str


class Refused(msgspec.Struct, frozen=True):
    """The store would not take the write; nothing was changed."""

    reason: str


Outcome = Done | Conflict | Refused


class Entry(msgspec.Struct, frozen=True):
    """A stored value with the revision at which it was written."""

    value: Any
    revision: int


class Lease(msgspec.Struct, frozen=True):
    """A claim with a time to live, by the store's clock."""

    owner: str
    token: int
    expires_ms: int


class Claim(msgspec.Struct, frozen=True):
    """Who owns a unit, under which token."""

    owner: str
    token: int


class Snapshot:
    """The store as a transaction sees it.  Changes are undone if the transaction raises."""

    def __init__(self, store: ModelStore) -> None:
        self._store = store
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []
        """What stood where something was changed; None: nothing."""

    @property
    def now_ms(self) -> int:
        """The store's own clock."""
        return self._store.now_ms

    def get(self, bucket: str, key: Any) -> Entry | None:
        """The entry under a key, if there is one."""
        return self._store.entries.get((bucket, key))

    def put(self, bucket: str, key: Any, value: Any, *, revision: int | None = None) -> int:
        """Write an entry; with `revision`, only if it is still at that one (0: if absent)."""
        found = self._store.entries.get((bucket, key))
        if revision is not None and revision != (found.revision if found else 0):
            raise StoreConflictError(
                f"{bucket}/{key} is at revision {found.revision if found else 0}, not {revision}"
            )
        self._store.revision += 1
        self._set(self._store.entries, (bucket, key), Entry(value, self._store.revision))
        return self._store.revision

    def delete(self, bucket: str, key: Any, *, revision: int | None = None) -> None:
        """Remove an entry; with `revision`, only if it is still at that one."""
        found = self._store.entries.get((bucket, key))
        if revision is not None and revision != (found.revision if found else 0):
            raise StoreConflictError(f"{bucket}/{key} has moved on from revision {revision}")
        if found is not None:
            self._set(self._store.entries, (bucket, key), None)

    def lease(self, name: str) -> Lease | None:
        """The lease under a name, expired or not."""
        return self._store.leases.get(name)

    def acquire_lease(self, name: str, owner: str, ttl_ms: int) -> Lease:
        """Take a lease that is free or expired, with a higher token; else conflict."""
        found = self._store.leases.get(name)
        if found is not None and found.expires_ms > self.now_ms:
            raise StoreConflictError(f"lease {name} is held by {found.owner}")
        token = (found.token if found else 0) + 1
        lease = Lease(owner, token, self.now_ms + ttl_ms)
        self._set(self._store.leases, name, lease)
        return lease

    def renew_lease(self, name: str, token: int, ttl_ms: int) -> Lease:
        """Extend a lease; conflict if its token has moved on."""
        found = self.check_lease(name, token)
        lease = Lease(found.owner, token, self.now_ms + ttl_ms)
        self._set(self._store.leases, name, lease)
        return lease

    def release_lease(self, name: str, token: int) -> None:
        """Let a lease expire now; its token is remembered."""
        found = self.check_lease(name, token)
        self._set(self._store.leases, name, Lease(found.owner, token, 0))

    def check_lease(self, name: str, token: int) -> Lease:
        """The lease, if `token` is still its newest; else conflict.

        A lease that has run out but was not taken over still counts: nobody else acts on it.
        """
        found = self._store.leases.get(name)
        if found is None or found.token != token:
            raise StoreConflictError(
                f"lease {name} is at token {found.token if found else 0}, not {token}"
            )
        return found

    def claim(self, group: str, unit: Any, owner: str, token: int) -> Claim:
        """Record the owner of a unit; conflict if the token is not higher (or the same again)."""
        found = self._store.claims.get((group, unit))
        claim = Claim(owner, token)
        if found is not None and found.token >= token and found != claim:
            raise StoreConflictError(
                f"claim of {unit} is at token {found.token}, not below {token}"
            )
        self._set(self._store.claims, (group, unit), claim)
        return claim

    def claim_of(self, group: str, unit: Any) -> Claim | None:
        """Who owns a unit."""
        return self._store.claims.get((group, unit))

    def release_claim(self, group: str, unit: Any, token: int) -> None:
        """Give a unit back; its token is remembered."""
        found = self._store.claims.get((group, unit))
        if found is None or found.token != token:
            raise StoreConflictError(f"claim of {unit} is not at token {token}")
        self._set(self._store.claims, (group, unit), Claim("", token))

    def _set(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        self._undo.append((table, key, table.get(key)))
        _store(table, key, value)

    def rollback(self) -> None:
        """Undo everything, last change first."""
        while self._undo:
            _store(*self._undo.pop())


def _store(table: dict[Any, Any], key: Any, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


Transaction = Callable[[Snapshot], Any]


class ModelStore:
    """The one durable store of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.entries: dict[tuple[str, Any], Entry] = {}
        self.leases: dict[str, Lease] = {}
        self.claims: dict[tuple[str, Any], Claim] = {}
        self.revision = 0

    @property
    def now_ms(self) -> int:
        """The store's clock: the world's, without drift."""
        return self._world.now_ms

    def run(self, transaction: Transaction) -> Outcome:
        """Run a transaction now, with no faults.  For set-up, and for oracles."""
        snapshot = Snapshot(self)
        try:
            return Done(transaction(snapshot))
        except StoreConflictError as error:
            snapshot.rollback()
            return Conflict(str(error))
        except BaseException:
            snapshot.rollback()
            raise

    def submit(self, who: str, transaction: Transaction, answer: Callable[[Outcome], None]) -> None:
        """Run a transaction after a while, and answer after another."""
        world = self._world
        there_ms, back_ms = world.rng.randint(0, 4), world.rng.randint(0, 4)
        refused = world.faults.strikes(Fault.REFUSE, REFUSE_PROBABILITY)
        lost = world.faults.strikes(Fault.LOSE, LOSE_PROBABILITY)
        kept = world.rng.random() < 0.5

        def commit() -> None:
            if refused:
                world.note(who, "store refuses a write")
                world.call_in(back_ms, lambda: answer(Refused("the store is not available")))
                return
            if lost and not kept:
                world.note(who, "store loses a write")
                return
            outcome = self.run(transaction)
            if lost:
                world.note(who, "store loses an answer")
                return
            world.call_in(back_ms, partial(answer, outcome))

        world.call_in(there_ms, commit)
