"""What the application holds, one delivery or a batch, and the ways to answer it once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import AnsweredError
from headrace.groups.consumer.transaction import AckTransaction
from headrace.subjects.arguments import checked


class Held(msgspec.Struct, gc=False, eq=False, kw_only=True):
    """To be answered once: acked (alone or in a transaction), nacked or rejected.

    Every answer raises :class:`~headrace.errors.Fenced` when the unit belongs to somebody else
    by now: the work does not count.
    """

    _answer: str = ""
    if TYPE_CHECKING:
        _run: Any

    @property
    def unit(self) -> str:
        """The unit of the group that it belongs to."""
        name: str = self._run.owned.unit
        return name

    @property
    def answered(self) -> bool:
        """Whether it was acked, nacked or rejected."""
        return bool(self._answer)

    @checked
    async def nack(self, delay_ms: int | None = None, reason: str = "") -> None:
        """Deliver it again, after ``delay_ms`` or the back-off, before what follows it."""
        self._check("nack")
        done = self._run.nack(self, delay_ms, reason)
        self._answer = "nacked"
        await done

    @checked
    async def reject(self, reason: str = "") -> None:
        """It can never be done: a dead letter at once; returns once that is stored."""
        self._check("reject")
        done = self._run.reject(self, reason)
        self._answer = "rejected"
        await done

    async def extend(self) -> None:
        """Still at it: the time for the answer (``ack_wait_ms``) begins anew."""
        self._check("extend")
        self._run.extend(self)

    def transaction(self) -> AckTransaction:
        """Output that commits together with the ack, or not at all::

        async with delivery.transaction() as tx:
            tx.publish("invoices.eu.42", b"…")
        """
        self._check("ack")
        return AckTransaction(self._run, self)

    def _check(self, verb: str) -> None:
        if self._answer:
            raise AnsweredError(
                f"cannot {verb} {self._run.name_of(self)}: it was {self._answer} already"
            )
        if self._run.gone is not None:
            self._run.runtime.answered_late()
            raise self._run.gone
