"""What was opened is closed in order, whatever happens to it meanwhile."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable
from typing import Any

import pytest

from headrace.host import services as module
from headrace.host.services import Services, Stage


class Noted:
    """A service in a circle of references, as most are: only the collector takes it away."""

    def __init__(self, name: str, closed: list[str]) -> None:
        self.itself = self
        self._name = name
        self._closed = closed

    async def close(self) -> None:
        self._closed.append(self._name)


def test_stages_and_services_are_closed_in_order() -> None:
    services, closed = Services(), list[str]()
    made = [Noted(name, closed) for name in ("writes", "read 1", "read 2")]
    services.add(Stage.WRITES, made[0])
    services.add(Stage.READS, made[1])
    services.add(Stage.READS, made[2])
    asyncio.run(services.close())
    assert closed == ["read 1", "read 2", "writes"]


def test_what_is_collected_during_a_close_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    services, closed = Services(), list[str]()
    kept = Noted("writes", closed)
    services.add(Stage.WRITES, kept)

    def collecting(given: Iterable[Any], **how: Any) -> list[Any]:
        found = sorted(given, **how)
        gc.collect()
        return found

    monkeypatch.setattr(module, "sorted", collecting, raising=False)
    gc.disable()
    try:
        services.add(Stage.READS, Noted("left", closed))
        asyncio.run(services.close())
    finally:
        gc.enable()
    assert closed[-1] == "writes"
