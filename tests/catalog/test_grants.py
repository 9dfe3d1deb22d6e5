"""Claims under a chosen token, and leases that are seized, extended and checked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.catalog import Catalog, claims, leases
from headrace.errors import Fenced, InvalidInputError, LeaseLost


def test_a_grant_needs_a_higher_token_or_is_the_same_again(reopen: Callable[[], Catalog]) -> None:
    catalog = reopen()

    def grant(owner: str, token: int, unit: str = "u") -> claims.Claim | None:
        wanted = [("v", owner, token), (unit, owner, token)]
        catalog.write(lambda tx: claims.grant(tx, "g", wanted))
        return catalog.claims.get("g", unit)

    for _ in range(2):
        assert grant("a", 3) == claims.Claim("g", "u", "a", 3)
    for owner, token in (("b", 3), ("b", 2), ("a", 1)):
        with pytest.raises(Fenced) as refused:
            grant(owner, token)
        assert refused.value.current == 3
    assert catalog.claims.list("g") == (
        claims.Claim("g", "u", "a", 3),
        claims.Claim("g", "v", "a", 3),
    )
    assert grant("b", 7) == claims.Claim("g", "u", "b", 7)
    with pytest.raises(Fenced):
        catalog.read(lambda tx: claims.check(tx, "g", "u", 3))
    catalog.read(lambda tx: claims.check(tx, "g", "u", 7))
    assert catalog.claims.take("g", "u", "c").token == 8
    with pytest.raises(InvalidInputError):
        grant("a", 9, "")


def test_a_seized_lease_fences_whoever_held_it(reopen: Callable[[], Catalog]) -> None:
    catalog = reopen()
    first = catalog.leases.acquire("l", "a", 60_000)
    assert first is not None
    second = catalog.write(lambda tx: leases.seize(tx, "l", "b", 1))
    assert second.token == first.token + 1
    with pytest.raises(LeaseLost):
        catalog.write(lambda tx: leases.check(tx, "l", first.token))
    with pytest.raises(LeaseLost):
        catalog.write(lambda tx: leases.extend(tx, "l", first.token, 1000))
    # One that has run out counts as long as nobody took it, and can be revived.
    catalog.write(lambda tx: leases.check(tx, "l", second.token))
    catalog.write(lambda tx: leases.extend(tx, "l", second.token, 60_000))
    held = catalog.leases.get("l")
    assert held is not None
    assert (held.owner, held.token) == ("b", second.token)
    assert catalog.leases.release(held)
    with pytest.raises(LeaseLost):
        catalog.read(lambda tx: leases.check(tx, "l", second.token))
