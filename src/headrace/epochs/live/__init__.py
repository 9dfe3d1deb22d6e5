"""Epochs that are not stored: publishers serve their subscribers directly.

A publisher is one partition.  It registers where it listens, and that is all that is written.  A
subscription looks the publishers up, dials each, and hears from each a snapshot of its frontiers
first, then batches and progress.  What is whole and what is complete is decided by the cores; here
are sockets, queues and time.

Nobody waits for a dead link: both sides say something at least once a second, and who was not heard
for some seconds is lost.  A publisher that is lost with times still held is *aborted* for its
subscribers, never *closed*: only it could say that all had come.

Three queues lie between a publisher and an application, and each is bounded: the core's queue per
subscriber (with the subscriber's policy when it is full), the outbox of the connection, and what a
subscription has received and not yet handed out.  When the last one is full the subscription stops
reading its sockets, so that the pressure reaches the publisher's queue.  Epochs that are not
complete yet are held elsewhere, in the core: the message that completes one stands behind its data
on the same link, so waiting for room there would wait for ever.
"""

from headrace.epochs.live.handles import LivePublisher, LiveSubscription
from headrace.epochs.live.runtime import LiveRuntime

__all__ = ["LivePublisher", "LiveRuntime", "LiveSubscription"]
