"""The part of the public API that is about epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.epochs.runtime.publisher import LEASE_TTL_MS, EpochPublisher
from headrace.host import Stage

if TYPE_CHECKING:
    from headrace.epochs.runtime.opening import Recover
    from headrace.host import Host


class EpochCalls:
    """Mixed into :class:`headrace.Headrace`."""

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
        self.host.serve(Stage.MEMBERS, _Leaving(publisher))
        return publisher


class _Leaving:
    """Closing the log leaves; closing the publisher would give its times up."""

    def __init__(self, publisher: EpochPublisher) -> None:
        publisher.leaving = self
        self._publisher = publisher

    async def close(self) -> None:
        await self._publisher.leave()
