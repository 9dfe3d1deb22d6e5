"""Leases: one holder at a time, by the catalog's clock, with tokens that only grow."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from headrace.catalog import Catalog, leases
from headrace.errors import InvalidInputError, LeaseLost
from tests.support import wait_until

LONG_MS = 60_000


def expire(catalog: Catalog, name: str) -> None:
    """Let the catalog's clock pass the lease's end."""
    catalog.write(
        lambda tx: tx.execute(
            "UPDATE leases SET expires_us = ? WHERE name = ?", (tx.now_us() - 1, name)
        )
    )


def test_a_lease_has_one_holder(catalog: Catalog) -> None:
    held = catalog.leases.acquire("leader", "a", LONG_MS)
    assert held is not None
    assert held.token == 1
    assert catalog.leases.acquire("leader", "b", LONG_MS) is None
    assert catalog.leases.get("leader") == held
    assert catalog.leases.acquire("other", "b", LONG_MS) is not None


def test_the_token_grows_with_every_acquisition(catalog: Catalog) -> None:
    tokens = []
    for owner in ("a", "b", "a", "a"):
        held = catalog.leases.acquire("leader", owner, LONG_MS)
        assert held is not None
        tokens.append(held.token)
        assert catalog.leases.release(held)
        assert catalog.leases.get("leader") is None
    assert tokens == [1, 2, 3, 4]


def test_the_same_owner_acquires_again_under_a_new_token(catalog: Catalog) -> None:
    first = catalog.leases.acquire("leader", "a", LONG_MS)
    second = catalog.leases.acquire("leader", "a", LONG_MS)
    assert first is not None
    assert second is not None
    assert second.token == first.token + 1
    with pytest.raises(LeaseLost) as caught:
        catalog.leases.renew(first, LONG_MS)
    assert (caught.value.name, caught.value.token) == ("leader", 1)
    assert not catalog.leases.release(first)
    assert catalog.leases.get("leader") == second


def test_a_lease_ends_by_itself(catalog: Catalog) -> None:
    held = catalog.leases.acquire("leader", "a", 30)
    assert held is not None
    taken = wait_until(lambda: catalog.leases.acquire("leader", "b", LONG_MS), "the lease's end")
    assert taken.token == 2
    clock_us = catalog.read(lambda tx: tx.now_us())
    assert clock_us >= held.expires_us


def test_one_that_is_not_renewed_ends_although_the_clock_was_put_back(
    catalog: Catalog, reopen: Callable[[], Catalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = 1_000_000
    monkeypatch.setattr(leases, "steady_ms", lambda: now_ms)
    other = reopen()
    dead = other.leases.acquire("leader", "dead", 5_000)
    assert dead is not None
    later = "UPDATE leases SET expires_us = expires_us + ?, heard_us = heard_us + ?"
    catalog.write(lambda tx: tx.execute(later, (60_000_000, 60_000_000)))
    assert catalog.leases.acquire("leader", "b", 5_000) is None
    now_ms += 4_000
    assert catalog.leases.get("leader") is not None
    assert catalog.leases.acquire("leader", "b", 5_000) is None
    catalog.write(lambda tx: leases.extend(tx, "leader", dead.token, 65_000))
    now_ms += 4_000
    assert catalog.leases.acquire("leader", "b", 5_000) is None  # renewed meanwhile
    now_ms += 64_000
    assert catalog.leases.get("leader") is not None
    now_ms += 1_000
    assert catalog.leases.get("leader") is None
    assert catalog.leases.acquire("leader", "b", 5_000) is not None
    with pytest.raises(LeaseLost):
        other.leases.renew(dead, 5_000)


def test_what_was_renewed_since_it_seemed_to_be_over_is_left_alone(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = 0
    monkeypatch.setattr(leases, "steady_ms", lambda: now_ms)
    held = catalog.leases.acquire("leader", "a", 5_000)
    assert held is not None
    assert catalog.leases.get("leader") == held
    now_ms = 5_000
    assert catalog.leases.get("leader") is None
    catalog.leases.renew(held, 6_000)
    assert catalog.leases.acquire("leader", "b", 5_000) is None


def test_an_expired_lease_cannot_be_renewed(catalog: Catalog) -> None:
    held = catalog.leases.acquire("leader", "a", LONG_MS)
    assert held is not None
    expire(catalog, "leader")
    assert catalog.leases.get("leader") is None
    with pytest.raises(LeaseLost):
        catalog.leases.renew(held, LONG_MS)
    taken = catalog.leases.acquire("leader", "b", LONG_MS)
    assert taken is not None
    assert taken.token > held.token
    with pytest.raises(LeaseLost):
        catalog.leases.renew(held, LONG_MS)
    assert not catalog.leases.release(held)


def test_renewing_prolongs_under_the_same_token(catalog: Catalog) -> None:
    held = catalog.leases.acquire("leader", "a", 5_000)
    assert held is not None
    longer = catalog.leases.renew(held, LONG_MS)
    assert longer.token == held.token
    assert longer.expires_us > held.expires_us
    assert catalog.leases.get("leader") == longer
    # A lease may be renewed with the record of any earlier renewal: the token decides.
    assert catalog.leases.renew(held, LONG_MS).token == held.token


def test_a_time_to_live_out_of_bounds_is_refused(catalog: Catalog) -> None:
    held = catalog.leases.acquire("leader", "a", LONG_MS)
    assert held is not None
    for ttl_ms in (0, -1, 24 * 3600 * 1000 + 1):
        with pytest.raises(InvalidInputError):
            catalog.leases.acquire("leader", "a", ttl_ms)
        with pytest.raises(InvalidInputError):
            catalog.leases.renew(held, ttl_ms)
    assert catalog.leases.get("leader") == held


def test_a_name_out_of_bounds_is_refused(catalog: Catalog) -> None:
    for bad in ("", "x" * 600, "nul\x00", "line\nbreak"):
        with pytest.raises(InvalidInputError):
            catalog.leases.acquire(bad, "a", LONG_MS)
        with pytest.raises(InvalidInputError):
            catalog.leases.acquire("leader", bad, LONG_MS)
    assert catalog.leases.get("leader") is None


def test_of_many_that_race_one_holds(catalog: Catalog, reopen: Callable[[], Catalog]) -> None:
    catalogs = (catalog, reopen())
    won = []

    def race(number: int) -> None:
        held = catalogs[number % 2].leases.acquire("leader", f"owner{number}", LONG_MS)
        if held is not None:
            won.append(held)

    threads = [threading.Thread(target=race, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert catalog.leases.get("leader") == won[0]


def test_waiters_hear_of_a_release(catalog: Catalog, reopen: Callable[[], Catalog]) -> None:
    held = catalog.leases.acquire("leader", "a", LONG_MS)
    assert held is not None
    other = reopen()
    with other.waiting("lease:leader") as wait:
        wait(0)
        catalog.leases.release(held)
        assert wait(10)
    assert other.leases.acquire("leader", "b", LONG_MS) is not None


def test_leases_that_are_over_are_told_and_when_the_next_will_be(catalog: Catalog) -> None:
    for name, ttl_ms in (("short", 1_000), ("long", LONG_MS), ("back", LONG_MS)):
        held = catalog.leases.acquire(name, "a", ttl_ms)
    assert held is not None
    assert catalog.leases.release(held)
    names = ["short", "long", "back", "none"]
    found = catalog.read(lambda tx: leases.last_owners(tx, names))
    assert {each.name for each in found} == {"short", "long"}
    began_us = min(each.heard_us for each in found)

    def over(watch: leases.Watch, wall_ms: int, steady_ms: int) -> tuple[set[str], int | None]:
        ended, next_ms = watch.ended(found, began_us + wall_ms * 1000, steady_ms)
        return {lease.name for lease in ended}, next_ms and round(next_ms, -2)

    watch = leases.Watch()
    assert over(watch, 0, 0) == (set(), 1_000)
    assert over(watch, 500, 500) == (set(), 500)
    assert over(watch, 1_200, 1_200) == ({"short"}, LONG_MS - 1_200)
    # A clock that is put back delays neither.
    assert over(watch, -50_000, LONG_MS // 2) == ({"short"}, LONG_MS // 2)
    assert over(watch, -20_000, LONG_MS + 100)[0] == {"short", "long"}
    assert over(leases.Watch(), LONG_MS + 100, 0) == ({"short", "long"}, None)
