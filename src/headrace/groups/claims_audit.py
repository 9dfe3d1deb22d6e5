"""Audit of claims: whether each is of a unit that there is, and has the token that it was given.

Reader groups record who owns what under which token twice, in their state and as claims.  The other
kinds record a token once; of theirs it is only known that it is a number from 1 on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

import msgspec

from headrace.catalog import Tx, audit, claims, reader_groups, streams
from headrace.catalog.claims import Claim
from headrace.catalog.reader_groups import ReaderGroupRow
from headrace.errors import HeadraceError
from headrace.groups.readers.names import ReaderGroupName, unit_of
from headrace.groups.readers.runtime.replicas import StampedReplica
from headrace.groups.vacant import segment_of


def examine(tx: Tx) -> Iterator[str]:
    """What is wrong, in words."""
    held: dict[str, dict[str, Claim]] = {}
    for claim in claims.all_of(tx):
        held.setdefault(claim.group, {})[claim.unit] = claim
    segments, partitions = audit.numbers_given(tx), _partitions(tx)
    for units in held.values():
        for claim in units.values():
            yield from _claim(claim, segments, partitions)
    for row in reader_groups.all_rows(tx):
        with suppress(HeadraceError):  # looking at the group tells that it cannot be read
            key = ReaderGroupName(row.name).key
            yield from _reader_group(tx, row, held.get(key, {}), segments)


def _partitions(tx: Tx) -> dict[str, int]:
    """The streams that have partitions, and how many."""
    found = {}
    for _, name, data in streams.stored_configs(tx, -1):
        with suppress(msgspec.MsgspecError):
            if count := streams.decode_config(data).partitions:
                found[name] = count
    return found


def _claim(
    claim: Claim, segments: Mapping[str, int], partitions: Mapping[str, int]
) -> Iterator[str]:
    what = f"group {claim.group!r}: its claim of unit {claim.unit!r}"
    if type(claim.token) is not int or claim.token < 1:
        yield f"{what} has the token {claim.token!r}"
    place = segment_of(claim.group, claim.unit)
    if place is None:
        # The partitions of an elastic group are those of its work queue, named as the group is.
        count = partitions.get(claim.group) or partitions.get(claim.group.partition(".")[0])
        if not claim.unit.isdecimal():
            yield f"{what} is of no partition and no segment"
        elif count is not None and int(claim.unit) >= count:
            yield f"{what} is of a partition beyond the {count} that there are"
    elif place[1] >= segments.get(place[0], place[1] + 1):  # one that is deleted had any number
        yield f"{what} is of a segment that stream {place[0]!r} never had"


def _reader_group(
    tx: Tx, row: ReaderGroupRow, held: Mapping[str, Claim], segments: Mapping[str, int]
) -> Iterator[str]:
    replica = StampedReplica(row.name)
    replica.catch_up(tx, row)
    what, state = f"reader group {row.name!r}", replica.state
    owned = {
        segment: (reader, holding.token)
        for reader, member in state.members.items()
        for segment, holding in member.owned.items()
    }
    for segment, (reader, token) in sorted(owned.items()):
        claim = held.get(unit_of(segment))
        if claim is None and segment.stream in segments:
            yield f"{what}: there is no claim of {unit_of(segment)!r}, which {reader!r} owns"
        elif claim is not None and claim.token != token:
            yield (
                f"{what}: the claim of {claim.unit!r} has the token {claim.token}, "
                f"and the state says {token}"
            )
    for claim in held.values():
        if claim.token > state.revision:
            yield (
                f"{what}: the claim of {claim.unit!r} has the token {claim.token}, "
                f"and no token above {state.revision} was given"
            )
