"""Claims: a unit's owner, and tokens that fence whoever owned it before."""

from __future__ import annotations

import pytest

from headrace.catalog import Catalog, Tx, claims, leases, progress
from headrace.catalog.claims import Claim
from headrace.catalog.progress import Progress
from headrace.errors import Fenced, InvalidInputError, LeaseLost


def test_a_new_owner_fences_the_old_one(catalog: Catalog) -> None:
    first = catalog.claims.take("g", "s/0", "a")
    catalog.claims.check(first)
    second = catalog.claims.take("g", "s/0", "b")
    assert (first.token, second.token) == (1, 2)
    with pytest.raises(Fenced) as caught:
        catalog.claims.check(first)
    assert (caught.value.token, caught.value.current) == (1, 2)
    with pytest.raises(Fenced):
        catalog.claims.release(first)
    catalog.claims.check(second)
    assert catalog.claims.get("g", "s/0") == second


def test_the_token_outlives_a_release(catalog: Catalog) -> None:
    first = catalog.claims.take("g", "s/0", "a")
    catalog.claims.release(first)
    assert catalog.claims.get("g", "s/0") == Claim("g", "s/0", None, 1)
    with pytest.raises(Fenced):
        catalog.claims.check(first)
    with pytest.raises(Fenced):
        catalog.claims.release(first)
    assert catalog.claims.take("g", "s/0", "a").token == 2


def test_a_claim_that_was_never_made_is_stale(catalog: Catalog) -> None:
    with pytest.raises(Fenced) as caught:
        catalog.claims.check(Claim("g", "s/0", "a", 1))
    assert caught.value.current == 0
    assert catalog.claims.get("g", "s/0") is None


def test_a_refusal_names_the_current_token_only_where_it_is_known(catalog: Catalog) -> None:
    unknown = Fenced("g", "s/0", 1)
    assert unknown.current is None
    assert str(unknown) == "group 'g', unit 's/0': token 1 is stale; stop working on this unit"
    first = catalog.claims.take("g", "s/0", "a")
    second = catalog.claims.take("g", "s/0", "b")
    with pytest.raises(Fenced, match="token 1 is stale, the current one is 2;"):
        catalog.claims.check(first)
    catalog.claims.release(second)
    with pytest.raises(Fenced, match="token 2 is stale, the unit was given back;"):
        catalog.claims.check(second)
    with pytest.raises(Fenced, match="token 1 is stale, the unit has no owner;"):
        catalog.claims.check(Claim("g", "s/1", "a", 1))


def test_many_claims_are_granted_under_tokens_that_only_grow(catalog: Catalog) -> None:
    def grant(owner: str, tokens: dict[str, int]) -> None:
        catalog.write(lambda tx: claims.grant_all(tx, "g", owner, tokens))

    grant("a", {"s/0": 3, "s/1": 3})
    grant("a", {"s/0": 3, "s/1": 3})  # the same claims
    for owner in ("a", "b"):
        with pytest.raises(Fenced, match="'s/1': token 2 is stale, the current one is 3;"):
            grant(owner, {"s/0": 4, "s/1": 2})
    assert [(c.owner, c.token) for c in catalog.claims.list("g")] == [("a", 3), ("a", 3)]


def test_units_and_groups_are_apart(catalog: Catalog) -> None:
    catalog.claims.take("g", "s/1", "a")
    catalog.claims.take("g", "s/0", "b")
    catalog.claims.take("h", "s/0", "c")
    assert [(c.unit, c.owner) for c in catalog.claims.list("g")] == [("s/0", "b"), ("s/1", "a")]
    assert [c.owner for c in catalog.claims.list("h")] == ["c"]


def test_work_under_a_stale_token_does_not_count(catalog: Catalog) -> None:
    old = catalog.claims.take("g", "s/0", "a")
    catalog.claims.take("g", "s/0", "b")

    def ack(tx: Tx) -> None:
        progress.put(tx, Progress("g", 1, 50))
        claims.check(tx, "g", "s/0", old.token)

    with pytest.raises(Fenced):
        catalog.write(ack, locks=(claims.lock("g", "s/0"),))
    assert catalog.read(lambda tx: progress.of_group(tx, "g")) == []


def test_a_floor_never_falls(catalog: Catalog) -> None:
    def put(floor: int, state: bytes) -> None:
        catalog.write(lambda tx: progress.put(tx, Progress("g", 1, floor, state)))

    put(10, b"first")
    put(5, b"late")
    assert catalog.read(lambda tx: progress.of_group(tx, "g")) == [Progress("g", 1, 10, b"first")]
    put(10, b"same floor, other ranges")
    put(12, b"")
    assert catalog.read(lambda tx: progress.of_group(tx, "g", [1])) == [Progress("g", 1, 12, b"")]
    assert catalog.read(lambda tx: progress.floors(tx, [1])) == {1: {"g": 12}}


def test_a_name_out_of_bounds_is_refused(catalog: Catalog) -> None:
    for bad in ("", "x" * 600, "nul\x00", "line\nbreak"):
        for group, unit, owner in ((bad, "u", "o"), ("g", bad, "o"), ("g", "u", bad)):
            with pytest.raises(InvalidInputError):
                catalog.claims.take(group, unit, owner)
    assert catalog.read(lambda tx: tx.rows("SELECT * FROM claims")) == []


def test_a_claim_that_was_deleted_fences_for_ever(catalog: Catalog) -> None:
    old = [catalog.claims.take("g", "u", owner) for owner in ("a", "b", "c")][-1]
    assert catalog.write(lambda tx: claims.drop(tx, "g", ["u", "never"])) == 1
    with pytest.raises(Fenced):
        catalog.claims.check(old)
    again = catalog.claims.take("g", "u", "d")
    assert again.token > old.token
    with pytest.raises(Fenced):
        catalog.claims.check(old)
    catalog.claims.check(again)
    assert catalog.claims.list("g") == (again,)
    with pytest.raises(Fenced):
        catalog.write(lambda tx: claims.grant(tx, "g", [("other", "e", old.token)]))
    catalog.write(lambda tx: claims.grant(tx, "g", [("other", "e", old.token + 1)]))
    assert catalog.claims.take("another group", "u", "a").token == 1


def test_a_group_that_was_deleted_fences_for_ever(catalog: Catalog) -> None:
    old = [catalog.claims.take("g", "u", owner) for owner in ("a", "b", "c")][-1]
    catalog.write(lambda tx: claims.retire(tx, "g"))
    with pytest.raises(Fenced):
        catalog.claims.check(old)
    assert catalog.claims.take("g", "u", "d").token > old.token
    assert catalog.read(lambda tx: claims.top(tx, "new")) >= old.token
    catalog.write(lambda tx: claims.retire(tx, "g"))
    catalog.write(lambda tx: claims.retire(tx, "g"))
    assert catalog.read(lambda tx: tx.rows("SELECT token FROM claims")) == [(old.token + 1,)]


def test_a_lease_that_was_deleted_fences_for_ever(catalog: Catalog) -> None:
    old = [catalog.leases.acquire("l", "a", 1000) for _ in range(3)][-1]
    assert old is not None
    catalog.write(lambda tx: leases.retire(tx, "l"))
    with pytest.raises(LeaseLost):
        catalog.read(lambda tx: leases.check(tx, "l", old.token))
    again = catalog.leases.acquire("l", "b", 1000)
    assert again is not None
    assert again.token > old.token
    with pytest.raises(LeaseLost):
        catalog.read(lambda tx: leases.check(tx, "l", old.token))
