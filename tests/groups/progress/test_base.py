"""Very many acked ranges: a commit writes what came since, and all that is acked is read."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headrace.catalog import Catalog, Tx, open_catalog
from headrace.catalog import progress as rows
from headrace.catalog.progress import BOTH
from headrace.errors import AlreadyAckedError, ProgressDecodeError
from headrace.groups.progress import AckedRanges, Progress, fresh, glance, ranges, store
from headrace.groups.progress.audit import examine
from headrace.groups.progress.base import Base, _decode
from headrace.groups.progress.store import Joining, SeekPlace, load, write_of

OFFSETS = 2_000


@pytest.mark.parametrize("seed", range(12))
def test_a_record_and_its_base_are_what_was_acked(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(ranges, "LAYERED_RANGES_MIN", rng.choice([2, 8, 64]))
    monkeypatch.setattr(fresh, "FRESH_OF_BASE", rng.choice([1, 4, 64]))
    acked, model, before, based = AckedRanges(), set[int](), Progress(), 0
    for _ in range(400):
        match rng.choice(("one", "one", "one", "range", "many", "floor")):
            case "one":
                new = {rng.randrange(OFFSETS)}
                acked.ack(*new)
            case "range":
                lo = rng.randrange(OFFSETS - 30)
                new = set(range(lo, lo + rng.randrange(1, 30)))
                acked.ack_range(lo, lo + len(new))
            case "many":
                new = {rng.randrange(OFFSETS) for _ in range(rng.randrange(1, 200))}
                acked.ack_many(new)
            case _:
                new = set(range(min(OFFSETS, acked.floor + rng.randrange(20))))
                acked.ack_range(0, len(new))
        model |= new
        if rng.random() < 0.7:
            continue
        found = Progress.of(acked, {})
        based += found.base is not None
        data = found.base.data if found.base else b""
        again = Progress.decode(found.stored(), data)
        assert again == found
        held = again.acked()
        assert {n for n in range(OFFSETS) if n in held} == model
        assert Progress.decode(found.encode()) == found.whole()
        assert found.merge(before).acked() == before.merge(found).acked() == acked
        if found.base == before.base:
            assert before.merge(found) == found
        record = found.stored()
        both = BOTH + len(record).to_bytes(4, "little") + record + data if data else record
        tail = rng.randrange(OFFSETS)
        missed = [n for n in range(OFFSETS) if n not in model]
        below = sum(n < tail for n in missed)
        assert glance.unacked(both, found.floor, tail, OFFSETS) == (len(missed) - below, below)
        acked, before = rng.choice((acked, again.check())), found
    assert based > 20


def every_other(count: int) -> AckedRanges:
    return AckedRanges.from_tuples(0, [(2 * n + 1, 2 * n + 2) for n in range(count)])


def told(tx: Tx) -> list[str]:
    return list(examine(tx))


def bases(catalog: Catalog) -> int:
    def look(tx: Tx) -> int:
        found = tx.row("SELECT COUNT(*) FROM progress_bases")
        assert found is not None
        return int(found[0])

    return catalog.read(look)


def test_a_commit_beside_very_many_ranges_writes_what_came_since(catalog: Catalog) -> None:
    """It wrote all of them again: 300 commits a minute beside a million ranges."""
    joining, acked = Joining(), every_other(100_000)
    sizes = []

    def commit() -> None:
        write = write_of("g", 7, 1, Progress.of(acked, {}))
        sizes.append(len(write.state))
        catalog.write(lambda tx: joining.put(tx, [write]))

    commit()
    for offset in range(0, 2_000, 4):
        acked.ack(offset)
        commit()
    acked.ack_range(0, 150_000)
    commit()
    assert max(sizes) < 10_000
    found = catalog.read(lambda tx: load(tx, "g", 7))
    assert found is not None
    assert found.acked() == acked
    assert bases(catalog) == 1


def test_what_two_know_of_very_many_ranges_is_joined(catalog: Catalog) -> None:
    one, other = every_other(20_000), every_other(20_000)
    other.ack_many(range(0, 20_000, 4))
    one.ack_many(range(2, 20_000, 4))
    for acked in (one, other, one):
        catalog.write(lambda tx, acked=acked: store.join(tx, "g", {7: Progress.of(acked, {})}))  # type: ignore[misc]
    found = catalog.read(lambda tx: load(tx, "g", 7))
    one.merge(other)
    assert found is not None
    assert found.acked() == one
    assert found.floor >= 20_000
    assert bases(catalog) == 1


def test_a_base_that_no_row_names_any_more_is_forgotten(catalog: Catalog) -> None:
    def join(progress: Progress) -> None:
        catalog.write(lambda tx: store.join(tx, "g", {7: progress}))

    join(Progress.of(every_other(20_000), {}))
    assert bases(catalog) == 1
    join(Progress(50_000))
    assert bases(catalog) == 0
    acked = every_other(40_000)
    acked.ack_range(0, 50_000)
    join(Progress.of(acked, {}))
    assert bases(catalog) == 1
    catalog.write(lambda tx: store.seek(tx, "g", [SeekPlace("7", 7, Progress(3))]))
    assert bases(catalog) == 0
    assert catalog.read(lambda tx: load(tx, "g", 7)) == Progress(3)
    catalog.write(lambda tx: store.seek(tx, "g", [SeekPlace("7", 7, Progress.of(acked, {}))]))
    assert bases(catalog) == 1
    catalog.write(lambda tx: rows.forget(tx, "g"))
    assert bases(catalog) == 0


def test_acks_that_are_given_once_count_once_beside_very_many(catalog: Catalog) -> None:
    claim = catalog.claims.take("g", "7", "m")
    catalog.write(lambda tx: store.join(tx, "g", {7: Progress.of(every_other(20_000), {})}))

    def once(lo: int, hi: int) -> None:
        write = write_of("g", 7, claim.token, Progress(0, ((lo, hi),)))
        catalog.write(lambda tx: store.ack_once(tx, "7", write, Progress()))

    once(10, 11)
    with pytest.raises(AlreadyAckedError):
        once(10, 11)
    with pytest.raises(AlreadyAckedError):
        once(11, 12)
    found = catalog.read(lambda tx: load(tx, "g", 7))
    assert found is not None
    assert (9, 12) in found.above


def test_a_base_that_is_missing_or_damaged_is_told(tmp_path: Path) -> None:
    catalog = open_catalog(tmp_path / "catalog")
    acked = Progress.of(every_other(20_000), {})
    catalog.write(lambda tx: store.join(tx, "g", {7: acked}))
    assert catalog.read(told) == []
    for change in ("UPDATE progress_bases SET ranges = x'0101'", "DELETE FROM progress_bases"):
        catalog.write(lambda tx, change=change: tx.execute(change, ()))  # type: ignore[misc]
        (finding,) = catalog.read(told)
        assert "its progress in segment 7: the base" in finding
        with pytest.raises(ProgressDecodeError):
            catalog.read(lambda tx: load(tx, "g", 7))
    catalog.close()


@pytest.mark.parametrize("damage", [b"", b"\x02\x01", b"\x01\x03" + bytes(20), b"\x01\x01" * 9])
def test_bytes_that_are_no_base_are_refused(damage: bytes) -> None:
    assert Base.of(every_other(10)._bounds()).end == 20
    with pytest.raises(ProgressDecodeError):
        _decode(damage)
