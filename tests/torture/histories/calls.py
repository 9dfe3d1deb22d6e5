"""Calls that are given up at random, and how their ends are told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from headrace.errors import (
    AlreadyAckedError,
    ConsumerClosedError,
    Fenced,
    HeadraceError,
    StaleDeliveryError,
)
from tests.torture.histories.records import Told

T = TypeVar("T")

GIVE_UP_S = 0.05
REFUSALS = (Fenced, ConsumerClosedError, StaleDeliveryError, AlreadyAckedError)
"""What says that an answer does not count."""


class GivenUp(Exception):
    """The call was cancelled, and ended by that."""


class Calls:
    """One process's calls; a share of them is cancelled, until the round becomes calm."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.rng = rng
        self._folder = folder
        self._share = rng.uniform(0.10, 0.25)
        self.given_up = 0

    @property
    def calm(self) -> bool:
        """No more faults: publishers end, consumers consume what is left."""
        return (self._folder / "calm").exists()

    @property
    def over(self) -> bool:
        return (self._folder / "over").exists()

    async def call(self, make: Callable[[], Awaitable[T]]) -> T:
        """The call's result; raises :class:`GivenUp` if it was cancelled."""
        if self.rng.random() > self._share or self.calm:
            return await make()
        task = asyncio.ensure_future(make())
        await asyncio.wait([task], timeout=self.rng.random() ** 3 * GIVE_UP_S)
        task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            self.given_up += 1
            raise GivenUp from None


def told_of(error: BaseException) -> Told:
    """What an error of an answer says of it."""
    if isinstance(error, GivenUp):
        return "given up"
    if isinstance(error, REFUSALS):
        return "refused"
    if isinstance(error, HeadraceError):
        return "unknown"
    raise error
