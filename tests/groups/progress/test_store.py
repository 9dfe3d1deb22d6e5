"""The store of progress: nothing is lost or written by a fenced owner; a seek alone goes back."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.catalog import Catalog, Tx, claims, leases, open_catalog
from headrace.catalog import progress as rows
from headrace.errors import AlreadyAckedError, Fenced, LeaseLost
from headrace.groups.progress import AckedRanges, Progress, store
from headrace.groups.progress import ranges as all_ranges
from headrace.groups.progress.store import Joining, SeekPlace, Write, ack_once, join, load, write_of
from headrace.groups.shared.core.records import Commit, ProgressRecord
from headrace.groups.shared.runtime import state
from headrace.groups.shared.runtime.state import SegmentKey
from tests.support import wait_until

UNIT = "7"
SEGMENT = 70
OFFSETS = 24


@pytest.fixture(scope="module", autouse=True, params=[all_ranges.LAYERED_RANGES_MIN, 1])
def ranges_without_a_base(request: pytest.FixtureRequest) -> Iterator[int]:
    """Everything here holds as well where more than one range stands on a base."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(all_ranges, "LAYERED_RANGES_MIN", request.param)
        yield request.param


@pytest.fixture(scope="module")
def quick_catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    catalog = open_catalog(tmp_path_factory.mktemp("store") / "catalog")
    yield catalog
    catalog.close()


def progress_of(offsets: set[int]) -> Progress:
    acked = AckedRanges()
    for offset in offsets:
        acked.ack_range(offset, offset + 1)
    return Progress.of(acked, {})


def offsets_of(progress: Progress | None) -> set[int]:
    if progress is None:
        return set()
    return {n for n in range(OFFSETS) if n in progress.acked()}


def whole(catalog: Catalog, segment: int) -> Progress | None:
    found = catalog.read(lambda tx: load(tx, "g", segment))
    return found and found.whole()


class Owner:
    """Whoever owns the unit, or believes to: knows what it was told at its claim and what it acked.

    Its transactions are stored before it hears of them, as those of a consumer are.
    """

    def __init__(self, world: World, name: str, joining: Joining) -> None:
        def claim(tx: Tx) -> tuple[int, Progress | None]:
            token = claims.take(tx, world.group, UNIT, name).token
            return token, load(tx, world.group, SEGMENT)

        self.token, begun = world.catalog.write(claim)
        self.begun = begun or Progress()
        self.known = offsets_of(begun)
        self.acked = self.begun.acked()
        self.unheard: set[int] = set()
        self.joining = joining
        self.world = world

    @property
    def write(self) -> Write:
        for offset in self.known:
            self.acked.ack(offset)
        return write_of(self.world.group, SEGMENT, self.token, Progress.of(self.acked, {}))


class World:
    """One row, several who write it, and what it must hold."""

    def __init__(self, catalog: Catalog, group: str) -> None:
        self.catalog = catalog
        self.group = group
        self.acked: set[int] = set()
        self.owners: list[Owner] = []
        self.fenced = False
        self.late: list[tuple[Owner, Write, set[int]]] = []
        self.processes = [Joining(), Joining()]

    def check(self) -> None:
        assert offsets_of(self.catalog.read(lambda tx: load(tx, self.group, SEGMENT))) == self.acked

    def mine(self, owner: Owner) -> bool:
        return owner is self.owners[-1] and not self.fenced

    def claim(self, process: int) -> None:
        # The same process may own it again: it has the memory of its former life.
        self.owners.append(Owner(self, f"p{process}", self.processes[process]))
        self.fenced = False
        assert self.owners[-1].known == self.acked

    def commit(self, owner: Owner, write: Write, known: set[int]) -> None:
        def run(tx: Tx) -> list[Fenced | None]:
            return owner.joining.put_if_mine(tx, [write], [UNIT])

        (refused,) = self.catalog.write(run, sync=False)
        assert (refused is None) is self.mine(owner)
        if refused is None:
            self.acked |= known

    def undone(self, owner: Owner) -> None:
        write = owner.write

        def run(tx: Tx) -> None:
            owner.joining.put(tx, [write])
            raise RuntimeError

        with pytest.raises(RuntimeError):
            self.catalog.write(run, sync=False)
        owner.joining.forget([write])

    def transaction(self, owner: Owner, lo: int, hi: int) -> None:
        acked = set(range(lo, hi))
        write = write_of(self.group, SEGMENT, owner.token, progress_of(acked))
        try:
            self.catalog.write(lambda tx: ack_once(tx, UNIT, write, owner.begun), sync=False)
        except Fenced:
            assert not self.mine(owner)
        except AlreadyAckedError:
            assert self.mine(owner)
            assert acked & self.acked
        else:
            assert self.mine(owner)
            assert not acked & self.acked
            self.acked |= acked
            owner.unheard |= acked

    def seek(self, lo: int, hi: int) -> None:
        self.acked = {n for n in range(OFFSETS) if n < lo or lo + 1 <= n < hi}
        place = SeekPlace(UNIT, SEGMENT, progress_of(self.acked))
        self.catalog.write(lambda tx: store.seek(tx, self.group, [place]), sync=False)
        self.fenced = True

    def act(self, what: str, who: int, lo: int, hi: int) -> None:
        if what == "claim" or not self.owners:
            self.claim(who % 2)
            return
        owner = self.owners[-1 - who % len(self.owners)]
        match what:
            case "ack":
                owner.known |= set(range(lo, hi))
            case "commit":
                self.commit(owner, owner.write, set(owner.known))
            case "prepare":
                self.late.append((owner, owner.write, set(owner.known)))
            case "late" if self.late:
                self.commit(*self.late.pop(who % len(self.late)))
            case "undone":
                self.undone(owner)
            case "transaction":
                self.transaction(owner, lo, hi)
            case "hear":
                owner.known |= owner.unheard
            case "seek":
                self.seek(lo, hi)
            case _:
                pass


ACTIONS = ("claim", "ack", "commit", "prepare", "late", "undone", "transaction", "hear", "seek")
numbers = itertools.count()


@example([(what, 0, 1, 1) for what in ("claim", "prepare", "ack", "commit", "late")])
@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(ACTIONS),
            st.integers(0, 3),
            st.integers(0, OFFSETS - 1),
            st.integers(1, OFFSETS),
        ),
        max_size=40,
    )
)
def test_nothing_acked_is_lost_and_floors_fall_by_a_seek_alone(
    quick_catalog: Catalog, actions: list[tuple[str, int, int, int]]
) -> None:
    world = World(quick_catalog, f"g{next(numbers)}")
    for what, who, lo, size in actions:
        before = set(world.acked)
        world.act(what, who, lo, min(OFFSETS, lo + size))
        world.check()
        assert what == "seek" or before <= world.acked


def test_floors_never_fall_while_many_write_at_once(
    catalog: Catalog, reopen: Callable[[], Catalog]
) -> None:
    """Commits and transactions from several threads, even of some who know less than before."""
    lock = claims.lock("g", UNIT)
    failures: list[Exception] = []
    seeks = [0]  # odd while one is under way
    stop = threading.Event()
    other = reopen()

    def work(seed: int) -> None:
        rng, joining = random.Random(seed), Joining()
        while not stop.is_set():
            claim = catalog.claims.get("g", UNIT)
            if claim is None or claim.owner is None:
                claim = catalog.claims.take("g", UNIT, "m")
            known = progress_of(set(range(rng.randrange(OFFSETS))))
            mine = [write_of("g", SEGMENT, claim.token, known)]
            lo = rng.randrange(OFFSETS)
            once = write_of("g", SEGMENT, claim.token, progress_of({lo}))

            writes: list[Callable[[Tx], object]] = [
                partial(joining.put_if_mine, writes=mine, units=[UNIT]),
                partial(ack_once, unit=UNIT, write=once, begun=Progress()),
            ]
            try:
                (catalog if seed else other).write(rng.choice(writes), locks=[lock], sync=False)
            except (Fenced, AlreadyAckedError):
                continue
            except Exception as error:
                failures.append(error)
                return

    def look() -> None:
        floor, at = 0, 0
        while not stop.is_set():
            before = seeks[0]
            found = catalog.read(lambda tx: load(tx, "g", SEGMENT)) or Progress()
            if before == seeks[0] == at and at % 2 == 0 and found.floor < floor:
                failures.append(AssertionError(f"{floor} fell to {found.floor}"))
            floor, at = found.floor, before

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    threads.append(threading.Thread(target=look))
    for thread in threads:
        thread.start()
    back = SeekPlace(UNIT, SEGMENT, Progress(2))
    for _ in range(20):
        wait_until(
            lambda: (catalog.read(lambda tx: load(tx, "g", SEGMENT)) or Progress()).floor > 12,
            "progress",
        )
        seeks[0] += 1
        catalog.write(
            lambda tx: store.seek(tx, "g", [back]), locks=store.seek_locks("g", [UNIT]), sync=False
        )
        seeks[0] += 1
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []


def test_an_owner_that_claims_again_after_a_seek_begins_with_no_memory(catalog: Catalog) -> None:
    """Its last write of before may look like the row of now, and hold less than is stored."""
    joining = Joining()
    first = catalog.claims.take("g", UNIT, "m")

    def put(token: int, known: Progress) -> list[Fenced | None]:
        write = write_of("g", SEGMENT, token, known)
        return catalog.write(lambda tx: joining.put_if_mine(tx, [write], [UNIT]))

    def once(token: int, acked: Progress) -> None:
        write = write_of("g", SEGMENT, token, acked)
        catalog.write(lambda tx: ack_once(tx, UNIT, write, Progress()))

    assert put(first.token, Progress(3, ((6, 8),))) == [None]
    catalog.write(lambda tx: store.seek(tx, "g", [SeekPlace(UNIT, SEGMENT, Progress(3))]))
    assert put(first.token, Progress(9)) != [None]
    second = catalog.claims.take("g", UNIT, "m")
    once(second.token, Progress(0, ((6, 8),)))  # the row is now as it was before the seek
    assert put(second.token, Progress(3, ((4, 5),))) == [None]
    assert whole(catalog, SEGMENT) == Progress(3, ((4, 5), (6, 8)))


def test_a_row_that_is_what_was_written_last_is_not_read(catalog: Catalog) -> None:
    joining = Joining()
    read = 0

    def put(floor: int) -> None:
        def run(tx: Tx) -> None:
            rows = tx.rows

            def counting(sql: str, params: object = ()) -> list[object]:
                nonlocal read
                read += "FROM progress" in sql
                return rows(sql, params)  # type: ignore[arg-type,return-value]

            tx.rows = counting  # type: ignore[method-assign,assignment]
            joining.put(tx, [write_of("g", n, 1, Progress(floor)) for n in (1, 2, 3)])
            del tx.rows

        catalog.write(run)

    for floor in (1, 5, 5, 9):
        put(floor)
    assert read == 1
    catalog.write(lambda tx: join(tx, "g", {2: Progress(0, ((20, 30),))}))
    put(10)
    assert read == 2
    put(11)
    assert read == 3, "one holds what this owner does not know"
    found = {at: whole(catalog, at) for at in (1, 2, 3)}
    assert found == {1: Progress(11), 2: Progress(11, ((20, 30),)), 3: Progress(11)}


def test_many_groups_are_joined_at_once(catalog: Catalog) -> None:
    known = {f"g{n}": progress_of({0, n, n + 2, 20}) for n in range(1, 6)}
    catalog.write(lambda tx: store.begin(tx, "g1", {SEGMENT: progress_of({1, 7, 9})}))
    catalog.write(lambda tx: store.begin(tx, "g2", {SEGMENT: Progress(22)}))
    catalog.write(lambda tx: store.begin(tx, "g3", {SEGMENT + 1: Progress(5)}))
    for _ in range(2):
        catalog.write(lambda tx: store.join_groups(tx, SEGMENT, known))
    expected = known | {"g1": progress_of({0, 1, 3, 7, 9, 20}), "g2": Progress(22)}
    for group, progress in expected.items():
        found = catalog.read(partial(load, group=group, segment_id=SEGMENT))
        assert found is not None
        assert found.whole() == progress.whole()
    assert catalog.read(lambda tx: load(tx, "g3", SEGMENT + 1)) == Progress(5)


def test_rows_of_a_floor_alone_are_read(catalog: Catalog) -> None:
    """As earlier versions have written them."""
    catalog.write(lambda tx: rows.put(tx, rows.Progress("g", 1, 12)))
    assert catalog.read(lambda tx: load(tx, "g", 1)) == Progress(12)
    catalog.write(lambda tx: join(tx, "g", {1: Progress(5, ((14, 15),))}))
    assert catalog.read(lambda tx: load(tx, "g", 1)) == Progress(12, ((14, 15),))


def test_a_leader_stores_nothing_across_a_seek(catalog: Catalog) -> None:
    group, unit = "g:orders.>", "orders/7"
    name, segments = state.lease_name(group), {unit: SegmentKey(1, SEGMENT)}
    held = catalog.leases.acquire(name, "n", 1)
    assert held is not None
    joining = Joining()

    def lead(token: int, floor: int, *, finished: bool = False) -> None:
        record = ProgressRecord(unit, Progress(floor), finished)
        commit = Commit(1, token, (record,), ())
        catalog.write(
            lambda tx: state.run_commit(tx, group, commit, segments, joining=joining),
            locks=state.locks(group, commit),
        )

    lead(held.token, 9, finished=True)
    claim = catalog.claims.take(group, state.claim_unit(group, unit), "w")
    wait_until(lambda: catalog.leases.get(name) is None, "the lease to run out")
    lead(held.token, 9)  # it still counts: nobody has taken it over
    catalog.write(
        lambda tx: state.seek(tx, group, {unit: (SEGMENT, Progress(4))}),
        locks=state.seek_locks(group, [unit]),
    )
    with pytest.raises(LeaseLost):
        lead(held.token, 10)
    with pytest.raises(Fenced):
        catalog.claims.check(claim)
    assert catalog.read(lambda tx: load(tx, group, SEGMENT)) == Progress(4)
    with pytest.raises(LeaseLost):
        catalog.write(lambda tx: leases.check(tx, name, held.token))


def test_progress_that_moves_is_told(catalog: Catalog, reopen: Callable[[], Catalog]) -> None:
    seen: list[Progress | None] = []
    there = reopen()
    with there.waiting(rows.channel("g")) as wait:
        for floor in range(1, 30):
            catalog.write(partial(join, group="g", places={1: Progress(floor)}), sync=False)
        while Progress(29) not in seen:
            assert wait(10), "the last move is told"
            seen.append(there.read(lambda tx: load(tx, "g", 1)))
