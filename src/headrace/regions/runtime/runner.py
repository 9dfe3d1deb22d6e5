"""What a region runs without Spark: its agent, and a replicator for each other region."""

from __future__ import annotations

import threading

from headrace.catalog import entries
from headrace.errors import CatalogClosedError, HeadraceError
from headrace.log.log import Log
from headrace.regions.records import LINKS_BUCKET, links
from headrace.regions.runtime.agent import RegionAgent
from headrace.regions.runtime.neighbours import Neighbours
from headrace.regions.runtime.replicator import Replicator

LOOK_S = 1.0


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
        try:
            with self._log.catalog.waiting(entries.channel(LINKS_BUCKET)) as wait:
                while not stop.is_set():
                    self._start_replicators(stop)
                    wait(LOOK_S)
        except CatalogClosedError:
            pass
        finally:
            stop.set()
            for thread in self._threads:
                thread.join()
            self._neighbours.close()
            self.agent.close()

    def _start_replicators(self, stop: threading.Event) -> None:
        if not self._replicate:
            return
        try:
            found = self._log.catalog.read(links)
        except HeadraceError:
            return
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
