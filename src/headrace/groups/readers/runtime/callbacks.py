"""What an application wants to be called for: checkpoints, and segments that come and go."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from headrace.errors import HeadraceError, InvalidInputError
from headrace.groups import decisions
from headrace.groups.decisions import Decision, What
from headrace.groups.readers.names import ReaderGroupName
from headrace.host import Host

OnCheckpoint = Callable[[str, Mapping[str, int]], Awaitable[object] | object]
"""Called with a checkpoint's name and this reader's positions, ``{"orders/3": offset}``."""
OnSegments = Callable[[tuple[str, ...]], Awaitable[object] | object]
"""Called with segments, ``("orders/3", …)``, that a reader has now or has no longer."""

_log = logging.getLogger(__name__)


class _Named(Protocol):
    host: Host
    name: ReaderGroupName
    reader: str
    instance: str


class Callbacks:
    """The callbacks of one reader; what they raise is logged, and stops nobody else."""

    def __init__(
        self,
        reader: _Named,
        on_checkpoint: OnCheckpoint | None,
        on_assigned: OnSegments | None,
        on_revoked: OnSegments | None,
    ) -> None:
        for what, call in (
            ("on_checkpoint", on_checkpoint),
            ("on_assigned", on_assigned),
            ("on_revoked", on_revoked),
        ):
            if call is not None and not callable(call):
                raise InvalidInputError(f"{what} is {call!r}; it has to be a function")
        self._reader = reader
        self._on_checkpoint = on_checkpoint
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._answering = ""

    def assigned(self, segments: tuple[str, ...]) -> None:
        """Segments are read from now on."""
        self._call(self._on_assigned, segments)

    def revoked(self, segments: tuple[str, ...]) -> None:
        """Segments are read no longer."""
        self._call(self._on_revoked, segments)

    def _call(self, callback: OnSegments | None, segments: tuple[str, ...]) -> None:
        if callback is None:
            return
        try:
            returned = callback(segments)
        except Exception:
            _log.exception("%s: a callback failed", self._reader)
            return
        if inspect.isawaitable(returned):
            self._reader.host.spawn(_awaited(returned))

    async def may_answer(self, checkpoint: str, positions: dict[str, int]) -> bool:
        """Call ``on_checkpoint``; false if it runs already, or raised."""
        if self._on_checkpoint is None:
            return True
        if self._answering:
            return False
        self._answering = checkpoint
        try:
            returned: Any = self._on_checkpoint(checkpoint, positions)
            if inspect.isawaitable(returned):
                await returned
        except Exception as error:
            _log.exception("%s: on_checkpoint failed for %r", self._reader, checkpoint)
            await self._record_failure(checkpoint, error)
            return False
        finally:
            self._answering = ""
        return True

    async def _record_failure(self, checkpoint: str, error: Exception) -> None:
        """Everybody who asks can see why a checkpoint waits."""
        reader = self._reader
        reason = f"checkpoint {checkpoint!r}: on_checkpoint raised {type(error).__name__}: {error}"
        decision = Decision(
            what=What.WAITS, reason=reason, source=reader.reader, instance=reader.instance
        )
        key = str(reader.name)
        try:
            await reader.host.in_transaction(
                lambda tx: decisions.record(tx, key, [decision]), decisions.locks(key), sync=False
            )
        except HeadraceError as failure:
            _log.warning("%s: %s", reader, failure)


async def _awaited(work: Any) -> None:
    await work
