"""Blocking wrappers of reader groups, for :mod:`headrace.sync`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.api.blocking import (
    Blocking,
    BlockingConsumer,
    BlockingDelivery,
    call_on_loop,
    iterate,
    mirror,
)
from headrace.groups.decisions import Decision
from headrace.groups.readers.group import ReaderGroup, ReaderGroups
from headrace.groups.readers.runtime.reading import ReaderStatus
from headrace.groups.readers.runtime.segment_reader import SegmentReader


class BlockingReader(BlockingConsumer[SegmentReader]):
    """A reader without ``await``; made by ``group.reader(…)`` of :mod:`headrace.sync`::

    with group.reader("r1") as reader:
        for delivery in reader:
            ...
            delivery.ack()

    Callbacks are called on the event loop's thread.
    """

    consume = mirror(SegmentReader.consume)
    flush = mirror(SegmentReader.flush)
    close = mirror(SegmentReader.close)

    def next(self, timeout_s: float | None = None) -> BlockingDelivery | None:
        """The next event, or None if there is none in time."""
        found = self._run(self.real.next(timeout_s))
        return None if found is None else BlockingDelivery(self.runner, found)

    @property
    def status(self) -> ReaderStatus:
        """Whether it is online, what it reads, which checkpoints it owes, what it waits for."""
        return self._run(call_on_loop(lambda: self.real.status))


class BlockingReaderGroup(Blocking[ReaderGroup]):
    """A reader group without ``await``."""

    checkpoint = mirror(ReaderGroup.checkpoint)
    checkpoints = mirror(ReaderGroup.checkpoints)
    cancel_checkpoint = mirror(ReaderGroup.cancel_checkpoint)
    cut = mirror(ReaderGroup.cut)
    reset = mirror(ReaderGroup.reset)
    plan_reset = mirror(ReaderGroup.plan_reset)
    offline = mirror(ReaderGroup.offline)
    configure = mirror(ReaderGroup.configure)
    add_streams = mirror(ReaderGroup.add_streams)
    drop_streams = mirror(ReaderGroup.drop_streams)
    release = mirror(ReaderGroup.release)
    info = mirror(ReaderGroup.info)
    lag = mirror(ReaderGroup.lag)
    explain = mirror(ReaderGroup.explain)

    @property
    def name(self) -> str:
        """The group's name."""
        return self.real.name

    def reader(self, name: str, **options: Any) -> BlockingReader:
        """Read as a reader of this name; see :meth:`ReaderGroup.reader`."""
        made = self._run(call_on_loop(lambda: self.real.reader(name, **options)))
        return BlockingReader(self.runner, made)

    def watch(self) -> Iterator[Decision]:
        """What is decided from now on."""
        return iterate(self.runner, self.real.watch)


class BlockingReaderGroups(Blocking[ReaderGroups]):
    """Reader groups without ``await``; ``hr.reader_groups`` of :mod:`headrace.sync`."""

    delete = mirror(ReaderGroups.delete)

    def create(self, name: str, streams: Any, **options: Any) -> BlockingReaderGroup:
        """Make a reader group; see :meth:`ReaderGroups.create`."""
        made = self._run(self.real.create(name, streams, **options))
        return BlockingReaderGroup(self.runner, made)

    def get(self, name: str) -> BlockingReaderGroup:
        """A group that there is."""
        return BlockingReaderGroup(self.runner, self._run(self.real.get(name)))

    def list(self) -> tuple[BlockingReaderGroup, ...]:
        """All groups by name."""
        found = self._run(self.real.list())
        return tuple(BlockingReaderGroup(self.runner, each) for each in found)
