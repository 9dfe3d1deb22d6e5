"""Replicas: none follows what never happened, and versions that decide differently agree."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.catalog import reader_groups
from headrace.catalog.streams import StreamConfig
from headrace.errors import HeadraceError, NotMemberError
from headrace.groups.readers import AcquireShare, AddReader, admin
from headrace.groups.readers.core import balance
from headrace.groups.readers.core.records import encode_state
from headrace.groups.readers.core.rules import Outcome
from headrace.groups.readers.core.updates import ReportLag
from headrace.groups.readers.names import ReaderGroupName
from headrace.groups.readers.runtime.hub import hub_of
from headrace.groups.readers.runtime.replicas import StampedReplica
from headrace.groups.readers.runtime.transaction import GroupCommit
from headrace.log.log import Log
from tests.support import until

NAME = ReaderGroupName("report")


async def make(hr: headrace.Headrace, segments: int = 4) -> None:
    await hr.create_stream("orders", ["orders.>"], segments=segments)
    await hr.reader_groups.create("report", streams=["orders"])


def in_the_catalog(log: Log) -> list[bytes]:
    """The state as somebody finds it who has seen nothing before."""
    fresh = StampedReplica(NAME.group)

    def look(tx: Any) -> None:
        row = reader_groups.get(tx, NAME.group)
        assert row is not None
        fresh.catch_up(tx, row)

    log.catalog.read(look, snapshot=True)
    return encode_state(fresh.state)


def test_a_commit_that_fails_as_a_whole_leaves_all_replicas_with_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several updates of one process share a commit; the disk is full when it is made."""

    async def main() -> None:
        async with headrace.open(tmp_path / "data", housekeeping=False) as hr:
            await make(hr)
            hub = hub_of(hr.host)
            joined = await hub.update(NAME, AddReader("r0"))
            driver = hr.log.catalog._committer._driver
            commits, operations = 0, 0
            right = driver.commit

            def full(channels: set[str]) -> None:
                nonlocal commits
                commits += 1
                if commits == 1:
                    raise sqlite3.OperationalError("database or disk is full")
                right(channels)

            def run_one(*args: Any) -> None:
                nonlocal operations
                operations += commits == 0
                right_one(*args)

            committer = hr.log.catalog._committer
            right_one = committer._run_one
            monkeypatch.setattr(committer, "_run_one", run_one)
            monkeypatch.setattr(driver, "commit", full)
            token = joined.outcome.revision
            answers = await asyncio.gather(
                hub.update(NAME, AddReader("r1")),
                hub.update(NAME, AddReader("r2")),
                hub.update(NAME, AcquireShare("r0", token)),
                return_exceptions=True,
            )
            assert operations == 3, "they shared the commit that failed"
            assert all("disk is full" in str(answer) for answer in answers), answers
            # The same numbers are used by others now.
            await hub.update(NAME, AddReader("r9"))
            with pytest.raises(NotMemberError):
                await hub.update(NAME, AcquireShare("r1", token + 1))
            await hub.update(NAME, AcquireShare("r0", token))
            writer = hub._writers[NAME.group]
            assert encode_state(writer.state) == in_the_catalog(hr.log)
            assert list(writer.state.members) == ["r0", "r9"]

    asyncio.run(main())


def test_a_replica_that_followed_what_was_rolled_back_is_read_anew(log: Log) -> None:
    log.create_stream("orders", StreamConfig(subjects=("orders.>",)), 2)

    config = admin.group_config(
        retain="positions", checkpoint_every_s=None, checkpoints_kept=3, checkpoints_outstanding=3
    )
    admin.create(
        log, "report", given=["orders"], start="earliest", end=None, filter=None, config=config
    )
    replica = StampedReplica("report")
    lock = [reader_groups.lock("report")]

    class Undone(HeadraceError):
        pass

    def lost(tx: Any) -> None:
        GroupCommit(tx, NAME, replica).put(AddReader("lost"))
        raise Undone("the rest of the commit failed")

    with pytest.raises(Undone):
        log.catalog.write(lost, locks=lock)
    log.catalog.write(
        lambda tx: GroupCommit(tx, NAME, StampedReplica("report")).put(AddReader("kept")),
        locks=lock,
    )
    log.catalog.write(lambda tx: GroupCommit(tx, NAME, replica).put(AddReader("next")), locks=lock)
    assert list(replica.state.members) == ["kept", "next"]
    assert encode_state(replica.state) == in_the_catalog(log)


def test_two_versions_of_the_rules_that_follow_one_log_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer program claims in another way; the older one follows what it decided."""

    async def main() -> None:
        async with (
            headrace.open(tmp_path / "data", housekeeping=False) as older,
            headrace.open(tmp_path / "data", housekeeping=False) as newer,
        ):
            await make(older, segments=8)
            waiter = _Deaf()
            following = await hub_of(older.host).follow(NAME, waiter)
            token = (await hub_of(older.host).update(NAME, AddReader("r1"))).outcome.revision
            second = await hub_of(newer.host).update(NAME, AddReader("r2"))
            with monkeypatch.context() as another:
                another.setattr(balance, "acquire_count", lambda *_: 7)
                claimed = await hub_of(newer.host).update(
                    NAME, AcquireShare("r2", second.outcome.revision)
                )
            assert len(claimed.units) == 7
            await hub_of(older.host).update(NAME, AcquireShare("r1", token))
            await until(lambda: following.state.revision == token + 3)
            assert len(following.state.owned("r2")) == 7
            assert len(following.state.owned("r1")) == 1
            assert encode_state(following.state) == in_the_catalog(older.log)
            assert encode_state(hub_of(newer.host)._writers["report"].state) != []

    asyncio.run(main())


class _Deaf:
    def followed(self, news: object) -> None:
        del news

    def group_gone(self, error: HeadraceError) -> None:
        raise AssertionError(error)


def test_the_log_stays_bounded_however_many_updates_there_are(tmp_path: Path) -> None:
    async def main() -> None:
        async with headrace.open(tmp_path / "data", housekeeping=False) as hr:
            await make(hr)
            hub = hub_of(hr.host)
            joined: Outcome = (await hub.update(NAME, AddReader("r1"))).outcome
            for at in range(0, 3000, 100):
                lags = (ReportLag("r1", joined.revision, at + n) for n in range(100))
                await asyncio.gather(*(hub.update(NAME, lag) for lag in lags))
            rows = hr.log.catalog.read(lambda tx: reader_groups.log_after(tx, "report", 0))
            assert len(rows) <= 1100
            assert encode_state(hub._writers["report"].state) == in_the_catalog(hr.log)

    asyncio.run(main())
