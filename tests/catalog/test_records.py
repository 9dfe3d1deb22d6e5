"""What is stored can be read; what cannot be read costs one error that names it."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace.sync
from headrace.catalog import Tx
from headrace.catalog.streams import Limits
from headrace.errors import (
    InvalidConfigError,
    InvalidInputError,
    UnknownGroupError,
    UnknownSessionError,
    UnreadableRecordError,
)
from headrace.groups.partitioned.names import STATIC_BUCKET
from headrace.groups.shared import properties, sessions
from headrace.groups.shared.core.settings import BorrowerSettings, LeaderSettings
from headrace.groups.shared.runtime import directory
from tests.support import wait_until


def test_a_float_is_refused_where_an_integer_is_stored_and_nothing_is_changed(
    catalog_url: str,
) -> None:
    wrong: Any = dt.timedelta(days=1).total_seconds() * 1000
    with headrace.sync.open(catalog_url) as hr:
        hr.create_stream("s", ["s.>"])
        hr.create_stream("p", ["p.>"], partitions=2)
        hr.shared_groups.declare("g", "s.>")
        with pytest.raises(InvalidInputError, match="expiry_ms"), hr.session("a", expiry_ms=wrong):
            pass
        with pytest.raises(InvalidInputError, match="stall_timeout_ms"):
            hr.shared_groups.configure("g", stall_timeout_ms=wrong)
        scaling: Any = 1.5
        with pytest.raises(InvalidInputError, match="scale_for_members"):
            hr.shared_groups.configure("g", scale_for_members=scaling)
        members: Any = 2.0
        with pytest.raises(InvalidInputError, match="max_members"):
            hr.groups.create_static("p", "gx", max_members=members, members=["m"])
        with pytest.raises(InvalidConfigError, match="age_s"):
            hr.configure_stream("s", retention=Limits(age_s="a day"))  # type: ignore[arg-type]
        with hr.session("b"), hr.session():
            assert [each.record.name for each in hr.sessions() if each.record.persistent] == ["b"]
        assert [each.properties.group for each in hr.shared_groups.list()] == ["g"]
        assert hr.groups.list() == ()


@pytest.mark.parametrize("kind", [LeaderSettings, BorrowerSettings])
@pytest.mark.parametrize("value", [1.0, "1", None, True])
def test_settings_of_shared_groups_are_integers(kind: Any, value: object) -> None:
    with pytest.raises(InvalidInputError, match="resend_ms"):
        kind(resend_ms=value)


def test_a_record_that_cannot_be_read_costs_one_error_and_can_be_removed(
    catalog_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with headrace.sync.open(catalog_url) as hr:
        hr.create_stream("s", ["s.>"])
        hr.create_stream("p", ["p.>"], partitions=2)
        hr.shared_groups.declare("good", "s.>")
        hr.shared_groups.declare("bad", "s.>")
        hr.groups.create_static("p", "fine", max_members=2, members=["m"])
        hr.groups.create_static("p", "broken", max_members=2, members=["m"])
        entries = hr.client.log.catalog.entries
        entries.put(sessions.BUCKET, "bad", b'{"name": "bad", "expiry_ms": 1.5}')
        entries.put(properties.BUCKET, "bad:s.>", b'{"group": "bad"}')
        entries.put(STATIC_BUCKET, "p.broken", b'{"max-members": 2.5, "members": ["m"]}')
        with caplog.at_level(logging.WARNING), hr.session("good"):
            assert [each.record.name for each in hr.sessions()] == ["good"]
            assert [each.properties.group for each in hr.shared_groups.list()] == ["good"]
            assert [each.name.group for each in hr.groups.list()] == ["fine"]
        for text in ("session 'bad'", "shared group 'bad:s.>'", "group p.broken"):
            assert text in caplog.text
        with pytest.raises(UnreadableRecordError, match="session rm bad"), hr.session("bad"):
            pass
        hr.remove_session("bad")
        hr.shared_groups.delete("bad")
        hr.groups.delete("p", "broken")
        with hr.session("bad"):
            pass
        hr.remove_session("bad")
        with pytest.raises(UnknownSessionError):
            hr.remove_session("bad")
        with pytest.raises(UnknownGroupError):
            hr.groups.delete("p", "broken")
        hr.groups.create_static("p", "broken", max_members=2, members=["m"])


@pytest.mark.parametrize("damage", [b"", b"{", b"\x00\xff", b'{"peer": 5}', b"[1.5]"])
def test_damaged_notes_stop_nobody_and_are_written_anew(
    catalog_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    """Of addresses, leaders, decisions and compaction, damaged behind our back by SQL."""
    with headrace.sync.open(catalog_url, store=tmp_path / "store") as hr:
        hr.create_stream("s", ["s.>"])
        hr.create_stream("p", ["p.>"], partitions=2)
        hr.groups.create_static("p", "static", max_members=2, members=["m"])
        hr.set_compaction("s", headrace.CompactionPolicy())
        catalog = hr.client.log.catalog
        with hr.session("w") as session, hr.join("p", "static", "m"):
            session.subscribe("$share/g/s.>")
            wait_until(lambda: hr.shared_groups.get("g").members, "a leader's status")
            wait_until(lambda: hr.groups.explain("p", "static").decisions, "decisions")
        catalog.write(lambda tx: directory.register(tx, directory.Address("other", "h", 1)))
        buckets = (*(directory.BUCKET, properties.STATUS_BUCKET, "compaction"),)

        def break_all(tx: Tx) -> list[int]:
            sql = "UPDATE entries SET value = ? WHERE bucket = ? AND value IS NOT NULL"
            broken = [tx.execute(sql, (damage, bucket)) for bucket in buckets]
            return [*broken, tx.execute("UPDATE decisions SET record = ?", (damage,))]

        assert all(catalog.write(break_all))
        with caplog.at_level(logging.WARNING):
            assert hr.shared_groups.get("g").decisions == ()
            assert hr.shared_groups.list()
            assert hr.groups.explain("p", "static").decisions == ()
        for what in ("the status of shared group 'g:s.>'", "a decision about group 'p/static #1'"):
            assert what in caplog.text
        with pytest.raises(UnreadableRecordError, match="policy of stream 's'"):
            hr.compact("s")
        hr.set_compaction("s", None)
        hr.compact("s")
        with hr.session("w") as session, hr.join("p", "static", "m"):
            hr.publish("s.x", b"1")
            assert next(iter(session)).value == b"1"
            wait_until(lambda: hr.groups.explain("p", "static").decisions, "new decisions")
        assert hr.shared_groups.get("g").members == ()


DAMAGED = {
    "reader group": ("reader_groups", "config", "name = 'bad'"),
    "epoch publisher": ("epoch_publishers", "state", "name = 'bad'"),
    "subscription": ("epoch_subscriptions", "form", "name = 'bad'"),
    "frontier": ("epoch_subscriptions", "frontier", "name = 'bad'"),
    "epoch stream": ("epoch_streams", "state", "stream_id > 0"),
    "link": ("entries", "value", "bucket = 'region-links'"),
    "replicated group": ("entries", "value", "bucket = 'region-groups' AND key = 'p.bad'"),
    "progress": ("progress", "state", "group_name LIKE 'bad%'"),
}


async def with_two_of_each(hr: headrace.Headrace, other: Path) -> None:
    """A good one and a bad one of everything that has a name."""
    async with headrace.open(other) as there:
        await there.regions.name("us")
    await hr.regions.name("eu")
    await hr.create_stream("s", ["s.>"])
    await hr.create_stream("p", ["p.>"], partitions=1)
    await hr.create_stream("e", ["e.>"], epochs=headrace.Epochs())
    await hr.regions.link("p", "us", catalog=other, here="eu")
    for name in ("good", "bad"):
        await hr.reader_groups.create(name, streams=["s"])
        await hr.groups.create_static("p", name, max_members=1, members=["m"])
        await hr.regions.enable("p", name)
        async with hr.epoch_publisher("e", name) as publisher:
            await publisher.append(5, headrace.Event(subject="e.x", value=b""))
        async with hr.epochs("e", name=name, start="earliest"):
            pass
        async with hr.session() as session:
            await session.subscribe(f"$share/{name}/s.>", start="earliest")
            await hr.publish("s.x", b"1")
            await (await anext(aiter(session))).ack()


async def all_others(hr: headrace.Headrace) -> None:
    """Whatever has nothing to do with the bad ones."""
    await hr.groups.all()
    await hr.groups.lag_of_all()
    assert "good" in [each.name for each in await hr.reader_groups.list()]
    assert "good" in [each.name for each in await hr.epoch_subscriptions()]
    assert "good" in [each.properties.group for each in await hr.shared_groups.list()]
    await hr.regions.links()
    await hr.regions.status()
    async with hr.session("new"), (await hr.reader_groups.get("good")).reader("r"):
        await hr.publish("s.x", b"2")


@pytest.mark.parametrize("kind", DAMAGED)
def test_one_damaged_record_costs_nobody_else_anything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    table, column, where = DAMAGED[kind]

    async def main() -> None:
        async with headrace.open(tmp_path / "eu", housekeeping=False) as hr:
            await with_two_of_each(hr, tmp_path / "us")
            damage = f"UPDATE {table} SET {column} = ? WHERE {where}"
            assert hr.log.catalog.write(lambda tx: tx.execute(damage, (b"\xc1",)))
        async with headrace.open(tmp_path / "eu", housekeeping=False) as hr:
            with caplog.at_level(logging.WARNING):
                await all_others(hr)
            if kind == "epoch stream":
                with pytest.raises(UnreadableRecordError, match="epoch stream 'e'"):
                    await hr.epoch_status("e")
                return
            status = await hr.epoch_status("e")
            assert "good" in [each.name for each in status.publishers]
            async with hr.epoch_publisher("e", "good"), hr.epochs("e", name="good"):
                pass
            if kind in ("reader group", "subscription"):
                assert "bad' cannot be read" in caplog.text
            if kind == "reader group":
                with pytest.raises(UnreadableRecordError, match="headrace reader rm bad"):
                    await hr.reader_groups.get("bad")
                await hr.reader_groups.delete("bad")
                await hr.reader_groups.create("bad", streams=["s"])
            if kind in ("subscription", "frontier"):
                with pytest.raises(UnreadableRecordError, match="headrace epoch forget bad"):
                    await hr.epochs("e", name="bad").__aenter__()
                await hr.forget_epoch_subscription("bad")
                async with hr.epochs("e", name="bad"):
                    pass

    asyncio.run(asyncio.wait_for(main(), 60))
