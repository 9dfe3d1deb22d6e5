"""A stream whose configuration cannot be read: it costs an error, and can be removed."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace.sync
from headrace.catalog import Catalog
from headrace.errors import UnreadableRecordError
from tests.cli.conftest import Cli


def damage(catalog: Catalog, name: str, config: bytes | str) -> None:
    catalog.write(
        lambda tx: tx.execute("UPDATE streams SET config = ? WHERE name = ?", (config, name))
    )


@pytest.mark.parametrize("config", [b'{"subjexts":[]}', b"\xff", '{"subjexts":[]}'])
def test_a_stream_that_cannot_be_read_costs_nobody_else_and_is_removed(
    tmp_path: Path, config: bytes | str
) -> None:
    with headrace.sync.open(tmp_path / "d") as hr:
        hr.create_stream("good", ["good.>"])
        hr.create_stream("bad", ["bad.>"], segments=2)
        hr.publish("bad.x", b"1")
        damage(hr.client.log.catalog, "bad", config)
    with headrace.sync.open(tmp_path / "d") as hr:
        assert [stream.name for stream in hr.streams()] == ["good"]
        hr.publish("good.x", b"1")
        with pytest.raises(UnreadableRecordError, match="headrace stream rm bad"):
            hr.stream("bad")
        hr.delete_stream("bad")
        hr.create_stream("bad", ["bad.>"])
        assert hr.publish("bad.x", b"2").offset == 0


@pytest.mark.parametrize("force", [False, True])
def test_the_command_line_removes_a_stream_that_cannot_be_read(
    tmp_path: Path, cli: Cli, *, force: bool
) -> None:
    place = ("--catalog", str(tmp_path / "d"))
    with headrace.sync.open(tmp_path / "d") as hr:
        hr.create_stream("bad", ["bad.>"], partitions=2)
        hr.groups.create_static("bad", "g", max_members=2, members=["m"])
        damage(hr.client.log.catalog, "bad", b"{}")
    removed = cli(*place, "stream", "rm", "bad", "--yes", *(("--force",) if force else ()))
    assert removed.status == (0 if force else 1), removed.err
    if not force:
        assert "static group 'g'" in removed.err
    shown = cli(*place, "stream", "ls", "--json")
    assert shown.json == []
    assert ("left out" in shown.err) is not force
