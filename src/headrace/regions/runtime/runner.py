"""What a region runs without Spark: its agent, and a replicator for each other region."""

from __future__ import annotations

import logging
import threading

from headrace.catalog import entries
from headrace.errors import CatalogClosedError, HeadraceError
from headrace.host.clock import steady_s
from headrace.log.log import Log
from headrace.regions.records import LINKS_BUCKET, links
from headrace.regions.runtime.agent import RegionAgent
from headrace.regions.runtime.neighbours import Neighbours
from headrace.regions.runtime.replicator import Replicator

LOOK_S = 1.0
AGAIN_S = 0.25
AGAIN_S_MAX = 8.0
"""How long it waits for a catalog that is away: twice as long each time, up to a limit."""

_log = logging.getLogger(__name__)


class RegionRunner:
    """Runs until told to stop; replicators come and go with the links."""

    def __init__(self, log: Log, *, replicate: bool = True) -> None:
        """``replicate=False``: the agent alone, where Spark copies."""
        self._log = log
        self._replicate = replicate
        self._neighbours = Neighbours()
        self.agent = RegionAgent(log, Neighbours())
        self.replicators: dict[str, Replicator] = {}
        self._threads: list[threading.Thread] = []

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop`` is set."""
        self._start("region-agent", self.agent.run, stop)
        again_s = AGAIN_S
        try:
            while not stop.is_set():
                began_s = steady_s()
                try:
                    self._watch_links(stop)
                except CatalogClosedError:
                    raise
                except HeadraceError as error:
                    lasted = steady_s() - began_s > AGAIN_S_MAX
                    again_s = AGAIN_S if lasted else min(2 * again_s, AGAIN_S_MAX)
                    _log.warning("region: %s; trying again in %g s", error, again_s)
                    stop.wait(again_s)
        except CatalogClosedError:
            pass
        finally:
            stop.set()
            for thread in self._threads:
                thread.join()
            self._neighbours.close()
            self.agent.close()

    def _watch_links(self, stop: threading.Event) -> None:
        """Start what the links ask for, until told to stop or the catalog is away."""
        with self._log.catalog.waiting(entries.channel(LINKS_BUCKET)) as wait:
            while not stop.is_set():
                self._start_replicators(stop)
                wait(LOOK_S)

    def _start_replicators(self, stop: threading.Event) -> None:
        if not self._replicate:
            return
        found = self._log.catalog.read(links)
        sources = {m.region for link in found.values() for m in link.members}
        for source in sorted(sources - self.replicators.keys()):
            replicator = Replicator(self._log, self._neighbours, source)
            self.replicators[source] = replicator
            self._start(f"replicate-{source}", replicator.run, stop)

    def _start(self, name: str, work: object, stop: threading.Event) -> None:
        thread = threading.Thread(
            target=work,  # type: ignore[arg-type]
            args=(stop,),
            name=name,
            daemon=True,
        )
        self._threads.append(thread)
        thread.start()
