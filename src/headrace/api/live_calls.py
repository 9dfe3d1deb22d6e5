"""The calls of an open log that are about live epochs."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from headrace.api.epochs import Leaving
from headrace.epochs.live import LivePublisher, LiveRuntime, LiveSubscription
from headrace.epochs.runtime.starting import FrontierLike
from headrace.groups.shared.runtime.program import SharedRuntime
from headrace.host import Host, Stage
from headrace.subjects.arguments import checked_calls


@checked_calls()
class LiveCalls:
    """What :class:`headrace.Headrace` can do with streams of epochs that store nothing."""

    host: Host
    _shared: SharedRuntime

    @cached_property
    def _live(self) -> LiveRuntime:
        runtime = LiveRuntime(self.host, self._shared)
        self.host.serve(Stage.MEMBERS, runtime)
        return runtime

    def live_publisher(
        self, stream: str, name: str, *, start: FrontierLike | None = None
    ) -> LivePublisher:
        """Publish epochs of a stream made with ``Epochs(stored=False)`` to whoever listens now::

            async with hr.live_publisher("ticks", "eu") as pub:
                await pub.append(17, table, advance_to=18)
                await pub.close()

        Without ``close()`` the end of the block is an abort for its subscribers.  It publishes at
        or after ``start`` only, by default the first of all times.
        """
        publisher = LivePublisher(self._live, stream, name, start)
        publisher.client = self
        self.host.serve(Stage.APPENDERS, Leaving(publisher.running))
        return publisher

    def live_epochs(self, /, stream: str, **options: Any) -> LiveSubscription:
        """Epochs of a stream that stores nothing, from now on::

            async with hr.live_epochs("ticks") as epochs:
                async for epoch in epochs:
                    use(epoch.time, await epoch.table())

        ``mode`` and ``until`` are those of :meth:`epochs`.  ``policy`` says what happens when this
        program is too slow: its publishers wait (``"block"``), it goes on with the next whole epoch
        (``"skip"``), or it is cut off (``"disconnect"``); ``batches_max`` may wait at each
        publisher.  With ``on_loss="restart"`` the subscription starts over when a publisher is
        lost, and says so; by default that raises.  An epoch that does not fit into memory is given
        up, or with ``when_full="end"`` the end.

        What had begun when the subscription came is dropped by its time, unread.  What a publisher
        knows to be dropped it does not even send; with ``filtered=False`` it sends everything, and
        all of it is dropped here, and counted.
        """
        subscription = LiveSubscription(self._live, stream, **options)
        subscription.client = self
        self.host.serve(Stage.READS, subscription.running)
        return subscription
