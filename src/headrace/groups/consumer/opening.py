"""Opening a unit: the news of its stream and a reader at its place, tried until they are there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace.errors import HeadraceError, UnknownSegmentError
from headrace.groups.consumer.fetch import UnitReader
from headrace.groups.consumer.news import Listener, follow
from headrace.groups.consumer.run import Run
from headrace.host import Host

RETRY_S = 0.5


async def connect(
    host: Host,
    run: Run,
    reach: Listener,
    trouble: Callable[[HeadraceError], None],
    follow_acks: Callable[[Run], Awaitable[None]],
    *,
    with_keys: bool,
) -> None:
    """Give a run its reader and let it hear of its segment; failures are told and tried again."""
    while run.gone is None:
        try:
            await _connect(host, run, follow_acks, with_keys)
        except HeadraceError as error:
            trouble(error)
            await host.sleep(RETRY_S)
        else:
            if run.news is not None:
                run.news.listen(run.owned.segment, run, reach, run.reader)
            return


async def _connect(
    host: Host, run: Run, follow_acks: Callable[[Run], Awaitable[None]], with_keys: bool
) -> None:
    owned = run.owned
    news = follow(host, owned.stream)
    stream = await news.open()
    try:
        segment = await news.segment(owned.segment)
        if segment.id != owned.segment_id:
            raise UnknownSegmentError(
                f"stream {owned.stream!r} was made anew: segment {owned.segment} is not the one "
                "that this unit stands for"
            )
        if segment.lane is not None:  # the stream is in other regions, too
            await follow_acks(run)
    except BaseException:
        news.close()
        raise
    if run.gone is not None:
        news.close()
        return
    run.reader = UnitReader(
        host.log,
        owned,
        segment,
        stream.config.key_tokens,
        run.dispatcher.next_offset,
        with_keys=with_keys,
    )
    run.news = news
