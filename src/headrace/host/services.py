"""Services: what was opened on a program's log and has to be closed before it, in order."""

from __future__ import annotations

import asyncio
import logging
import weakref
from enum import IntEnum
from itertools import count
from operator import itemgetter
from typing import Protocol

from headrace.errors import HeadraceError

_log = logging.getLogger(__name__)


class Stage(IntEnum):
    """When a service is closed: each stage still needs the later ones to be running."""

    READS = 0
    """Tell whoever waits for events that no more will come."""
    APPENDERS = 1
    """Store what they were given."""
    MEMBERS = 2
    """Store the answers, and give back what they own."""
    LEADERS = 3
    """Hear the last of members here and elsewhere, and give up what they lead."""
    CHORES = 4
    """What goes on in the background."""
    WRITES = 5
    """Wait for what all of the above have written."""


class Service(Protocol):
    """Something to close.  Closing is idempotent, and does nothing before it was opened."""

    async def close(self) -> None:
        """Finish what is under way, and end."""
        ...


class Closing:
    """The close of a service, which is carried out once, whoever asks for it and gives up."""

    def __init__(self, work: asyncio.Task[None]) -> None:
        self._work = work
        self._told = False

    async def wait(self) -> None:
        """Wait for its end; what went wrong is raised to the first who hears of it."""
        try:
            await asyncio.shield(self._work)
        except HeadraceError:
            if self._told:
                return
            self._told = True
            raise


class Services:
    """The services of one program, weakly referenced."""

    def __init__(self) -> None:
        self._numbers = count()
        self._stages: dict[Stage, weakref.WeakValueDictionary[int, Service]] = {
            stage: weakref.WeakValueDictionary() for stage in Stage
        }

    def add(self, stage: Stage, service: Service) -> None:
        """Close it at this stage of the shutdown, after those that were added before it."""
        self._stages[stage][next(self._numbers)] = service

    async def close(self) -> None:
        """Close all, whatever fails; then raise the first failure that nobody has been told of."""
        failure: Exception | None = None
        for stage, services in self._stages.items():
            # Held from the first look on: what nobody needs any more may be collected meanwhile.
            for _, service in sorted(services.items(), key=itemgetter(0)):
                try:
                    await service.close()
                except Exception as error:
                    if stage is Stage.APPENDERS and isinstance(error, HeadraceError):
                        # Raised to whoever closed the appender; for others, a line in the log.
                        _log.warning("appends were not stored: %s", error)
                    else:
                        failure = failure or error
            services.clear()
        if failure is not None:
            raise failure
