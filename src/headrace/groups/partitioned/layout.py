"""Which kind a partitioned group is of, and how its partitions lie in the log."""

from __future__ import annotations

from enum import Enum

from headrace.catalog.streams import StreamConfig
from headrace.groups.partitioned.core.config import ElasticGroupConfig, GroupConfig


class GroupKind(Enum):
    """How a group gets its partitions."""

    STATIC = "static"
    ELASTIC = "elastic"


class Layout(Enum):
    """How partitions lie in the stream that the members read."""

    SEGMENTS = "one segment for each partition"
    SHARES = "each member reads its partitions from every segment"


def kind_of(config: GroupConfig) -> GroupKind:
    """The kind that a config is of."""
    return GroupKind.ELASTIC if isinstance(config, ElasticGroupConfig) else GroupKind.STATIC


def layout_of(config: GroupConfig, source: StreamConfig) -> Layout:
    """How the partitions of a group lie, given the stream that it is on."""
    if isinstance(config, ElasticGroupConfig) or source.partitions:
        return Layout.SEGMENTS
    return Layout.SHARES
