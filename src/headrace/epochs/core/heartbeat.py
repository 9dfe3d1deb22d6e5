"""Telling a quiet link from a dead one.

An open partition may have nothing to say for hours.  The publisher's side sends a heartbeat on
every link that has been quiet for `interval_ms`; the subscriber's side takes a link for lost when
it has heard nothing at all for `timeout_ms`, and then says so to its core, which aborts rather than
wait for ever for an epoch to complete.
"""

from __future__ import annotations

from headrace.errors import InvalidConfigError


class QuietLinks:
    """When something last happened on each link, and which links have been quiet too long."""

    def __init__(self, limit_ms: int) -> None:
        if limit_ms < 1:
            raise InvalidConfigError(f"a limit of {limit_ms} ms must be 1 or more")
        self.limit_ms = limit_ms
        self._last_ms: dict[str, int] = {}

    def heard(self, link: str, now_ms: int) -> None:
        """Something was sent, or has arrived."""
        self._last_ms[link] = now_ms

    def forget(self, link: str) -> None:
        """The link is gone."""
        self._last_ms.pop(link, None)

    def quiet(self, now_ms: int) -> list[str]:
        """The links that have been quiet for the limit or longer."""
        return [link for link, at_ms in self._last_ms.items() if now_ms - at_ms >= self.limit_ms]
