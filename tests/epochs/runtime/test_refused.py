"""What is refused with words of its own, and changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

import headrace
from headrace.epochs.core import ledger
from headrace.epochs.core.commits import JoinStream
from headrace.epochs.core.times import INTEGERS
from headrace.epochs.runtime.publisher import EpochPublisher
from headrace.errors import (
    EpochStreamEndedError,
    EpochStreamError,
    FrontierError,
    HeadraceError,
    InternalStreamError,
    InvalidEventError,
    InvalidPositionError,
    InvalidTokenError,
    NoEpochsError,
    NotStoredError,
    OtherEpochsError,
    PublisherLimitError,
    TimeShapeError,
    UnknownSegmentError,
)
from tests.epochs.runtime.test_publisher import lines, run, table


def test_the_publisher_after_the_last_one() -> None:
    state = ledger.begin("a", INTEGERS)[0]
    full = msgspec.structs.replace(state, publishers=ledger.PUBLISHERS_MAX)
    with pytest.raises(PublisherLimitError, match="1024 publishers, which is the most"):
        ledger.decide(full, None, JoinStream("late", 1))


def test_an_advance_that_gives_nothing_up_in_a_partial_order(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.epoch_publisher("a", "eu") as pub:
            await pub.advance_to([(3, 0), (0, 4)])
            before = await lines(hr)
            for wanted in ((2, 3), [(2, 0)], [(3, 0), (0, 3)]):
                with pytest.raises(FrontierError, match="forward only"):
                    await pub.advance_to(wanted)
            with pytest.raises(TimeShapeError):
                await pub.advance_to(5)
            assert (await lines(hr), pub.frontiers) == (before, ((0, 4), (3, 0)))

    run(catalog_url, work, length=2)


@pytest.mark.parametrize("how", ["closed", "aborted"])
def test_whatever_is_published_to_a_stream_that_has_ended(catalog_url: str, how: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.epoch_publisher("a", "eu") as pub:
            await pub.append(0, table(1), advance_to=1)
            await (pub.close() if how == "closed" else pub.abort("broken"))
        before = await lines(hr)
        for name in ("eu", "us"):
            with pytest.raises(EpochStreamEndedError, match=f"it is {how}"):
                await hr.epoch_publisher("a", name).__aenter__()
        assert await lines(hr) == before

    run(catalog_url, work)


@pytest.mark.parametrize("how", ["left", "closed", "aborted"])
def test_whatever_a_publisher_does_that_has_ended(catalog_url: str, how: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.epoch_publisher("a", "other"), hr.epoch_publisher("a", "eu") as pub:
            await pub.append(0, table(1), advance_to=1)
            kept = await pub.hold(4)
            appender = pub.appender()
            await {"left": pub.leave, "closed": pub.close, "aborted": _abort(pub)}[how]()
            before, told = await lines(hr), f"has {how}"
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: pub.append(5, table(1)),
                lambda: pub.publish(5, "a.b", b""),
                lambda: pub.advance_to(6),
                lambda: pub.hold(5),
                lambda: kept.downgrade(5),
                lambda: kept.drop(),
                lambda: appender.append(5, table(1)),
                lambda: appender.advance_to(6),
                pub.rollback,
                pub.close,
                lambda: pub.abort("again"),
            ]
            for call in calls:
                with pytest.raises(HeadraceError, match=told):
                    await call()
            assert await lines(hr) == before

    run(catalog_url, work)


def _abort(pub: EpochPublisher) -> Callable[[], Awaitable[object]]:
    return lambda: pub.abort("the source is gone")


def test_epochs_of_a_stream_that_is_there_are_as_they_were_chosen(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("plain", ["plain.>"])
        for name, wanted in (("plain", headrace.Epochs()), ("a", None), ("a", headrace.Epochs(2))):
            with pytest.raises(OtherEpochsError, match="epochs are chosen when a stream is creat"):
                await hr.create_stream(name, [f"{name}.>"], epochs=wanted)
        assert (await hr.stream("plain")).config.epochs is None

    run(catalog_url, work)


def test_tokens_that_are_cut_mistyped_or_of_another_place(catalog_url: str, tmp_path: Path) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("b", ["b.>"], epochs=headrace.Epochs())
        async with hr.epoch_publisher("a", "eu") as pub:
            await pub.append(0, table(1), advance_to=1)
        async with hr.epochs("a", start="earliest") as epochs:
            token = (await anext(aiter(epochs))).token
        changed = ("B" if token[20] != "B" else "C").join((token[:20], token[21:]))
        for stream, bad in (("a", token[:-6]), ("a", changed), ("b", token)):
            with pytest.raises(InvalidTokenError):
                async with hr.epochs(stream, start=bad):
                    pass
        async with headrace.open(tmp_path / "other", housekeeping=False) as other:
            await other.create_stream("a", ["a.>"], segments=4, epochs=headrace.Epochs())
            with pytest.raises(InvalidTokenError):
                async with other.epochs("a", start=token):
                    pass

    run(catalog_url, work)


def test_a_stream_that_stores_nothing_is_not_read_or_resumed(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("live", ["live.>"], epochs=headrace.Epochs(stored=False))
        for start in ("open", "earliest", 0):
            with pytest.raises(NoEpochsError, match="stores nothing"):
                async with hr.epochs("live", start=start):
                    pass
        with pytest.raises(NotStoredError):
            await hr.epoch_status("live")
        with pytest.raises(NotStoredError, match=r"hr\.live_epochs"):
            await anext(hr.read("live"))
        with pytest.raises(EpochStreamError, match=r"hr\.live_publisher"):
            await hr.append("live", headrace.Event(subject="live.a", value=b""))
        with pytest.raises(TypeError):
            hr.live_epochs("live", start=0)

    run(catalog_url, work)


def test_segments_that_would_give_nothing(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.epoch_publisher("a", "eu") as pub:
            await pub.append(0, table(20), advance_to=1)
        with pytest.raises(InvalidPositionError, match="would give nothing"):
            async with hr.epochs("a", name="n", segments=[]):
                pass
        with pytest.raises(UnknownSegmentError, match="a has no segment 77"):
            async with hr.epochs("a", name="n", segments=[0, 77]):
                pass
        assert not await hr.epoch_subscriptions()
        rows = 0
        for number in range(4):
            async with hr.epochs("a", start="earliest", until=1, segments=[number]) as epochs:
                rows += sum([epoch.rows async for epoch in epochs])
        assert rows == 20

    run(catalog_url, work)


def test_whatever_people_do_to_the_progress_log(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.epoch_publisher("a", "eu") as pub:
            await pub.append(0, table(3), advance_to=1)
        before = await lines(hr)
        for before_what in ({0: 1}, None):
            with pytest.raises(InternalStreamError, match="not trimmed by hand"):
                await hr.trim("a.epochs", before_what)
        with pytest.raises(InternalStreamError, match="not deleted by hand"):
            await hr.delete_stream("a.epochs")
        with pytest.raises(InvalidEventError, match="belongs to an epoch stream"):
            await hr.append("a.epochs", headrace.Event(subject="line", value=b""))
        assert await lines(hr) == before

    run(catalog_url, work)
