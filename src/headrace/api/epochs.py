"""The calls of an open log that are about epochs."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from headrace.epochs import operators
from headrace.epochs.live.publisher import LivePublishing
from headrace.epochs.runtime import recorded, status, subscriptions
from headrace.epochs.runtime.opening import LEASE_TTL_MS, Recover
from headrace.epochs.runtime.publisher import EpochPublisher
from headrace.epochs.runtime.status import EpochStatus
from headrace.epochs.runtime.subscription import EpochSubscription
from headrace.epochs.runtime.subscriptions import EpochSubscriptionInfo
from headrace.groups.decisions import LIMIT, Decision
from headrace.host import Host, Stage
from headrace.subjects.arguments import checked_calls


@checked_calls()
class EpochCalls:
    """What :class:`headrace.Headrace` can do with epochs."""

    host: Host

    def epoch_publisher(
        self,
        stream: str,
        name: str,
        *,
        start: object = None,
        standby: bool = True,
        recover: Recover = "rollback",
        lease_ttl_ms: int = LEASE_TTL_MS,
    ) -> EpochPublisher:
        """Publish to an epoch stream under a name::

            async with hr.epoch_publisher("orders", "eu") as pub:
                for day in source.days(after=pub.frontier):
                    await pub.append(day, source.read(day), advance_to=day + 1)

        What lies before a frontier is complete; what lies at or after it is still to come.  One
        program at a time is active under a name; others stand by, or with ``standby=False`` are
        refused.  A new name joins at the stream's frontier, or later at ``start``.  If the last
        program of that name ended uncleanly, what it put into epochs that it still held is taken
        back (``recover="keep"`` leaves it), so that ``pub.frontier`` is where the source resumes.
        The end of the block leaves: the lease is free, the times stay held.
        """
        publisher = EpochPublisher(
            self.host,
            stream,
            name,
            start=start,
            standby=standby,
            recover=recover,
            lease_ttl_ms=lease_ttl_ms,
        )
        publisher.client = self  # is in use as long as the publisher is
        self.host.serve(Stage.MEMBERS, Leaving(publisher))
        return publisher

    async def rollback_publisher(self, stream: str, publisher: str) -> None:
        """Take back what a publisher put into epochs it still holds, give those up, and fence it.

        For one that will not come back.
        """
        await self.host.in_thread(operators.roll_back, self.host.log, stream, publisher)

    async def release_publisher(self, stream: str, publisher: str) -> None:
        """Give up the times of a publisher that will not come back; its rows count. Fences it."""
        await self.host.in_thread(operators.release, self.host.log, stream, publisher)

    async def abort_epochs(self, stream: str, publisher: str, reason: str) -> None:
        """End an epoch stream as aborted, in the name of a publisher; fences it."""
        await self.host.in_thread(operators.abort, self.host.log, stream, publisher, reason)

    def epochs(self, /, streams: str | Sequence[str], **options: Any) -> EpochSubscription:
        """Whole epochs of a stream, or of several merged, as they are completed::

            async with hr.epochs("orders", start="earliest", until=31) as epochs:
                async for epoch in epochs:
                    use(epoch.time, await epoch.table(), epoch.token)

        ``mode`` is ``"whole"``, or ``"streaming"`` or ``"unfiltered"`` for rows as they come.
        ``start`` is ``"open"`` (all that is not complete, from its first row), ``"now"`` (only what
        has not begun), ``"earliest"``, a frontier or a token; what lies before a frontier is
        complete, what lies at or after it is still to come.  ``until`` is not included.  With
        ``at_least`` a start that is gone becomes the first that is left.  A ``name`` keeps the
        frontier in the catalog, for one program at a time, and with ``expiry_ms`` it is forgotten
        when nobody has held it for so long; ``segments`` takes part of the rows.
        """
        subscription = EpochSubscription(self.host, streams, **options)
        subscription.client = self  # is in use as long as the subscription is
        self.host.serve(Stage.READS, subscription)
        return subscription

    async def epoch_status(self, stream: str) -> EpochStatus:
        """What is complete and what is open; who holds the frontier back, and who is behind."""
        return await self.host.in_thread(status.status, self.host.log, stream)

    async def epoch_decisions(self, stream: str, limit: int = LIMIT) -> list[Decision]:
        """Who came, left, was lost, replaced or done without; the last ones, oldest first."""
        return await self.host.in_thread(recorded.read, self.host.log.catalog, stream, limit)

    async def epoch_subscriptions(self) -> tuple[EpochSubscriptionInfo, ...]:
        """Named subscriptions to epochs, and how far each is."""
        return await self.host.in_thread(subscriptions.listed, self.host.log.catalog)

    async def forget_epoch_subscription(self, name: str) -> None:
        """Forget a named subscription; a program that holds it is fenced."""
        await self.host.in_thread(subscriptions.forget, self.host.log.catalog, name)


class Leaving:
    """Closing the log leaves; closing the publisher would give its times up."""

    def __init__(self, publisher: EpochPublisher | LivePublishing) -> None:
        publisher.leaving = self
        self._publisher = weakref.ref(publisher)

    async def close(self) -> None:
        if (publisher := self._publisher()) is not None:
            await publisher.leave()
