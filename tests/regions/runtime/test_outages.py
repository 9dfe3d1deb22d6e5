"""What a region runs rides out a catalog of its own that is away, and says so."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import CatalogUnavailableError
from headrace.regions.runtime.replicator import Replicator
from headrace.regions.runtime.runner import RegionRunner
from tests.regions.runtime.world import Place, linked
from tests.support import wait_until


class Away:
    """The catalog of a region, which answers nothing while it is away."""

    def __init__(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        self._back = threading.Event()
        for name in ("read", "write", "subscribe"):
            method = getattr(place.log.catalog, name)
            monkeypatch.setattr(place.log.catalog, name, self._unless_away(method))

    def _unless_away(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if not self._back.is_set():
                self.times += 1
                raise CatalogUnavailableError("the catalog of us is away")
            return method(*arguments, **options)

        return call

    def come_back(self) -> None:
        self._back.set()


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[tuple[Place, Place]]:
    eu, us = Place("eu", str(tmp_path / "eu")), Place("us", str(tmp_path / "us"))
    linked([eu, us])
    eu.publish(5)
    yield eu, us
    eu.close()
    us.close()


def copied(us: Place) -> bool:
    return sum(len(rows) for rows in us.origins().values()) >= 5


def test_a_region_whose_catalog_is_away_when_it_starts_goes_on_later(
    regions: tuple[Place, Place],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, us = regions
    away = Away(us, monkeypatch)
    stop = threading.Event()
    runner = RegionRunner(us.log)
    thread = threading.Thread(target=runner.run, args=(stop,))
    with caplog.at_level(logging.WARNING):
        thread.start()
        try:
            wait_until(lambda: away.times >= 2, "two refusals")
            away.come_back()
            wait_until(lambda: copied(us), "events of eu")
            assert thread.is_alive()
        finally:
            stop.set()
            thread.join()
    assert "the catalog of us is away; trying again in 0.5 s" in caplog.text


def test_a_replicator_whose_own_catalog_is_away_goes_on_later(
    regions: tuple[Place, Place],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, us = regions
    away = Away(us, monkeypatch)
    stop = threading.Event()
    replicator = Replicator(us.log, us.neighbours, "eu")
    thread = threading.Thread(target=replicator.run, args=(stop,))
    with caplog.at_level(logging.WARNING):
        thread.start()
        try:
            wait_until(lambda: away.times > 0, "a refusal")
            wait_until(lambda: replicator.standing.error, "the error")
            away.come_back()
            wait_until(lambda: copied(us), "events of eu")
        finally:
            stop.set()
            thread.join()
    assert "replication from eu: the catalog of us is away; trying again" in caplog.text
