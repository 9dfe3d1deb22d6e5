"""News within a process: callbacks by channel."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection

Callback = Callable[[], None]

STREAMS = "stream:"
"""Prefix of the channels of streams."""
ANY = "*"
"""Whoever subscribes to this is called on news of every channel but the frequent ones."""

_log = logging.getLogger(__name__)


class Notifier:
    """Callbacks by channel; they run on the thread that receives, and must not block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: dict[str, dict[object, Callback]] = {}
        self.heard = 0
        """Grows with news of any stream, also of one that nobody here knows yet."""

    def subscribe(self, channel: str, callback: Callback) -> Callback:
        """Call ``callback`` when ``channel`` is notified; returns a function that unsubscribes."""
        handle = object()
        with self._lock:
            self._callbacks.setdefault(channel, {})[handle] = callback

        def unsubscribe() -> None:
            with self._lock:
                entries = self._callbacks.get(channel)
                if entries is not None:
                    entries.pop(handle, None)
                    if not entries:
                        del self._callbacks[channel]

        return unsubscribe

    def news(self, channels: Collection[str]) -> None:
        with self._lock:
            for channel in channels:
                if channel.startswith(STREAMS):
                    self.heard += 1
                    break
            if not self._callbacks:
                return
            due = [
                callback
                for channel in channels
                for callback in self._callbacks.get(channel, {}).values()
            ]
            due += self._callbacks.get(ANY, {}).values()
        self._call(due)

    def everybody(self) -> None:
        with self._lock:
            self.heard += 1
            due = [
                callback for entries in self._callbacks.values() for callback in entries.values()
            ]
        self._call(due)

    def forked(self) -> None:
        """In a forked child: drop all callbacks, which are the parent's."""
        self._lock = threading.Lock()
        self._callbacks.clear()

    @staticmethod
    def _call(due: list[Callback]) -> None:
        for callback in due:
            try:
                callback()
            except Exception:
                # Neither the other callbacks nor the receiving thread may suffer from it.
                _log.exception("a callback failed on news")
