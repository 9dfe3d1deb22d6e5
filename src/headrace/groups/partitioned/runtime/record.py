"""The record of decisions: what instances decided and why, kept in the catalog for ``explain``.

The last decisions of a group stand in one entry, whoever made them.  Instances hand theirs in as
they come; a process writes what has gathered, and loses the newest when it is killed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

import msgspec

from headrace.catalog import Tx, entries
from headrace.catalog.records import Records
from headrace.errors import HeadraceError
from headrace.groups.partitioned.core.messages import InstanceDecision
from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.runtime.ownership import read_config
from headrace.host import Host
from headrace.log.log import Log

DECISIONS_BUCKET = "group-decisions"
KEPT_MAX = 256
GATHER_S = 0.1

_log = logging.getLogger(__name__)


class Recorded(msgspec.Struct, frozen=True, omit_defaults=True):
    """A decision with the time of the catalog."""

    at_us: int
    verdict: str
    member: str
    instance: str
    reason: str
    partition: int | None = None


_records = Records(list[Recorded], "the decisions of group")


class Record:
    """Writes the decisions of one process."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._pending: dict[GroupName, deque[InstanceDecision]] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, name: GroupName, decision: InstanceDecision) -> None:
        """Keep a decision; it is written soon, together with others."""
        self._pending.setdefault(name, deque(maxlen=KEPT_MAX)).append(decision)
        if self._task is None:
            self._task = self._host.spawn(self._write_soon())

    async def flush(self) -> None:
        """Write what has gathered."""
        pending, self._pending = self._pending, {}
        if not pending:
            return
        asked_ms = self._host.now_ms()

        def run(tx: Tx) -> None:
            for name, decisions in pending.items():
                # Nothing is kept about a group that is not there (any more).
                if read_config(tx, name) is not None:
                    _append(tx, name, decisions, asked_ms)

        await self._host.in_transaction(run, [entries.lock(DECISIONS_BUCKET)], sync=False)

    def close(self) -> None:
        """Stop writing; what has gathered is lost unless it was flushed."""
        if self._task is not None:
            self._task.cancel()

    async def _write_soon(self) -> None:
        try:
            while self._pending:
                await self._host.sleep(GATHER_S)
                try:
                    await self.flush()
                except HeadraceError as error:
                    _log.debug("decisions were not recorded: %s", error)
        finally:
            self._task = None


def _append(tx: Tx, name: GroupName, decisions: deque[InstanceDecision], asked_ms: int) -> None:
    now_us = tx.now_us()
    fresh = [
        Recorded(
            now_us - (asked_ms - d.at_ms) * 1000,
            d.verdict.value,
            d.member,
            d.instance,
            d.reason,
            d.partition,
        )
        for d in decisions
    ]

    def joined(value: bytes | None) -> bytes:
        before = _records.decode_or(name.key, value, [])
        kept = sorted([*before, *fresh], key=lambda one: one.at_us)[-KEPT_MAX:]
        return _records.encode(name.key, kept)

    entries.update(tx, DECISIONS_BUCKET, name.key, joined)


def recorded(log: Log, name: GroupName) -> tuple[Recorded, ...]:
    """The last decisions of a group, oldest first."""
    entry = log.catalog.entries.get(DECISIONS_BUCKET, name.key)
    return tuple(_records.decode_or(name.key, entry.value if entry else None, []))
