"""What a node takes over hours: memory and processor, and the memory of a page that stays open.

A node of its own serves a catalog of 1,000 groups, 50 streams and 10,000 units.  All units ack on
every few seconds, new events come, and somebody listens.  With ``--page-minutes`` a browser shows
the overview as well, for that long.  With ``--still`` nothing changes and nobody listens.  One line
a minute goes to the file; the last lines say what is to be known::

    python -m bench.node_hours --minutes 60 --page-minutes 10 --file node.tsv
    python -m bench.node_hours --minutes 5 --still
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from bench import looking
from bench.harness import Result, at_most, show
from headrace.log.log import Log
from headrace.log.open import open_log

SAMPLE_S = 10.0
LINE_S = 60.0
MEMORY_MAX_MB = 250
GROWTH_MAX = 1.10
"""The last sixth against the second: in the first everything is read for the first time."""
TURNS_OF_EVENTS = 40
TICKS = os.sysconf("SC_CLK_TCK")


class Node:
    """``headrace serve`` in a process of its own."""

    def __init__(self, place: Path) -> None:
        words = [sys.executable, "-m", "headrace", "--catalog", str(place), "serve", "--port", "0"]
        self.process = subprocess.Popen([*words, "--json"], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        said = json.loads(self.process.stdout.readline())
        self.address: str = said["address"]
        self.link: str = said["link"]
        self.token = (place / "node.token").read_text().strip()

    @property
    def memory_mb(self) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        return 0.0

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def ask(self, path: str) -> http.client.HTTPResponse:
        """An answer that is read by whoever asked."""
        made = http.client.HTTPConnection(self.address.removeprefix("http://"), timeout=120)
        made.request("GET", path, headers={"authorization": f"Bearer {self.token}"})
        return made.getresponse()

    def listen(self) -> None:
        """Hear what changes until the node ends, and drop it."""
        with suppress(OSError, http.client.HTTPException):
            answer = self.ask("/api/v1/live")
            while answer.read1(1 << 16):
                pass

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


@contextmanager
def serving(place: Path) -> Iterator[Node]:
    """A node for the length of a block."""
    node = Node(place)
    try:
        yield node
    finally:
        node.stop()


class Page:
    """The overview in a browser."""

    def __init__(self, node: Node) -> None:
        from playwright.sync_api import sync_playwright

        from tests.node.browser.conftest import FLAGS, chromium

        path = chromium()
        if path is None:
            raise SystemExit("no chromium on this machine")
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        self._playwright = sync_playwright().start()
        self._browser = self._playwright.chromium.launch(executable_path=path, args=[*FLAGS, *root])
        self.page = self._browser.new_page()
        self.page.goto(node.link)
        self.page.wait_for_selector("hr-overview table", timeout=120_000)
        self._session = self.page.context.new_cdp_session(self.page)
        self._session.send("Performance.enable")

    @property
    def memory(self) -> tuple[float, int]:
        """(MB of objects that are still used, how many nodes the document has)."""
        self._session.send("HeapProfiler.collectGarbage")
        found: dict[str, Any] = self._session.send("Performance.getMetrics")
        values = {each["name"]: each["value"] for each in found["metrics"]}
        return values["JSHeapUsedSize"] / 1e6, int(values["Nodes"])

    def close(self) -> None:
        self._browser.close()
        self._playwright.stop()


class Changes(threading.Thread):
    """Everything acks on, every few seconds; and there are new events now and then."""

    def __init__(self, log: Log, every_s: float) -> None:
        super().__init__(daemon=True)
        self._log = log
        self._every_s = every_s
        self._units = looking.readers_of(log)
        self._names = {each.name for each in log.streams(internal=True)} - {"node.history"}
        self._ending = threading.Event()
        self.turns = 0

    def run(self) -> None:
        while not self._ending.wait(self._every_s):
            self.turns += 1
            if self.turns % TURNS_OF_EVENTS == 0:
                looking.append(self._log, self._names)
            looking.ack(self._log, self._units, self.turns, step=1)

    def stop(self) -> None:
        self._ending.set()
        self.join()


Sample: TypeAlias = tuple[float, float, float]
"""(seconds since the beginning, MB, seconds of CPU)."""
PageSample: TypeAlias = tuple[float, float, int]
"""(seconds since the beginning, MB, nodes)."""


def watch(
    node: Node, minutes: float, page: Page | None, page_minutes: float, out: TextIO
) -> tuple[list[Sample], list[PageSample]]:
    """Samples of the node, and of the page while it is open."""
    began_s, told_s = time.monotonic(), 0.0
    samples: list[Sample] = []
    pages: list[PageSample] = []
    print("minute\tnode MB\tnode CPU %\tpage MB\tpage nodes", file=out, flush=True)
    while (now_s := time.monotonic() - began_s) < minutes * 60:
        samples.append((now_s, node.memory_mb, node.cpu_s))
        if now_s - told_s >= LINE_S or len(samples) == 1:
            if page is not None and now_s <= page_minutes * 60 + LINE_S:
                pages.append((now_s, *page.memory))
            shown = f"{pages[-1][1]:.1f}\t{pages[-1][2]}" if pages and page else "\t"
            share = share_of(samples[-int(LINE_S / SAMPLE_S) - 1 :])
            line = f"{now_s / 60:.1f}\t{samples[-1][1]:.1f}\t{share:.2f}\t{shown}"
            print(line, file=out, flush=True)
            told_s = now_s
        if page is not None and now_s > page_minutes * 60 + LINE_S:
            page.close()
            page = None
        time.sleep(SAMPLE_S)
    if page is not None:
        page.close()
    return samples, pages


def share_of(samples: list[Sample]) -> float:
    """Percent of a core between the first and the last of some samples."""
    (began_s, _, before_s), (ended_s, _, after_s) = samples[0], samples[-1]
    return 100 * (after_s - before_s) / (ended_s - began_s) if ended_s > began_s else 0.0


def growth(values: list[float]) -> float:
    """The last sixth against the second one."""
    part = max(1, len(values) // 6)
    return statistics.median(values[-part:]) / statistics.median(values[part : 2 * part] or values)


def results(
    samples: list[Sample],
    pages: list[PageSample],
    *,
    still: bool,
) -> list[Result]:
    """What the issue of it is."""
    memory = [mb for _, mb, _ in samples]
    later = samples[len(samples) // 10 :]
    found = [
        at_most("node, memory at most", max(memory), MEMORY_MAX_MB, "MB"),
        at_most("node, memory at the end", growth(memory), GROWTH_MAX, "x of before"),
        at_most("node, processor", share_of(later), 0.2 if still else 15, "% of a core"),
    ]
    if pages:
        found += [
            at_most("page, memory at the end", growth([mb for _, mb, _ in pages]), 1.15, "x"),
            at_most("page, nodes at the end", growth([float(n) for *_, n in pages]), 1.15, "x"),
        ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--page-minutes", type=float, default=0)
    parser.add_argument("--every", type=float, default=5, help="seconds between two changes")
    parser.add_argument("--groups", type=int, default=looking.GROUPS)
    parser.add_argument("--still", action="store_true")
    parser.add_argument("--file")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        place = Path(name) / "data"
        log = open_log(place)
        looking.fill(log, wanted.groups)
        changes = Changes(log, wanted.every)
        looking.ack(log, looking.readers_of(log), 0)
        with (
            Path(wanted.file).open("w") if wanted.file else nullcontext(sys.stdout) as out,
            serving(place) as node,
        ):
            page = Page(node) if wanted.page_minutes else None
            if not wanted.still:
                threading.Thread(target=node.listen, daemon=True).start()
                changes.start()
            samples, pages = watch(node, wanted.minutes, page, wanted.page_minutes, out)
            if not wanted.still:
                changes.stop()
            found = results(samples, pages, still=wanted.still)
            for each in found:
                print(f"{each.name}\t{each.value:.3g} {each.unit}\t{each.target}", file=out)
            print(f"changes\t{changes.turns}", file=out, flush=True)
        log.catalog.close()
    if wanted.file:
        show(found)


if __name__ == "__main__":
    main()
