"""What is stored can be read; what cannot be read costs one error that names it."""

from __future__ import annotations

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
            wait_until(lambda: hr.shared_groups.get("g").leader, "a leader's status")
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
