"""Keys that are damaged: lists go on without the record, and `headrace catalog mend` mends it.

The keys of all kinds of records are damaged at once, by SQL in a real catalog: on SQLite with bytes
that are not UTF-8 as well, which PostgreSQL never stores.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import headrace.sync
from headrace.catalog import Catalog, Tx, open_catalog
from headrace.catalog.keys import shown
from tests.cli.conftest import Cli
from tests.cli.test_broken_records import make

ENTRIES = {
    "static-consumer-groups": ("good.bad", ("group", "static", "ls")),
    "elastic-consumer-groups": ("s.bad", ("group", "elastic", "ls")),
    "shared-groups": ("bad:good.>", ("group", "shared", "ls")),
    "sessions": ("bad", ("session", "ls")),
    "region-links": ("bad", ("region", "status")),
    "region-groups": ("good.bad", ("region", "status")),
    "node-tokens": ("bad", ("token", "ls")),
}
ROWS = {
    "streams": ("bad", ("stream", "ls")),
    "reader-groups": ("bad", ("reader", "ls")),
    "epoch-publishers": ("bad", ("epoch", "status", "e")),
    "epoch-subscriptions": ("bad", ("epoch", "subscriptions")),
}


def damaged(key: str, how: str) -> bytes:
    at = key.index("bad")
    turned = {"no UTF-8": b"b\xe1d", "a control character": b"b\x01d"}[how]
    return key[:at].encode() + turned + key[at + 3 :].encode()


def damage(catalog: Catalog, how: str) -> None:
    def run(tx: Tx) -> None:
        for bucket, (key, _) in ENTRIES.items():
            sql = f"UPDATE entries SET key = {new} WHERE bucket = ? AND key = ?"
            assert tx.execute(sql, (text(key), bucket, key)) == 1, bucket
        for table, (name, _) in ROWS.items():
            sql = f"UPDATE {table.replace('-', '_')} SET name = {new} WHERE name = ?"
            assert tx.execute(sql, (text(name), name)) == 1, table

    new = "CAST(? AS TEXT)" if how == "no UTF-8" else "?"

    def text(key: str) -> bytes | str:
        found = damaged(key, how)
        return found if how == "no UTF-8" else found.decode()

    catalog.write(run)


def others_go_on(url: str) -> None:
    """Groups and sessions that are not damaged: listed, joined and consumed from."""
    with headrace.sync.open(url, housekeeping=False) as hr:
        assert [each.name.group for each in hr.groups.list()] == ["good", "good"]
        assert [each.properties.group for each in hr.shared_groups.list()] == ["good"]
        assert [each.record.name for each in hr.sessions()] == ["good"]
        assert [each.name for each in hr.reader_groups.list()] == ["good"]
        hr.publish("s.x", b"1")
        with hr.session("good") as session:
            assert next(iter(session)).value == b"1"
        with hr.session() as session:
            session.subscribe("s.>")


@pytest.mark.parametrize(
    ("catalog_url", "how"),
    [
        ("sqlite", "no UTF-8"),
        ("sqlite", "a control character"),
        ("postgres", "a control character"),
    ],
    indirect=["catalog_url"],
)
def test_a_damaged_key_costs_nobody_else_and_is_mended_by_the_command_that_is_named(
    tmp_path: Path, catalog_url: str, cli: Cli, how: str
) -> None:
    make(catalog_url, tmp_path / "us")
    place = ("--catalog", catalog_url)
    catalog = open_catalog(catalog_url)
    damage(catalog, how)
    for records, (key, listing) in (ENTRIES | ROWS).items():
        listed = cli(*place, *listing)
        assert listed.status == 0, (listing, listed.err)
        assert "good" in listed.out, (listing, listed.out)
        wanted = shown(damaged(key, how).decode(errors="backslashreplace"))
        assert f"headrace catalog mend {records} {shlex.quote(wanted)}" in listed.err, listed.err
    deep = cli(*place, "doctor", "--deep", "--json").json
    found = "".join(check["found"] for check in deep["checks"])
    for records in ENTRIES | ROWS:
        assert f"headrace catalog mend {records} " in found
    assert cli(*place, "status").status in (0, 1)
    others_go_on(catalog_url)
    said = "".join(cli(*place, *listing).err for _, listing in (ENTRIES | ROWS).values())
    commands = set(re.findall(r"headrace (catalog mend \S+ \S+) NAME", said))
    assert len(commands) == len(ENTRIES | ROWS)
    for command in commands:
        words = shlex.split(command)
        name = (ENTRIES | ROWS)[words[2]][0]
        assert "already" in cli(*place, *words, name.replace("bad", "good")).err
        mended = cli(*place, *words, name, "--json")
        assert mended.json["name"] == name, mended.err
    for _, listing in (ENTRIES | ROWS).values():
        again = cli(*place, *listing)
        assert (again.status, "left out" in again.err) == (0, False), again.err
        assert "bad" in again.out
    catalog.close()


def test_a_record_under_another_key_is_removed_by_the_command_that_is_named(
    tmp_path: Path, cli: Cli
) -> None:
    place = ("--catalog", str(tmp_path / "d"))
    with headrace.sync.open(tmp_path / "d", housekeeping=False) as hr:
        hr.create_stream("s", ["s.>"])
        for name in ("bad", "good"):
            with hr.session(name, expiry_ms=1_000_000) as session:
                session.subscribe("s.>")
        hr.client.log.catalog.write(
            lambda tx: tx.execute("UPDATE entries SET key = 'bed' WHERE key = 'bad'")
        )
        assert [each.record.name for each in hr.sessions()] == ["good"]
    said = cli(*place, "session", "ls").err
    assert "of sessions cannot be read (what it holds is of 'bad')" in said
    assert cli(*place, "catalog", "mend", "sessions", "bed").status == 2  # nobody said yes
    assert cli(*place, "catalog", "mend", "sessions", "bed", "--yes").status == 0
    assert "left out" not in cli(*place, "session", "ls").err
    assert cli(*place, "catalog", "mend", "sessions", "bed", "--yes").status == 2
    assert cli(*place, "catalog", "mend", "streams", "s", "other").status == 2  # is not damaged
