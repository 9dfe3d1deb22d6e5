"""Checkpoints that a group takes by itself, every so often.

The reader that joined first asks for them.  Their names are made of the time, so that two readers
who both take themselves for the first ask for the same one.
"""

from __future__ import annotations

import logging

from headrace.errors import CatalogClosedError, HeadraceError, ReaderGroupError
from headrace.groups.readers.core.updates import CreateCheckpoint
from headrace.groups.readers.runtime.hub import Following, ReaderHub
from headrace.groups.readers.runtime.transaction import GroupCommit
from headrace.host import Host

_log = logging.getLogger(__name__)


class AutomaticCheckpoints:
    """The timer of one reader; only the first of a group uses it."""

    def __init__(self, host: Host, hub: ReaderHub, following: Following, reader: str) -> None:
        self._host = host
        self._hub = hub
        self._following = following
        self._reader = reader
        self._every_ms = 0
        self._timer = host.timer(self._due)

    def follow(self) -> None:
        """The state went on: the config may be another."""
        every_ms = self._following.state.config.checkpoint_every_ms
        if every_ms != self._every_ms:
            self._every_ms = every_ms
            self._timer.clear()
            if every_ms:
                self._timer.after(every_ms / 1000)

    def stop(self) -> None:
        """This reader is gone."""
        self._timer.clear()

    def _due(self) -> None:
        self._timer.after(self._every_ms / 1000)
        first = next(iter(self._following.state.members), None)
        if first == self._reader and self._following.record is not None:
            self._host.spawn(self._take())

    async def _take(self) -> None:
        every_us = self._every_ms * 1000

        def create(commit: GroupCommit) -> None:
            number = commit.tx.now_us() // every_us
            commit.put(CreateCheckpoint(f"auto-{self._every_ms}-{number}"))

        try:
            await self._hub.transact(self._following.name, create)
        except CatalogClosedError:
            pass
        except ReaderGroupError as error:  # as many as are allowed wait for readers already
            _log.info("reader group %s: %s", self._following.name.group, error)
        except HeadraceError as error:
            _log.warning("reader group %s: %s", self._following.name.group, error)
