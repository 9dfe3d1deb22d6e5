"""Waiting for a checkpoint or a cut: whoever waits also looks for dead readers.

A group whose readers are all dead has nobody else who would find that out, and its checkpoint
would wait for ever.  That one is complete is learnt from the outcomes as they are followed: it may
be forgotten in the very update that completes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from headrace.catalog import Tx
from headrace.errors import (
    CheckpointGoneError,
    CheckpointTimeoutError,
    HeadraceError,
    InvalidInputError,
    TooManyCheckpointsError,
)
from headrace.groups import decisions
from headrace.groups.readers.core.changes import CheckpointCreated
from headrace.groups.readers.core.checkpoints import Checkpoint, CheckpointKind
from headrace.groups.readers.core.synchronizer import Followed
from headrace.groups.readers.core.updates import CreateCheckpoint
from headrace.groups.readers.info import open_batches, why_it_waits
from headrace.groups.readers.names import ReaderGroupName
from headrace.groups.readers.runtime.hub import Following, ReaderHub, hub_of
from headrace.host import Host

LOOK_MS_MAX = 1000
"""How often dead readers are looked for at least."""

_log = logging.getLogger(__name__)


class Waiter:
    """Follows a group until a checkpoint is complete."""

    def __init__(self) -> None:
        self.completed: dict[int, Checkpoint] = {}
        self.gone: HeadraceError | None = None
        self.news = asyncio.Event()

    def followed(self, news: Followed | None) -> None:
        """The state went on."""
        for checkpoint in () if news is None else news.completed:
            self.completed[checkpoint.created] = checkpoint
        self.news.set()

    def group_gone(self, error: HeadraceError) -> None:
        """The group was deleted."""
        self.gone = error
        self.news.set()


async def take(
    host: Host, group: str, name: str, kind: CheckpointKind, timeout_s: float
) -> Checkpoint:
    """Begin a checkpoint, or find the one of that name, and wait until it is complete."""
    _check_seconds(timeout_s)
    hub, waiter = hub_of(host), Waiter()
    full = ReaderGroupName(group)
    following = await hub.follow(full, waiter)
    what = f"checkpoint {name!r}" if kind is CheckpointKind.NORMAL else "the cut"
    try:
        async with host.timeout(timeout_s):
            created = await _begin(hub, following, waiter, CreateCheckpoint(name, kind))
            return await _complete(host, hub, following, waiter, created, what)
    except TimeoutError:
        blockers = await _blockers(host, following, name)
        raise CheckpointTimeoutError(group, what, blockers, timeout_s) from None
    finally:
        hub.leave(following, waiter)


async def _begin(
    hub: ReaderHub, following: Following, waiter: Waiter, update: CreateCheckpoint
) -> int:
    while True:
        waiter.news.clear()
        try:
            outcome = (await hub.update(following.name, update)).outcome
        except TooManyCheckpointsError:
            if update.kind is CheckpointKind.NORMAL:
                raise
            await waiter.news.wait()  # cuts of others are taken first
            continue
        for change in outcome.changes:
            if isinstance(change, CheckpointCreated):
                return outcome.revision
        await following.refresh()
        known = following.state.checkpoints.get(update.name)
        if known is not None:
            if not known.pending:
                waiter.completed[known.created] = known
            return known.created


async def _complete(
    host: Host,
    hub: ReaderHub,
    following: Following,
    waiter: Waiter,
    created: int,
    what: str,
) -> Checkpoint:
    look_at_ms = host.now_ms()
    while True:
        waiter.news.clear()
        if waiter.gone is not None:
            raise waiter.gone
        if created in waiter.completed:
            return waiter.completed[created]
        state = following.state
        known = [c for c in state.checkpoints.all() if c.created == created]
        if state.revision >= created and not known:
            raise CheckpointGoneError(following.name.group, what)
        if known and not known[0].pending:
            return known[0]
        if host.now_ms() >= look_at_ms:
            expires_in_ms = await hub.detect(following)
            wait_ms = LOOK_MS_MAX if expires_in_ms is None else expires_in_ms + 1
            look_at_ms = host.now_ms() + max(1, min(LOOK_MS_MAX, wait_ms))
            continue
        await host.wait(waiter.news, max(0.001, (look_at_ms - host.now_ms()) / 1000))


async def _blockers(host: Host, following: Following, name: str) -> Mapping[str, str]:
    checkpoint = following.state.checkpoints.get(name)
    if checkpoint is None:
        return {}

    def look(tx: Tx) -> dict[str, str]:
        told = why_it_waits(decisions.read(tx, str(following.name)))
        batches = open_batches(tx, following.name.group)
        otherwise = "it has not answered: events of it are in flight"
        return {
            reader: told.get((name, reader), batches.get(reader, otherwise))
            for reader in checkpoint.pending
        }

    return await host.in_thread(host.log.catalog.read, look, snapshot=True)


def _check_seconds(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise InvalidInputError(f"timeout_s is {value!r}; it has to be a number of seconds above 0")
