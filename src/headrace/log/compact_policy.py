"""When batches of a stream are worth a larger file: the policy, kept as an entry per stream."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.catalog import Catalog, Tx, entries, streams
from headrace.catalog.records import Records
from headrace.catalog.streams import Consumed, Groups, Limits, Stream
from headrace.errors import InvalidConfigError, InvalidInputError

BUCKET = "compaction"
"""Policies by the names of their streams."""

PIECES_MAX = 10_000
"""Batches in one run: the commit replaces them all while appends wait."""
ROWS_MAX = 8_000_000
SHARE_OF_LIMIT = 10
"""A file holds at most 1/10 of what retention keeps, since it is removed only as a whole."""


class CompactionPolicy(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """When batches of a stream are worth a larger file."""

    target_bytes: Annotated[int, Meta(ge=1 << 16, le=1 << 30)] = 128 * 1024 * 1024
    """The size to aim at; batches of half of it are left alone."""
    min_batches: Annotated[int, Meta(ge=2, le=PIECES_MAX)] = 8
    """Fewer batches than this are not worth a file, unless they fill half of one."""
    min_age_s: Annotated[int, Meta(ge=0, le=10**9)] = 60
    """Batches younger than this are left alone."""
    span_s: Annotated[int, Meta(ge=1, le=10**9)] = 86_400
    """All events of one file were appended within this time."""


_policies = Records(CompactionPolicy, "the compaction policy of stream", "set it again")


def check_policy(policy: CompactionPolicy) -> CompactionPolicy:
    """The policy, or an error that says what is wrong with it."""
    try:
        _policies.encode("", policy)
    except InvalidInputError as error:
        raise InvalidConfigError(f"compaction policy: {error.__cause__}") from error
    return policy


def set_policy(catalog: Catalog, stream: str, policy: CompactionPolicy | None) -> None:
    """Have the pipeline's supervisor compact a stream; None: no longer."""
    checked = None if policy is None else check_policy(policy)

    def change(tx: Tx) -> None:
        streams.require(tx, stream)
        if checked is None:
            entries.delete(tx, BUCKET, stream)
        else:
            entries.put(tx, BUCKET, stream, _policies.encode(stream, checked))

    catalog.write(change, locks=(entries.lock(BUCKET),))


def get_policy(catalog: Catalog, stream: str) -> CompactionPolicy | None:
    entry = catalog.entries.get(BUCKET, stream)
    return None if entry is None or entry.value is None else _policies.decode(stream, entry.value)


def within_retention(policy: CompactionPolicy, stream: Stream) -> tuple[CompactionPolicy, int]:
    """The policy, limited so that its files hardly delay trimming, and the most events of one."""
    most = Limits()
    match stream.config.retention:
        case Limits() as kept:
            most = kept
        case Groups(cap=cap):
            most = cap
        case Consumed():
            pass
    bound = msgspec.structs.replace(
        policy,
        target_bytes=_least(policy.target_bytes, most.bytes),
        span_s=_least(policy.span_s, most.age_s),
    )
    return bound, _least(ROWS_MAX, most.events)


def _least(wanted: int, limit: int | None) -> int:
    return wanted if limit is None else max(1, min(wanted, limit // SHARE_OF_LIMIT))
