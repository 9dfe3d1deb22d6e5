"""A reader as an application has it in its hands."""

from __future__ import annotations

from headrace.groups.consumer import Delivery
from headrace.groups.consumer.participant import Participant
from headrace.groups.readers.runtime.reading import ReaderInstance, ReaderStatus


class SegmentReader(Participant["ReaderInstance"]):
    """A reader of a reader group in this process; made by ``group.reader(…)``.

    Use it with ``async with``, then take its events in one of four ways: ``async for delivery in
    reader``, ``await reader.next(timeout_s=1.0)``, ``async for batch in reader.batches()`` or
    ``await reader.consume(handler)``.
    """

    def __init__(self, running: ReaderInstance, client: object) -> None:
        super().__init__(running, client)
        self.name = running.name
        self.reader = running.reader

    async def next(self, timeout_s: float | None = None) -> Delivery | None:
        """The next event; None if there is none within ``timeout_s``, or at the end of the group.

        It waits as long as it takes if no time is given::

            delivery = await reader.next(timeout_s=1.0)
            if delivery is not None:
                await delivery.ack()
        """
        try:
            if timeout_s is None:
                return await anext(self.consumer)
            async with self.running.host.timeout(timeout_s):
                return await anext(self.consumer)
        except (TimeoutError, StopAsyncIteration):
            return None

    @property
    def status(self) -> ReaderStatus:
        """Whether it is online, what it reads, which checkpoints it owes, what it waits for::

        print(reader.status.segments, reader.status.owes)
        """
        return self.running.status
