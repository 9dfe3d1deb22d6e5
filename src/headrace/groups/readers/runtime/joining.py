"""Joining under a name that an earlier program may still have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace.catalog import leases
from headrace.errors import ReaderBusyError
from headrace.groups.readers.names import ReaderGroupName
from headrace.groups.readers.runtime.liveness import JoinedAs, NameHeld
from headrace.host import Host

NAME_LOOK_S = 0.25
"""How often somebody looks who waits for a name."""

Ask = Callable[[leases.Lease | None], Awaitable[JoinedAs | NameHeld]]
"""One attempt to join; a lease that was watched running out is given."""


async def take_name(
    host: Host, name: ReaderGroupName, reader: str, ttl_ms: int, ask: Ask
) -> tuple[JoinedAs, float]:
    """Join, and until when that holds, in seconds of this program's clock.

    Somebody alive who has the name is waited for up to the length of that lease; then it raises.
    """
    watch, over = leases.Watch(), None
    began_ms = host.now_ms()
    while True:
        asked_ms = host.now_ms()
        answer = await ask(over)
        if isinstance(answer, JoinedAs):
            return answer, (asked_ms + ttl_ms) / 1000
        now_ms = host.now_ms()
        over = answer.lease
        theirs_ms = answer.ttl_ms or ttl_ms
        if not watch.is_over(over, answer.now_us, now_ms, theirs_ms):
            over = None
            if now_ms > began_ms + theirs_ms:
                raise ReaderBusyError(name.group, reader, answer.lease.owner)
            left_s = (answer.lease.expires_us - answer.now_us) / 1e6
            await host.sleep(min(NAME_LOOK_S, max(0.001, left_s)))
