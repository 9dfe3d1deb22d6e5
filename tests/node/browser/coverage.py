"""Which parts of the console's code a browser has run, by Chromium's own count."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import CDPSession, Page

from headrace.node.files import FOLDER, sent


class Coverage:
    """Characters of each script that were run, over all pages."""

    def __init__(self) -> None:
        self._sessions: dict[Page, CDPSession] = {}
        self._ran: dict[str, bytearray] = {}
        self._texts: dict[str, str] = {}

    def begin(self, page: Page) -> None:
        session = page.context.new_cdp_session(page)
        session.send("Profiler.enable")
        session.send("Profiler.startPreciseCoverage", {"callCount": False, "detailed": True})
        self._sessions[page] = session

    def take(self, page: Page) -> None:
        """Add what a page has run; before it is closed."""
        if page in self._sessions:
            self.note(page)
            del self._sessions[page]

    def note(self, page: Page) -> None:
        """Add what a page has run so far; before it goes elsewhere, or what it ran is forgotten."""
        session = self._sessions[page]
        for script in session.send("Profiler.takePreciseCoverage")["result"]:
            name = script["url"].rpartition("/")[2]
            if not name.endswith(".js") or "/assets/" not in script["url"]:
                continue
            if name not in self._texts:
                self._texts[name] = sent((FOLDER / name).read_bytes()).decode()
                self._ran[name] = bytearray(len(self._texts[name]))
            self._add(name, script)

    def _add(self, name: str, script: dict[str, Any]) -> None:
        here = bytearray(len(self._texts[name]))
        for function in script["functions"]:
            for part in function["ranges"]:
                lo, hi = part["startOffset"], part["endOffset"]
                here[lo:hi] = (b"\x01" if part["count"] else b"\x00") * (hi - lo)
        both = int.from_bytes(self._ran[name]) | int.from_bytes(here)
        self._ran[name] = bytearray(both.to_bytes(len(here)))

    def share(self) -> tuple[float, dict[str, float]]:
        """Of all, and of each script."""
        each = {name: sum(ran) / max(1, len(ran)) for name, ran in self._ran.items()}
        total = sum(map(len, self._ran.values()))
        return sum(map(sum, self._ran.values())) / max(1, total), each
