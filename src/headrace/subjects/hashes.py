"""Partition numbers and key hashes, one at a time; :mod:`headrace.subjects.hashing` says how.

They are apart from those of columns, since they need neither Arrow nor numpy.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import InvalidInputError, InvalidPartitioningError, SubjectMismatchError
from headrace.subjects.filters import matches
from headrace.subjects.rules import PARTITIONS_MAX, shown

FNV_BASIS = 0x811C9DC5
FNV_PRIME = 0x01000193
MIX_1 = 0x85EBCA6B
MIX_2 = 0xC2B2AE35
_LOW_32 = 0xFFFFFFFF


def fnv1a(data: bytes, state: int = FNV_BASIS) -> int:
    """FNV-1a of the bytes, begun with a state."""
    for byte in data:
        state = (state ^ byte) * FNV_PRIME & _LOW_32
    return state


def mix(state: int) -> int:
    """The finaliser of a key hash."""
    state ^= state >> 16
    state = state * MIX_1 & _LOW_32
    state ^= state >> 13
    state = state * MIX_2 & _LOW_32
    return state ^ state >> 16


def key_hash(data: str | bytes) -> int:
    """The 32-bit hash that places a key in a segment's range."""
    return mix(fnv1a(data.encode() if isinstance(data, str) else data))


def route_hash(key: str | bytes | None, subject: str, key_tokens: Sequence[int] = ()) -> int:
    """The key hash of an event: of its key, else of the chosen subject tokens.

    ``key_tokens`` are 1-based token numbers, joined with ``.`` in the order given.  A subject
    uses those it has; with none of them, or none chosen, the whole subject counts.
    """
    if key is not None:
        return key_hash(key)
    if not key_tokens:
        return key_hash(subject)
    check_key_tokens(key_tokens)
    tokens = subject.split(".")
    chosen = [tokens[number - 1] for number in key_tokens if number <= len(tokens)]
    return key_hash(".".join(chosen) if chosen else subject)


def partition(subject: str, filter: str, wildcards: Sequence[int], partitions: int) -> int:
    """The partition number, 0 to ``partitions - 1``, of a subject that passes the filter.

    ``wildcards`` are the 1-based numbers of the filter's ``*`` whose tokens make the key, in
    the order in which they are hashed; with none, the whole subject is hashed.
    """
    places = wildcard_places(filter, wildcards, partitions)
    if not matches(filter, subject):
        raise mismatch(subject, filter)
    tokens = subject.split(".")
    text = "".join(tokens[place] for place in places) if places else subject
    return fnv1a(text.encode()) % partitions


def route_partition(
    key: str | bytes | None, subject: str, key_tokens: Sequence[int], partitions: int
) -> int:
    """The partition of an event in a stream of ``partitions``: of its key, else of its subject.

    As in :func:`partition`, the chosen tokens are joined without a separator.
    """
    if key is not None:
        data = key.encode() if isinstance(key, str) else key
        return fnv1a(data) % partitions
    check_key_tokens(key_tokens)
    tokens = subject.split(".") if key_tokens else []
    chosen = [tokens[number - 1] for number in key_tokens if number <= len(tokens)]
    return fnv1a(("".join(chosen) if chosen else subject).encode()) % partitions


def wildcard_places(filter: str, wildcards: Sequence[int], partitions: int) -> list[int]:
    """The 0-based token numbers that the wildcard numbers stand for."""
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidPartitioningError(
            f"invalid number of partitions {partitions}: use 1 to {PARTITIONS_MAX}"
        )
    stars = [place for place, token in enumerate(filter.split(".")) if token == "*"]
    for number in wildcards:
        if not 1 <= number <= len(stars):
            raise InvalidPartitioningError(
                f"invalid wildcard number {number} for filter {shown(filter)}: "
                f"it has {len(stars)} '*', numbered from 1"
            )
    return [stars[number - 1] for number in wildcards]


def check_key_tokens(key_tokens: Sequence[int]) -> None:
    """Refuse token numbers below 1."""
    for number in key_tokens:
        if number < 1:
            raise InvalidInputError(f"invalid key token {number}: tokens are numbered from 1")


def mismatch(subject: str, filter: str, row: int | None = None) -> SubjectMismatchError:
    """What to say of a subject that has no partition."""
    at = "" if row is None else f" of row {row}"
    return SubjectMismatchError(
        f"subject {shown(subject)}{at} does not pass filter {shown(filter)}, "
        "so it has no partition",
        subject=subject,
        filter=filter,
    )
