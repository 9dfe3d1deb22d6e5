"""Hostile calls of reader groups, epochs, regions and operations; see ``test_hostile_calls``."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import HeadraceError
from tests.api.test_client import PATIENCE_S
from tests.api.test_hostile_calls import Call, variations

EVENT = headrace.Event(subject="e.x", value=b"")
LETTERS: dict[str, Any] = {
    "group": "p/g", "ids": None, "reason": None, "key": None, "since": None, "until": None,
    "limit": 10,
}  # fmt: skip


class Opened:
    """What calls are made on."""

    def __init__(self, hr: headrace.Headrace, other: Path) -> None:
        self.hr = hr
        self.other = other
        self.number = 0

    async def prepare(self) -> None:
        hr = self.hr
        await hr.regions.name("eu")
        await hr.create_stream("s", ["s.>"])
        await hr.create_stream("p", ["p.>"], partitions=2)
        await hr.create_stream("e", ["e.>"], epochs=headrace.Epochs())
        await hr.create_stream("l", ["l.>"], epochs=headrace.Epochs(stored=False))
        await hr.groups.create_static("p", "g", max_members=2, members=["m"])
        await hr.publish("s.x", b"1", key="k")
        await self.made_anew()

    async def made_anew(self) -> headrace.ReaderGroup:
        """The reader group, whatever became of it."""
        try:
            return await self.hr.reader_groups.get("r")
        except HeadraceError:
            return await self.hr.reader_groups.create("r", streams=["s"])

    async def create(self, **given: Any) -> None:
        self.number += 1
        await self.hr.reader_groups.create(**({"name": f"r{self.number}"} | given))

    async def group(self, _call: str, **given: Any) -> None:
        await getattr(await self.made_anew(), _call)(**given)

    async def read(self, **given: Any) -> None:
        async with (await self.made_anew()).reader(**given):
            pass

    async def publisher(self, **given: Any) -> None:
        async with self.hr.epoch_publisher(**given):
            pass

    async def published(self, _call: str, **given: Any) -> None:
        async with self.hr.epoch_publisher("e", "fuzz") as publisher:
            await getattr(publisher, _call)(**given)

    async def within(self, **given: Any) -> None:
        async with self.hr.epoch_publisher("e", "fuzz") as publisher, self.hr.transaction() as tx:
            publisher.within(tx).append(**given)

    async def by_appender(self, **given: Any) -> None:
        async with (
            self.hr.epoch_publisher("e", "fuzz") as publisher,
            publisher.appender() as appender,
        ):
            await appender.append(**given)

    async def epochs(self, _live: bool = False, **given: Any) -> None:
        make = self.hr.live_epochs if _live else self.hr.epochs
        async with make(**given):
            pass

    async def live(self, **given: Any) -> None:
        async with self.hr.live_publisher(**given):
            pass

    async def lived(self, **given: Any) -> None:
        async with self.hr.live_publisher("l", "eu") as publisher:
            await publisher.append(**given)

    async def stream(self, **given: Any) -> None:
        self.number += 1
        name = f"n{self.number}"
        epochs = headrace.Epochs(**given)
        await self.hr.create_stream(name, [f"{name}.>"], epochs=epochs)
        await self.hr.delete_stream(name, force=True)

    async def link(self, **given: Any) -> None:
        await self.hr.regions.link(**({"catalog": self.other} | given))


def calls(on: Opened) -> list[Call]:
    """Public calls that came after those of ``test_hostile_calls``, with right arguments."""
    hr = on.hr
    groups, regions = hr.groups, hr.regions

    def of(method: Any, call: str) -> Any:
        return lambda **given: method(call, **given)

    return [
        ("reader_groups.create", on.create, {
            "name": "x", "streams": ["s"], "start": "earliest", "end": None, "filter": None,
            "retain": "positions", "checkpoint_every_s": None}),
        ("reader_groups.get", hr.reader_groups.get, {"name": "r"}),
        ("reader_groups.delete", hr.reader_groups.delete, {"name": "none", "force": True}),
        ("reader", on.read, {
            "name": "r1", "on_checkpoint": None, "on_assigned": None, "on_revoked": None,
            "lease_ttl_ms": 10_000, "heartbeat_ms": 1000, "max_pending": 10, "balance_ms": 100}),
        ("checkpoint", of(on.group, "checkpoint"), {"name": "c", "timeout_s": 0.01}),
        ("cut", of(on.group, "cut"), {"timeout_s": 0.01}),
        ("cancel_checkpoint", of(on.group, "cancel_checkpoint"), {"name": None}),
        ("configure reader group", of(on.group, "configure"), {
            "retain": None, "checkpoint_every_s": None, "checkpoints_kept": None,
            "checkpoints_outstanding": None}),
        ("add_streams", of(on.group, "add_streams"), {"streams": ["p"], "start": "earliest"}),
        ("drop_streams", of(on.group, "drop_streams"), {"streams": ["none"]}),
        ("offline", of(on.group, "offline"), {
            "reader": "r1", "positions": None, "rewind": False}),
        ("plan_reset", of(on.group, "plan_reset"), {"to": None}),
        ("reset", of(on.group, "reset"), {"to": None}),
        ("release", of(on.group, "release"), {"cut": {"s/0": 0}}),
        ("Epochs", on.stream, {"length": 1, "stored": True, "publishers": ()}),
        ("epoch_publisher", on.publisher, {
            "stream": "e", "name": "eu", "start": None, "standby": False, "recover": "rollback",
            "lease_ttl_ms": 5000}),
        ("epoch append", of(on.published, "append"), {
            "time": 2**40, "data": EVENT, "advance_to": None, "producer": None, "sequence": None}),
        ("epoch publish", of(on.published, "publish"), {
            "time": 2**40, "subject": "e.x", "value": b"", "key": None, "headers": None,
            "timestamp": None, "advance_to": None}),
        ("advance_to", of(on.published, "advance_to"), {"frontier": 0}),
        ("hold", of(on.published, "hold"), {"time": 2**40}),
        ("within", on.within, {"time": 2**40, "data": EVENT, "advance_to": None}),
        ("epoch appender", on.by_appender, {"time": 2**40, "data": EVENT, "advance_to": None}),
        ("epochs", on.epochs, {
            "streams": "e", "mode": "whole", "start": "open", "until": None, "name": None,
            "segments": None, "at_least": False, "standby": False, "lease_ms": 10_000,
            "expiry_ms": None}),
        ("epoch_status", hr.epoch_status, {"stream": "e"}),
        ("epoch_decisions", hr.epoch_decisions, {"stream": "e", "limit": 1}),
        ("forget_epoch_subscription", hr.forget_epoch_subscription, {"name": "none"}),
        *((name, getattr(hr, name), {"stream": "e", "publisher": "none"})
          for name in ("rollback_publisher", "release_publisher")),
        ("abort_epochs", hr.abort_epochs, {"stream": "s", "publisher": "none", "reason": "x"}),
        ("live_publisher", on.live, {"stream": "l", "name": "eu", "start": None}),
        ("live append", on.lived, {"time": 2**40, "data": EVENT, "advance_to": None}),
        ("live_epochs", lambda **given: on.epochs(_live=True, **given), {
            "stream": "l", "mode": "whole", "until": None, "policy": "block", "batches_max": 1,
            "on_loss": "raise", "when_full": "give up"}),
        ("seek", hr.seek, {"group": "p/g", "to": "earliest", "units": None, "dry_run": True}),
        ("dead_letters", hr.dead_letters, dict(LETTERS)),
        ("dead_letter_reasons", hr.dead_letter_reasons, {"group": "p/g"}),
        ("put_back", hr.put_back, LETTERS | {"lives_max": 3, "dry_run": True}),
        ("discard", hr.discard, LETTERS | {"dry_run": True}),
        ("find_key", hr.find_key, {"key": "k", "stream": None, "scan_events": 10}),
        ("fetch", hr.fetch, {"position": headrace.Position("s", 0, 0)}),
        ("plan_trim", hr.plan_trim, {"stream": "s", "before": None}),
        ("groups.get", groups.get, {"stream": "p/g"}),
        ("groups.explain", groups.explain, {"stream": "p/g", "limit": 1}),
        ("groups.lag", groups.lag, {"stream": "p/g"}),
        ("groups.members", groups.members, {"name": "p/g"}),
        ("groups.decisions", groups.decisions, {"name": "p/g", "limit": 1}),
        ("regions.link", on.link, {
            "stream": "p", "region": "us", "store": None, "credentials": None, "writers": "all",
            "backfill": "all", "one_sided": False, "here": "eu"}),
        ("regions.unlink", regions.unlink, {"stream": "none"}),
        ("regions.enable", regions.enable, {
            "stream": "p", "group": "g", "home": None, "eager": False, "adopt": None}),
        ("regions.disable", regions.disable, {"stream": "p", "group": "none"}),
        ("regions.switch", regions.switch, {
            "stream": "p", "group": "g", "to": "us", "timeout_s": 0.01, "dry_run": True}),
        ("regions.fail_over", regions.fail_over, {"lost": "us", "force": False, "dry_run": True}),
        ("regions.check", regions.check, {"stream": "p", "deep": False}),
        *((f"regions.{name}", getattr(regions, name), {"region": "us"})
          for name in ("pause", "resume", "rejoin")),
        ("regions.unsynced", regions.unsynced, {"stream": "p", "group": "g"}),
        ("regions.name", regions.name, {"name": "eu"}),
    ]  # fmt: skip


async def fuzz(on: Opened, part: int, parts: int) -> list[str]:
    wrong: list[str] = []
    await on.prepare()
    for name, call, right in calls(on)[part::parts]:
        rng = random.Random(name)
        for arguments in variations(right, rng, 10):
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await call(**arguments)
            except HeadraceError:
                continue
            except Exception as error:
                wrong.append(f"{name}: {type(error).__name__}: {error!s:.100} ({arguments!r:.200})")
    assert (await on.hr.stream("s")).name == "s"
    assert await on.hr.reader_groups.list()
    assert await on.hr.groups.all()
    return wrong


PARTS = 6


@pytest.mark.parametrize("part", range(PARTS))
def test_a_wrong_argument_is_named_by_an_error_of_headrace(tmp_path: Path, part: int) -> None:
    async def work() -> list[str]:
        async with headrace.open(tmp_path / "us") as other:
            await other.create_stream("p", ["p.>"], partitions=2)
            await other.regions.name("us")
        async with headrace.open(tmp_path / "eu", housekeeping=False) as hr:
            return await fuzz(Opened(hr, tmp_path / "us"), part, PARTS)

    wrong = asyncio.run(work())
    assert not wrong, f"{len(wrong)} calls:\n" + "\n".join(wrong[:60])
