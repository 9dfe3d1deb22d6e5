"""Dead letters: events that could not be processed, kept with what is known about them.

They go to an internal stream of the group that is made when the first one is written.  The
letter and the progress that passes over the event are one commit, which checks the claim: there
is neither an event that is passed over and kept nowhere, nor a letter of a stale owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import UnknownStreamError
from headrace.groups.consumer.transaction import acked, commit
from headrace.groups.consumer.types import UnitAck
from headrace.groups.delivery import DeadLetter
from headrace.log.events import Event, batch_of, now_us

if TYPE_CHECKING:
    from headrace.groups.consumer.delivery import Delivery
    from headrace.groups.consumer.run import Dying, Run, Runtime

REASON = "headrace-reason"
DETAIL = "headrace-detail"
STREAM = "headrace-stream"
SEGMENT = "headrace-segment"
OFFSET = "headrace-offset"
ATTEMPTS = "headrace-attempts"
GROUP = "headrace-group"
MEMBER = "headrace-member"

DETAIL_CHARS_MAX = 1000


def stream_of(group: str) -> str:
    """The name of a group's dead-letter stream."""
    return f"{group}.dead"


def dead_letter(run: Run, delivery: Delivery, letter: DeadLetter) -> Event:
    """The event as it is kept: what it was, and in its headers why and from where."""
    about = (
        (REASON, letter.reason.value),
        (DETAIL, letter.detail[:DETAIL_CHARS_MAX]),
        (STREAM, run.owned.stream),
        (SEGMENT, str(run.owned.segment)),
        (OFFSET, str(letter.offset)),
        (ATTEMPTS, str(letter.attempts)),
        (GROUP, run.owned.group),
        (MEMBER, run.runtime.options.member),
    )
    kept = tuple(pair for pair in about if pair[1])
    return Event(
        subject=delivery.subject,
        value=delivery.value,
        key=delivery.key,
        headers=(*delivery.headers, *kept),
        timestamp=delivery.timestamp,
    )


async def bury(runtime: Runtime, run: Run, dying: Dying) -> None:
    """Store dead letters and the progress over them in one commit."""
    stream = runtime.options.dead_letters or stream_of(run.owned.group)
    log = runtime.host.log
    ack = UnitAck(run.owned, acked(dying.ranges))
    batch = batch_of(dying.letters, now_us())
    for made in (False, True):
        write = log.write_of()
        write.add(stream, batch, segment=0, captured=True)
        try:
            await commit(
                runtime.host,
                write,
                lambda tx: runtime.acks.stage(tx, ack),
                runtime.acks.locks(run.owned),
            )
        except UnknownStreamError:
            if made:
                raise
            log.routes.forget(stream)
            await runtime.host.in_thread(log.create_internal_stream, stream, 1)
        else:
            return
