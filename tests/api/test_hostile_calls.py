"""Hostile calls of the public API: a wrong argument is named, whatever it is and wherever it goes.

Each argument of each call is replaced by each of many values that people do pass, and then two at
a time by chance.  A call may work; else its error is Headrace's own, never one from deep inside.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace
import headrace.sync
from headrace.errors import HeadraceError
from headrace.groups.shared.core.settings import Balance, LeaderSettings
from tests.api.test_client import PATIENCE_S

HOSTILE: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**400, 1.5, -0.0, math.nan, math.inf),
    *("", " ", "s", "a\0b", "\ud800", "é" * 300, "x" * 5000, "*", ">", "a..b", "$share/", "now"),
    *("$share/g/s.>", "$share/g", "s.>", "latest", "9999-99-99", "../..", "%s%n", "a\nb"),
    *(b"", b"\0\xff", bytearray(b"x"), memoryview(b"x"), (), [], {}, set(), [None], ["a\0b"]),
    *([[]], [1.5], [2**70], ["\ud800"], [b"x"], {0: 0}, {"a": 1}, {0: None}, {2**70: 0}, {0: 1.5}),
    *({"m": [0]}, {"m": None}, {None: [0]}, [("m", [2**70])], [("m",)], [(0, 2**32)], (1, 2)),
    *(datetime(1, 1, 1), datetime.max.replace(tzinfo=UTC), timedelta(1), Decimal("NaN")),
    *(object(), object, len, Path("x"), Path("a\0b"), iter([1]), pa.table({"a": [1]}), pa.nulls(2)),
    headrace.Event(subject="s.x", value=b""),
    headrace.Event(subject=None, value=None),  # type: ignore[arg-type]
    headrace.Event(subject="s.x", value=b"", headers={"a": 1}, epoch=(None,)),  # type: ignore[dict-item, arg-type]
    headrace.Limits(age_s=math.nan),  # type: ignore[arg-type]
    headrace.Limits(bytes="x", events=-1),  # type: ignore[arg-type]
    headrace.Groups(keep=None, cap=headrace.Limits(events=1.5)),  # type: ignore[arg-type]
    headrace.ByEvents(target_per_s="x"),  # type: ignore[arg-type]
    headrace.ByBytes(target_per_s=2**70, factor=0),
    headrace.CompactionPolicy(),
    LeaderSettings(),
)

Call = tuple[str, Callable[..., Awaitable[Any]], dict[str, Any]]


class Given:
    """What calls are made on: an open log with a stream, groups, a session and deliveries."""

    def __init__(self, hr: headrace.Headrace) -> None:
        self.hr = hr
        self.number = 0

    async def made(self, make: Callable[..., Any], **given: Any) -> None:
        """Something that is entered, and left."""
        async with make(**given):
            pass

    async def read(self, **given: Any) -> None:
        async with asyncio.timeout(5), self.hr.read(**given) as reading:
            async for _ in reading:
                pass

    async def transaction(self, **given: Any) -> None:
        async with self.hr.transaction(producer=given.pop("producer", None)) as tx:
            tx.publish(**given)

    async def transaction_append(self, **given: Any) -> None:
        async with self.hr.transaction() as tx:
            tx.append(**given)

    async def append_by_appender(self, stream: Any, data: Any) -> None:
        async with self.hr.appender(stream) as appender:
            await appender.append(data)

    async def subscribe(self, **given: Any) -> None:
        async with self.hr.session() as session:
            await session.subscribe(**given)

    async def unsubscribe(self, text: Any) -> None:
        async with self.hr.session() as session:
            await session.subscribe("s.>")
            await session.unsubscribe(text)

    async def answer(self, how: str, *given: Any) -> None:
        await self.hr.publish("s.x", b"", key="k")
        async with self.hr.session() as session:
            await session.subscribe("s.>", start="earliest")
            async for delivery in session:
                await getattr(delivery, how)(*given)
                break

    async def declared(self, **given: Any) -> None:
        self.number += 1
        await self.hr.shared_groups.declare(**({"group": f"g{self.number}"} | given))


def calls(given: Given) -> list[Call]:
    """Every public call, with arguments that are right."""
    hr = given.hr
    groups, shared = hr.groups, hr.shared_groups
    event = headrace.Event(subject="s.x", value=b"")
    one: dict[str, Any] = {"stream": "p", "group": "g"}
    return [
        ("publish", hr.publish, {
            "subject": "s.x", "value": b"", "key": "k", "headers": None, "timestamp": None,
            "epoch": None, "producer": None, "sequence": None}),
        ("publish once", hr.publish, {
            "subject": "s.x", "value": b"", "producer": "p", "sequence": 0}),
        ("append", hr.append, {"stream": "s", "data": [event], "expected_heads": None}),
        ("append once", hr.append, {"stream": "s", "data": event, "producer": "p", "sequence": 0}),
        ("appender", given.append_by_appender, {"stream": "s", "data": event}),
        ("transaction", given.transaction, {
            "subject": "s.x", "value": b"", "key": None, "headers": None, "timestamp": None,
            "epoch": None, "producer": None}),
        ("append in one", given.transaction_append, {
            "stream": "s", "data": [event], "expected_heads": None}),
        ("create_stream", hr.create_stream, {
            "name": "n", "subjects": ["n.>"], "segments": 1, "key_tokens": (), "retention": None,
            "scaling": None, "partitions": 0}),
        ("configure_stream", hr.configure_stream, {
            "name": "s", "retention": None, "scaling": None}),
        ("streams", hr.streams, {"internal": False}),
        ("stream", hr.stream, {"name": "s"}),
        ("delete_stream", hr.delete_stream, {"name": "none", "force": False}),
        ("read", given.read, {
            "stream": "s", "start": "earliest", "until": None, "subject": None, "segments": None,
            "limit": 5, "on_damaged": None}),
        ("split", hr.split, {"stream": "s", "segment": 99, "into": 2}),
        ("merge", hr.merge, {"stream": "s", "segments": [98, 99]}),
        ("retile", hr.retile, {"stream": "s", "segments": [99], "ranges": [(0, 1)]}),
        ("autoscale", hr.autoscale, {"stream": "s", "dry_run": True}),
        ("trim", hr.trim, {"stream": "s", "before": None}),
        ("compact", hr.compact, {"stream": "s", "policy": None, "dry_run": True}),
        ("set_compaction", hr.set_compaction, {"stream": "s", "policy": None}),
        ("sweep", hr.sweep, {"older_than_s": 1e9, "dry_run": True}),
        ("session", lambda **a: given.made(hr.session, **a), {
            "name": "w", "persistent": None, "expiry_ms": 10_000, "options": None}),
        ("subscribe", given.subscribe, {"text": "s.>", "start": "now"}),
        ("unsubscribe", given.unsubscribe, {"text": "s.>"}),
        ("nack", lambda **a: given.answer("nack", *a.values()), {"delay_ms": 0, "reason": ""}),
        ("reject", lambda **a: given.answer("reject", *a.values()), {"reason": ""}),
        ("sessions", hr.sessions, {}),
        ("remove_session", hr.remove_session, {"name": "none", "force": False}),
        ("join", lambda **a: given.made(hr.join, **a), {
            **one, "member": "m", "pin_ttl_ms": 1000, "max_pending": 10, "ack_wait_ms": 1000,
            "prefetch_bytes": 10_000, "max_deliveries": 0, "durable_acks": True}),
        ("create_static", groups.create_static, {
            "stream": "p", "group": "h", "max_members": 2, "filter": "", "members": ["m"],
            "mappings": (), "start": "earliest"}),
        ("create_elastic", groups.create_elastic, {
            "stream": "s", "group": "e", "max_members": 2, "filter": "s.*", "wildcards": [1],
            "max_buffered": 0, "members": ["m"], "mappings": (), "distribution": "blocks",
            "start": "earliest"}),
        *((name, getattr(groups, name), dict(one)) for name in (
            "get", "active", "explain", "lag")),
        ("delete", groups.delete, {"stream": "p", "group": "none"}),
        ("list", groups.list, {"stream": None, "kind": None}),
        ("add_members", groups.add_members, {**one, "members": ["n"]}),
        ("drop_members", groups.drop_members, {**one, "members": ["n"]}),
        ("set_mappings", groups.set_mappings, {**one, "mappings": {"m": [0]}}),
        ("delete_mappings", groups.delete_mappings, {**one, "members": None}),
        ("partitions", groups.partitions, {**one, "member": "m"}),
        ("step_down", groups.step_down, {**one, "member": "m"}),
        ("declare", given.declared, {
            "group": "x", "filter": "s.>", "start": "now", "balance": Balance.LAG}),
        ("configure", shared.configure, {"group": "d", "stall_timeout_ms": 1000}),
        *((f"shared {name}", getattr(shared, name), {"group": "d", "filter": None})
          for name in ("get", "explain")),
        ("shared delete", shared.delete, {"group": "none", "filter": None}),
        ("shared session", shared.session, {"name": "none"}),
    ]  # fmt: skip


def variations(right: dict[str, Any], rng: random.Random, pairs: int) -> Iterator[dict[str, Any]]:
    for name in right:
        for value in HOSTILE:
            yield right | {name: value}
    for _ in range(pairs if len(right) > 1 else 0):
        first, second = rng.sample(sorted(right), 2)
        yield right | {first: rng.choice(HOSTILE), second: rng.choice(HOSTILE)}


async def fuzz(hr: headrace.Headrace, part: int, parts: int) -> list[str]:
    wrong: list[str] = []
    given = Given(hr)
    await hr.create_stream("s", ["s.>"])
    await hr.create_stream("p", ["p.>"], partitions=2)
    await hr.groups.create_static("p", "g", max_members=2, members=["m"])
    await hr.shared_groups.declare("d", "s.>")
    for name, call, right in calls(given)[part::parts]:
        rng = random.Random(name)
        for arguments in variations(right, rng, 20):
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await call(**arguments)
            except HeadraceError:
                continue
            except Exception as error:
                wrong.append(f"{name}: {type(error).__name__}: {error!s:.100} ({arguments!r:.200})")
    assert (await hr.stream("s")).name == "s"
    assert [each.name.group for each in await hr.groups.list("p")][:1] == ["g"]
    assert await hr.shared_groups.list()
    assert await hr.sessions() is not None
    return wrong


@pytest.mark.parametrize("part", range(6))
def test_a_wrong_argument_is_named_by_an_error_of_headrace(tmp_path: Path, part: int) -> None:
    async def work() -> list[str]:
        async with headrace.open(tmp_path / "d", housekeeping=False) as hr:
            return await fuzz(hr, part, 6)

    wrong = asyncio.run(work())
    assert not wrong, f"{len(wrong)} calls:\n" + "\n".join(wrong[:40])


def records() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Options and settings, each with each of its fields wrong, one after the other."""
    kinds: tuple[tuple[type, dict[str, Any]], ...] = (
        *((headrace.ConsumerOptions, {}), (headrace.DeliveryConfig, {}), (LeaderSettings, {})),
        *((headrace.SharedOptions, {}), (headrace.CompactionPolicy, {}), (headrace.Limits, {})),
        *((headrace.ByEvents, {"target_per_s": 1}), (headrace.ByBytes, {"target_per_s": 1})),
        *((headrace.Groups, {}), (headrace.Event, {"subject": "s.x", "value": b""})),
    )
    for kind, right in kinds:
        for field in kind.__struct_fields__:  # type: ignore[attr-defined]
            for value in HOSTILE:
                yield kind.__name__, partial(kind, **(right | {field: value}))


async def use(hr: headrace.Headrace, record: Any) -> None:
    match record:
        case headrace.ConsumerOptions():
            hr.session(options=record)
        case headrace.DeliveryConfig():
            hr.session(options=headrace.ConsumerOptions(delivery=record))
        case LeaderSettings():
            await hr.shared_groups.declare("d", "s.>", settings=record)
        case headrace.SharedOptions():
            headrace.open("d", shared=record)
        case headrace.CompactionPolicy():
            await hr.compact("s", record, dry_run=True)
            await hr.set_compaction("s", record)
        case headrace.Limits() | headrace.Groups():
            await hr.configure_stream("s", retention=record)
        case headrace.ByEvents() | headrace.ByBytes():
            await hr.configure_stream("s", scaling=record)
        case headrace.Event():
            await hr.append("s", [record])


def test_a_wrong_option_is_named_by_an_error_of_headrace(tmp_path: Path) -> None:
    wrong: list[str] = []

    async def work() -> None:
        async with headrace.open(tmp_path / "d", housekeeping=False) as hr:
            await hr.create_stream("s", ["s.>"])
            await hr.shared_groups.declare("d", "s.>")
            for name, make in records():
                try:
                    await use(hr, make())
                except HeadraceError:
                    continue
                except Exception as error:
                    wrong.append(f"{name}: {type(error).__name__}: {error!s:.100} {make!r:.200}")
            assert await hr.streams()
            assert await hr.shared_groups.list()

    asyncio.run(work())
    assert not wrong, f"{len(wrong)} records:\n" + "\n".join(wrong[:40])


def test_blocking_calls_name_a_wrong_argument_too(tmp_path: Path) -> None:
    wrong: list[str] = []
    with headrace.sync.open(tmp_path / "d") as hr:
        hr.create_stream("s", ["s.>"])
        event = headrace.Event(subject="s.x", value=b"")
        made: list[tuple[str, Callable[..., object], dict[str, Any]]] = [
            ("publish", hr.publish, {
                "subject": "s.x", "value": b"", "key": "k", "headers": None, "timestamp": None,
                "epoch": None}),
            ("publish once", hr.publish, {
                "subject": "s.x", "value": b"", "producer": "p", "sequence": 0}),
            ("append", hr.append, {
                "stream": "s", "data": [event], "producer": "p", "sequence": 0,
                "expected_heads": None}),
            ("appender", lambda stream, data: hr.appender(stream).append(data), {
                "stream": "s", "data": event}),
            ("read", lambda **a: list(hr.read(**a)), {"stream": "s", "start": "latest"}),
        ]  # fmt: skip
        for name, call, right in made:
            for arguments in variations(right, random.Random(name), 10):
                try:
                    call(**arguments)
                except HeadraceError:
                    continue
                except Exception as error:
                    wrong.append(f"{name}: {type(error).__name__}: {error} ({arguments!r:.200})")
    assert not wrong, f"{len(wrong)} calls:\n" + "\n".join(wrong[:40])
