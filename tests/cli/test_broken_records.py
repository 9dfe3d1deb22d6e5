"""Records that cannot be read: lists go on without them, and the command they name removes them.

Records are damaged behind the program's back, by SQL in a real catalog.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace.sync
from headrace.catalog import Catalog, open_catalog, replicas
from headrace.epochs.core import ledger
from headrace.epochs.core.ledger import PublisherState
from headrace.errors import UnreadableRecordError
from headrace.node.access import tokens
from tests.cli.conftest import Cli

NOT_MSGPACK = b"\xc1"


def damage(catalog: Catalog, sql: str, value: bytes = NOT_MSGPACK) -> None:
    assert catalog.write(lambda tx: tx.execute(sql, (value,))), sql


def make(place: str, other: Path) -> None:
    """A bad one and a good one of everything that has a name."""

    async def main() -> None:
        async with headrace.open(other) as there:
            await there.regions.name("us")
        async with headrace.open(place, housekeeping=False) as hr:
            await hr.regions.name("eu")
            await hr.create_stream("s", ["s.>"])
            await hr.create_stream("e", ["e.>"], epochs=headrace.Epochs())
            for name in ("good", "bad"):
                await hr.create_stream(name, [f"{name}.>"], partitions=1)
                await hr.regions.link(name, "us", catalog=other, here=str(other.parent))
                await hr.groups.create_static("good", name, max_members=1, members=["m"])
                await hr.regions.enable("good", name)
                await hr.shared_groups.declare(name, "good.>")
                await hr.regions.enable(f"$share/{name}/good.>")
                await hr.groups.create_elastic(
                    "s", name, max_members=2, filter="s.*", wildcards=[1]
                )
                tokens.create(hr.log.catalog, name, ("view",))
                group = await hr.reader_groups.create(name, streams=["s"])
                async with group.reader("r"):
                    pass
                async with hr.epochs("e", name=name, start="earliest"):
                    pass
                async with hr.session(name) as session:
                    await session.subscribe("s.>")
                async with hr.epoch_publisher("e", name) as publisher:
                    await publisher.append(5, headrace.Event(subject="e.x", value=name.encode()))

    asyncio.run(asyncio.wait_for(main(), 60))


ENTRY = "UPDATE entries SET value = ? WHERE bucket = '{}' AND key = '{}'"
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "link": (ENTRY.format("region-links", "bad"), ("region", "status")),
    "replicated group": (ENTRY.format("region-groups", "good.bad"), ("region", "status")),
    "replicated shared group": (
        ENTRY.format("region-groups", "bad:good.>"),
        ("region", "status"),
    ),
    "epoch publisher": (
        "UPDATE epoch_publishers SET state = ? WHERE name = 'bad'",
        ("epoch", "status", "e"),
    ),
    "epoch subscription": (
        "UPDATE epoch_subscriptions SET form = ? WHERE name = 'bad'",
        ("epoch", "subscriptions"),
    ),
    "reader group": (
        "UPDATE reader_groups SET config = ? WHERE name = 'bad'",
        ("reader", "ls"),
    ),
    "session": (ENTRY.format("sessions", "bad"), ("session", "ls")),
    "stream": ("UPDATE streams SET config = ? WHERE name = 'bad'", ("stream", "ls")),
    "static group": (
        ENTRY.format("static-consumer-groups", "good.bad"),
        ("group", "static", "ls"),
    ),
    "elastic group": (
        ENTRY.format("elastic-consumer-groups", "s.bad"),
        ("group", "elastic", "ls"),
    ),
    "shared group": (ENTRY.format("shared-groups", "bad:good.>"), ("group", "shared", "ls")),
    "state of a reader group": (
        "UPDATE reader_snapshots SET data = ? WHERE group_name = 'bad'",
        ("reader", "ls"),
    ),
    "log of a reader group": (
        "UPDATE reader_log SET data = ? WHERE group_name = 'bad'",
        ("reader", "ls"),
    ),
    "token": (ENTRY.format("node-tokens", "bad"), ("token", "ls")),
}
ASKED = {("reader", "rm"), ("stream", "rm"), ("group", "static"), ("group", "elastic")}
"""Commands that ask before they remove."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalog with all kinds of records, undamaged."""
    folder = tmp_path_factory.mktemp("whole")
    make(str(folder / "eu"), folder / "us")
    return folder / "eu"


@pytest.mark.parametrize("kind", KINDS)
def test_the_list_names_a_broken_record_and_the_command_that_removes_it(
    tmp_path: Path, whole: Path, cli: Cli, kind: str
) -> None:
    sql, listing = KINDS[kind]
    place = ("--catalog", str(tmp_path / "eu"))
    shutil.copytree(whole, tmp_path / "eu", ignore=shutil.ignore_patterns("wake"))
    with headrace.sync.open(tmp_path / "eu", housekeeping=False) as hr:
        damage(hr.client.log.catalog, sql)
    listed = cli(*place, *listing)
    assert listed.status == 0, listed.err
    assert "good" in listed.out
    assert "left out" in listed.err
    assert "bad" in listed.err
    command = removing(listed.err)
    force = ("--force",) if kind == "stream" else ()
    if kind == "stream":  # which cannot go while it is linked
        assert cli(*place, "region", "unlink", "bad").status == 0
    removed = cli(*place, *command, *(("--yes",) if tuple(command[:2]) in ASKED else ()), *force)
    assert removed.status == 0, removed.err
    again = cli(*place, *listing)
    assert again.status == 0, again.err
    assert "left out" not in again.err
    assert "good" in again.out


def removing(said: str) -> list[str]:
    """The command that a warning names."""
    found = re.search(r"headrace ((?:'[^']*'|[^'\n])+)", said[said.index("cannot be read") :])
    assert found is not None, said
    return shlex.split(found[1])


# --- publishers of epochs ------------------------------------------------------------------

PUBLISHER = "UPDATE epoch_publishers SET state = ? WHERE name = '{}'"


def test_a_broken_publisher_gives_up_exactly_what_it_held(tmp_path: Path, cli: Cli) -> None:
    place = ("--catalog", str(tmp_path / "d"))
    with headrace.sync.open(tmp_path / "d") as hr:
        hr.create_stream("e", ["e.>"], epochs=headrace.Epochs())
        with ExitStack() as stack:
            opened = [
                (stack.enter_context(hr.epoch_publisher("e", name)), at)
                for name, at in (("one", 3), ("two", 5), ("bad", 4))
            ]
            for publisher, at in opened:
                event = headrace.Event(subject="e.x", value=publisher.name.encode())
                publisher.append(at, event, advance_to=at)
        damage(hr.client.log.catalog, PUBLISHER.format("bad"))
        with pytest.raises(UnreadableRecordError, match="headrace epoch release e bad"):
            hr.epoch_publisher("e", "bad").__enter__()
        with hr.epoch_publisher("e", "one") as publisher:
            publisher.advance_to(9)
        assert hr.epoch_status("e").frontier == (4,)
    assert cli(*place, "epoch", "rollback", "e", "bad").status == 0
    with headrace.sync.open(tmp_path / "d") as hr:
        status = hr.epoch_status("e")
        assert status.frontier == (5,)
        assert [each.name for each in status.publishers] == ["one", "two"]
        with hr.epoch_publisher("e", "bad"):
            pass
        with hr.epochs("e", start="earliest", until=5) as epochs:
            assert {each.time: _values(each) for each in epochs} == {3: [b"one"]}


def _values(epoch: Any) -> list[bytes]:
    return [value.as_py() for value in epoch.table().column("value")]


def test_of_two_broken_publishers_the_last_one_has_what_both_held(tmp_path: Path, cli: Cli) -> None:
    place = ("--catalog", str(tmp_path / "d"))
    with headrace.sync.open(tmp_path / "d") as hr:
        hr.create_stream("e", ["e.>"], epochs=headrace.Epochs(publishers=("good", "one", "two")))
        for name, at in (("good", 9), ("one", 3), ("two", 5)):
            with hr.epoch_publisher("e", name) as publisher:
                publisher.advance_to(at)
        stranger = ledger.encode_state(PublisherState("two", (7,)))
        damage(hr.client.log.catalog, PUBLISHER.format("one"))
        damage(hr.client.log.catalog, PUBLISHER.format("two"), stranger)
        with (
            hr.epoch_publisher("e", "two") as publisher,
            pytest.raises(UnreadableRecordError, match="it holds 7, of which the stream does not"),
        ):
            publisher.advance_to(8)
    refused = cli(*place, "epoch", "rollback", "e", "one")
    assert refused.status == 1
    assert "headrace epoch release e one" in refused.err
    for name, frontier in (("one", (3,)), ("two", (9,))):
        assert cli(*place, "epoch", "release", "e", name).status == 0
        with headrace.sync.open(tmp_path / "d") as hr:
            assert hr.epoch_status("e").frontier == frontier


def test_a_broken_epoch_stream_and_its_publishers_go_with_the_stream(
    tmp_path: Path, cli: Cli
) -> None:
    place = ("--catalog", str(tmp_path / "d"))
    with headrace.sync.open(tmp_path / "d") as hr:
        hr.create_stream("e", ["e.>"], epochs=headrace.Epochs())
        with hr.epoch_publisher("e", "one") as publisher:
            publisher.advance_to(3)
        damage(hr.client.log.catalog, "UPDATE epoch_streams SET state = ?")
    said = cli(*place, "epoch", "status", "e")
    assert said.status == 1
    assert removing(said.err) == ["stream", "rm", "e"]
    assert cli(*place, "stream", "rm", "e", "--yes").status == 0
    assert cli(*place, "stream", "ls", "--json").json == []


# --- links and replicated groups -------------------------------------------------------------


def test_a_link_of_a_stream_that_is_not_there_can_be_removed(tmp_path: Path, cli: Cli) -> None:
    place = ("--catalog", str(tmp_path / "d"))
    assert cli(*place, "region", "name", "eu").status == 0
    catalog = open_catalog(str(tmp_path / "d"))
    for name in ("gone", "other"):
        catalog.entries.put("region-links", name, b'{"stream": "gone"}')
    catalog.close()
    assert "it is that of 'gone'" in cli(*place, "region", "status").err
    for name in ("gone", "other"):
        assert cli(*place, "region", "unlink", name).status == 0
    assert "left out" not in cli(*place, "region", "status").err
    assert cli(*place, "region", "unlink", "gone").status != 0


def test_disabling_a_broken_group_forgets_what_was_exchanged_of_it_alone(
    tmp_path: Path, whole: Path, cli: Cli
) -> None:
    place = ("--catalog", str(tmp_path / "eu"))
    shutil.copytree(whole, tmp_path / "eu", ignore=shutil.ignore_patterns("wake"))
    catalog = open_catalog(str(tmp_path / "eu"))
    before = set(catalog.read(replicas.readers))
    damage(catalog, KINDS["replicated group"][0])
    assert cli(*place, "region", "group", "disable", "good/bad").status == 0
    mine = {each for each in before if each.startswith("good.bad")}
    assert mine
    assert set(catalog.read(replicas.readers)) == before - mine
    catalog.close()
