"""Committing a write from the event loop, alone or together with something else."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.catalog import Tx
from headrace.errors import CatalogUnavailableError, HeadraceError
from headrace.host.host import Host
from headrace.log.append import ATTEMPTS_MAX, Outcome, Stale, Write
from headrace.log.log import discard

SMALL_BYTES = 256 * 1024
"""A write up to this size is prepared where it stands; more, on a thread."""


async def commit(
    host: Host,
    write: Write,
    stage: Callable[[Tx], None] | None = None,
    locks: Iterable[str] = (),
    *,
    small_bytes: int = SMALL_BYTES,
) -> Outcome:
    """Prepare and commit a write, again if its segments were sealed meanwhile.

    ``stage`` runs first in the same transaction, under ``locks``; what it raises undoes both.
    """

    def run(tx: Tx) -> Outcome:
        if stage is not None:
            stage(tx)
        return write.run(tx)

    for _ in range(ATTEMPTS_MAX):
        small = write.is_small(small_bytes)
        if small:
            write.prepare()
        else:
            await host.in_thread(write.prepare)
        held = sorted({*write.locks, *locks})
        try:
            outcome = await host.in_transaction(run, held, small=small and stage is None)
        except Stale as stale:
            await host.in_thread(write.again, stale)
        except HeadraceError as error:
            await host.in_thread(discard, write, error)
            raise
        else:
            if outcome.repeat:
                await host.in_thread(write.discard)
            return outcome
    raise CatalogUnavailableError("the stream was scaled again and again; try later")
