"""Configs as the catalog has them: one that cannot be read names its group, and what removes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headrace.errors import GroupConfigDecodeError, InvalidGroupConfigError
from headrace.groups.partitioned.core.config import (
    ElasticGroupConfig,
    StaticGroupConfig,
    decode_elastic,
    decode_static,
)
from headrace.groups.partitioned.names import GroupName

C = TypeVar("C", StaticGroupConfig, ElasticGroupConfig)


def static_config(name: GroupName, data: bytes) -> StaticGroupConfig:
    """The config of a static group."""
    return _config(name, data, decode_static, "static")


def elastic_config(name: GroupName, data: bytes) -> ElasticGroupConfig:
    """The config of an elastic group."""
    return _config(name, data, decode_elastic, "elastic")


def _config(name: GroupName, data: bytes, decode: Callable[[bytes], C], kind: str) -> C:
    try:
        return decode(data)
    except InvalidGroupConfigError as error:
        raise GroupConfigDecodeError(
            f"the config of {kind} group {name.stream}/{name.group} cannot be read ({error}); "
            f"delete it: headrace group {kind} rm {name.stream} {name.group}"
        ) from error
