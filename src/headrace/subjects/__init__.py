"""Subjects: the dot-separated names of events, the filters over them, and their hashes.

Start here::

    >>> from headrace.subjects import check_subject, matches, partition
    >>> check_subject("orders.eu.42")
    'orders.eu.42'
    >>> matches("orders.*.>", "orders.eu.42")
    True
    >>> partition("orders.eu.42", "orders.*.*", wildcards=[2], partitions=16)
    3

``rules`` says what a well-formed name, subject or filter is; ``filters`` matches and
translates filters; ``hashing`` turns subjects and keys into partition numbers and key hashes;
``columns`` is how the last two read the bytes of an Arrow column; ``trie`` finds filters among
many.
"""

from headrace.subjects.filters import (
    covers,
    from_mqtt,
    match_array,
    matches,
    overlaps,
    parse_filter,
    parse_share,
    surely_match,
)
from headrace.subjects.hashing import (
    KEY_HASH_BITS,
    PARTITIONS_MAX,
    key_hash,
    key_hash_array,
    partition,
    partition_array,
    route_hash,
    route_hash_array,
    route_partition,
    route_partition_array,
)
from headrace.subjects.rules import (
    NAME_PATTERN,
    SUBJECT_BYTES_MAX,
    SUBJECT_PLAIN_BYTES,
    SUBJECT_TOKENS_MAX,
    check_filter,
    check_name,
    check_subject,
    first_invalid_subject,
)
from headrace.subjects.trie import FilterTrie

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
