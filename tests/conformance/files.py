"""Reads a file of cases and says exactly what is wrong with one that is malformed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tests.conformance.registry import Adapter


class CaseFileError(Exception):
    """A file cannot be run; the message names the file, and the case and field if there is one."""


class _Header(msgspec.Struct, frozen=True):
    format: str
    cases: list[msgspec.Raw]


class _Id(msgspec.Struct, frozen=True):
    id: str | None = None


@dataclass(frozen=True, slots=True)
class CaseFile:
    """The decoded cases of a file and the adapter that can check them."""

    path: Path
    adapter: Adapter
    cases: list[Any]


def load(path: Path, adapters: Mapping[str, Adapter]) -> CaseFile:
    """Read and decode all cases of a file before the first one is run."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CaseFileError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        header = msgspec.json.decode(content, type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CaseFileError(f"{path}: {error}") from error
    adapter = adapters.get(header.format)
    if adapter is None:
        known = ", ".join(sorted(adapters))
        raise CaseFileError(
            f"{path}: there is no adapter for format {header.format!r} (there is: {known})"
        )
    if not header.cases:
        raise CaseFileError(f"{path}: field 'cases' is empty, so the file shows nothing")
    cases = [_decode(path, number, raw, adapter.case) for number, raw in enumerate(header.cases, 1)]
    return CaseFile(path, adapter, cases)


def _decode(path: Path, number: int, raw: msgspec.Raw, case: type[Any]) -> Any:
    try:
        return msgspec.json.decode(raw, type=case)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CaseFileError(f"{path}: case {number}{_id_of(raw)}: {error}") from error


def _id_of(raw: msgspec.Raw) -> str:
    try:
        found = msgspec.json.decode(raw, type=_Id).id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return "" if found is None else f" ({found})"
