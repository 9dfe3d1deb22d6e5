"""Subjects: the dot-separated names of events, the filters over them, and their hashes.

Start here::

    >>> from headrace.subjects import check_subject, matches, partition
    >>> check_subject("orders.eu.42")
    'orders.eu.42'
    >>> matches("orders.*.>", "orders.eu.42")
    True
    >>> partition("orders.eu.42", "orders.*.*", wildcards=[2], partitions=16)
    3

``rules`` says what a well-formed name, subject or filter is, and ``judging`` asks it of a column;
``filters`` matches and translates filters, and ``matching`` matches a column; ``hashes`` turns
subjects and keys into partition numbers and key hashes, and ``hashing`` columns of them;
``columns`` is how these read the bytes of an Arrow column; ``trie`` finds filters among many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.loading import later
from headrace.subjects.filters import (
    covers,
    from_mqtt,
    matches,
    overlaps,
    parse_filter,
    parse_share,
)
from headrace.subjects.hashes import key_hash, partition, route_hash, route_partition
from headrace.subjects.rules import (
    KEY_HASH_BITS,
    NAME_PATTERN,
    PARTITIONS_MAX,
    SUBJECT_BYTES_MAX,
    SUBJECT_PLAIN_BYTES,
    SUBJECT_TOKENS_MAX,
    check_filter,
    check_name,
    check_subject,
)
from headrace.subjects.trie import FilterTrie

if TYPE_CHECKING:
    from headrace.subjects.hashing import (
        key_hash_array,
        partition_array,
        route_hash_array,
        route_partition_array,
    )
    from headrace.subjects.judging import first_invalid_subject
    from headrace.subjects.matching import match_array, surely_match

__all__ = [
    "KEY_HASH_BITS",
    "NAME_PATTERN",
    "PARTITIONS_MAX",
    "SUBJECT_BYTES_MAX",
    "SUBJECT_PLAIN_BYTES",
    "SUBJECT_TOKENS_MAX",
    "FilterTrie",
    "check_filter",
    "check_name",
    "check_subject",
    "covers",
    "first_invalid_subject",
    "from_mqtt",
    "key_hash",
    "key_hash_array",
    "match_array",
    "matches",
    "overlaps",
    "parse_filter",
    "parse_share",
    "partition",
    "partition_array",
    "route_hash",
    "route_hash_array",
    "route_partition",
    "route_partition_array",
    "surely_match",
]

# Whoever only looks at names needs no Arrow.
__getattr__ = later(
    __name__,
    {
        "headrace.subjects.hashing": (
            "key_hash_array", "partition_array", "route_hash_array", "route_partition_array",
        ),
        "headrace.subjects.judging": ("first_invalid_subject",),
        "headrace.subjects.matching": ("match_array", "surely_match"),
    },
)  # fmt: skip
