"""Looking through events: by subject, key, header, text, or comparisons of JSON fields.

A scan goes through Arrow batches; every condition is a mask over columns, and only values that
passed the cheap ones are decoded as JSON.  It has a budget of rows, bytes and seconds, tells how
much it has looked at, and says where it stopped, so that it can go on from there.
"""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InvalidInputError
from headrace.groups.findings import moment
from headrace.log.log import Log
from headrace.log.query import Query
from headrace.subjects import covers, match_array

SHOWN_BYTES_MAX = 64 * 1024
"""So much of a value is shown in a list."""
CONDITIONS_MAX = 8

_CONDITION = re.compile(r"\s*([A-Za-z0-9_.\[\]-]{1,200})\s*(<=|>=|==|!=|=|<|>|~)\s*(.{1,500}?)\s*")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "~": lambda value, text: isinstance(value, str) and str(text) in value,
}


class ScanBudget(msgspec.Struct, frozen=True, kw_only=True):
    """How much a scan may look at."""

    rows: int = 2_000_000
    bytes: int = 512 * 1024 * 1024
    seconds: float = 2.0


class EventConditions(msgspec.Struct, frozen=True, kw_only=True):
    """What an event has to be like."""

    key: str | None = None
    header: str = ""
    """``name``, or ``name=value``."""
    text: str = ""
    """Bytes that the value holds, as UTF-8."""
    where: str = ""
    """Comparisons of JSON fields, joined by ``and``: ``total > 10 and user.name = ann``."""


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """An event, as the console shows it."""

    segment: int
    offset: int
    at: datetime
    subject: str
    key: str | None
    size_bytes: int
    form: str
    """``json``, ``text`` or ``hex``."""
    value: str
    cut: bool
    """Whether there is more of the value than is shown."""
    headers: tuple[tuple[str, str], ...] = ()
    epoch: tuple[int, ...] | None = None


class Scanned(msgspec.Struct, frozen=True, kw_only=True):
    """What a scan found, and how far it came."""

    events: tuple[EventView, ...]
    looked_events: int
    looked_bytes: int
    seconds: float
    next: str
    """Where to go on: give it as ``start``; empty at the end."""
    done: bool
    """Whether everything was looked at."""


class Condition(msgspec.Struct, frozen=True):
    """A comparison of one field."""

    path: tuple[str, ...]
    compare: str
    wanted: Any

    def holds(self, value: Any) -> bool:
        for part in self.path:
            if isinstance(value, dict):
                value = value.get(part)
            elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
                value = value[int(part)]
            else:
                return False
        try:
            return _COMPARE[self.compare](value, self.wanted)
        except TypeError:
            return False


def parse_where(text: str) -> tuple[Condition, ...]:
    """Comparisons, joined by ``and``.

    >>> parse_where("total > 10 and user.name = ann")[1]
    Condition(path=('user', 'name'), compare='=', wanted='ann')
    """
    found = []
    for part in re.split(r"\s+and\s+", text) if text.strip() else []:
        match = _CONDITION.fullmatch(part)
        if match is None:
            raise InvalidInputError(
                f"where={part[:80]!r} is no comparison; write field > 10, or user.name = 'ann'"
            )
        field, compare, value = match.groups()
        found.append(Condition(tuple(field.split(".")), compare, _literal(value)))
    if len(found) > CONDITIONS_MAX:
        raise InvalidInputError(f"where has {len(found)} comparisons; at most {CONDITIONS_MAX}")
    return tuple(found)


def _literal(text: str) -> Any:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return text if isinstance(value, dict | list) else value


class Filter:
    """Conditions as masks over batches."""

    def __init__(self, wanted: EventConditions, scope: tuple[str, ...] = ()) -> None:
        self._wanted = wanted
        self._where = parse_where(wanted.where)
        self._scope = scope

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those rows that fit."""
        wanted = self._wanted
        masks = []
        if self._scope:
            seen = [match_array(each, batch.column("subject")) for each in self._scope]
            mask = seen[0]
            for each in seen[1:]:
                mask = pc.or_(mask, each)
            masks.append(mask)
        if wanted.key is not None:
            masks.append(pc.fill_null(pc.equal(batch.column("key"), wanted.key), False))
        if wanted.text:
            masks.append(pc.match_substring(batch.column("value"), wanted.text, ignore_case=False))
        for one in self._where:
            # The field's last name has to stand in the bytes of the value at all.
            masks.append(pc.match_substring(batch.column("value"), one.path[-1]))
        for mask in masks[1:]:
            masks[0] = pc.and_(masks[0], mask)
        found = batch.filter(masks[0]) if masks else batch
        if wanted.header and found.num_rows:
            found = found.filter(pa.array(_header_mask(found.column("headers"), wanted.header)))
        if self._where and found.num_rows:
            values = found.column("value").to_pylist()
            found = found.filter(pa.array([self._holds(value) for value in values]))
        return found

    def _holds(self, value: bytes) -> bool:
        try:
            decoded = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return False
        return all(one.holds(decoded) for one in self._where)


def _header_mask(column: pa.Array, wanted: str) -> list[bool]:
    name, sign, text = wanted.partition("=")
    found = []
    for headers in column.to_pylist():
        pairs = [(each["key"], each["value"]) for each in headers or ()]
        found.append(any(k == name and (not sign or v == text.encode()) for k, v in pairs))
    return found


def scan(
    log: Log,
    stream: str,
    query: Query,
    conditions: EventConditions,
    limit: int,
    budget: ScanBudget,
    *,
    scope: tuple[str, ...] = (),
    payload: bool = True,
    gone: Callable[[], bool] = lambda: False,
) -> Scanned:
    """Look through a stream for up to ``limit`` events; blocks, so it is for a thread."""
    began_s = time.monotonic()
    chosen = Filter(conditions, scope)
    reader = log.reader(stream, query)
    open_scope = scope and not all(
        any(covers(own, each) for own in scope) for each in reader.stream.config.subjects
    )
    if not open_scope:
        chosen = Filter(conditions)
    found: list[EventView] = []
    looked = size = 0
    places = reader.positions
    while not reader.done and len(found) < limit:
        spent_s = time.monotonic() - began_s
        over = looked >= budget.rows or size >= budget.bytes or spent_s >= budget.seconds
        if over or gone():
            break
        batch = reader.next()
        if batch is None:
            break
        looked += batch.num_rows
        size += batch.nbytes
        rows = chosen.rows(batch)
        room = limit - len(found)
        if rows.num_rows > room:
            cut = rows.slice(0, room)
            found += views(cut, payload=payload)
            return _scanned(found, looked, size, began_s, _after(places, batch, cut), done=False)
        found += views(rows, payload=payload)
        places = reader.positions
    return _scanned(found, looked, size, began_s, places, done=reader.done)


def _after(places: Mapping[int, int], batch: pa.RecordBatch, cut: pa.RecordBatch) -> dict[int, int]:
    """Where the read goes on behind the last row that was shown."""
    segment = batch.column("segment")[0].as_py()
    last = cut.column("offset")[-1].as_py()
    return {**places, segment: last + 1}


def _scanned(
    found: list[EventView],
    looked: int,
    size: int,
    began_s: float,
    places: Mapping[int, int],
    *,
    done: bool,
) -> Scanned:
    return Scanned(
        events=tuple(found),
        looked_events=looked,
        looked_bytes=size,
        seconds=round(time.monotonic() - began_s, 4),
        next="" if done else place_text(places),
        done=done,
    )


def place_text(places: Mapping[int, int]) -> str:
    """A place as one word.

    >>> place_text({0: 12, 3: 4})
    '0:12,3:4'
    """
    return ",".join(f"{segment}:{offset}" for segment, offset in sorted(places.items()))


def views(batch: pa.RecordBatch, *, payload: bool) -> list[EventView]:
    """Rows as the console shows them."""
    stamps = batch.column("timestamp").cast("int64").to_pylist()
    return [
        event_view(row, stamp, payload=payload)
        for row, stamp in zip(batch.to_pylist(), stamps, strict=True)
    ]


def event_view(
    row: Mapping[str, Any], stamp_us: int, *, payload: bool, most: int = SHOWN_BYTES_MAX
) -> EventView:
    """One row as the console shows it."""
    value: bytes = row["value"]
    form, text, cut = shown(value, most) if payload else ("hidden", "", False)
    epoch = row.get("epoch")
    return EventView(
        segment=row["segment"],
        offset=row["offset"],
        at=moment(stamp_us),
        subject=row["subject"],
        key=row["key"],
        size_bytes=len(value),
        form=form,
        value=text,
        cut=cut,
        headers=tuple(
            (each["key"], shown(each["value"], 4_096)[1]) for each in row.get("headers") or ()
        )
        if payload
        else (),
        epoch=None if epoch is None else tuple(epoch),
    )


def shown(value: bytes, most: int) -> tuple[str, str, bool]:
    """(form, text, whether it was cut) of a value."""
    cut = len(value) > most
    head = value[:most]
    if not cut and head[:1] in b'{["-0123456789tfn ':
        try:
            msgspec.json.decode(head)
            return "json", head.decode(), False
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    try:
        text = head.decode("utf-8", "strict" if not cut else "ignore")
        if "\0" not in text:
            return "text", text, cut
    except UnicodeDecodeError:
        pass
    return "hex", head[: most // 4].hex(" ", 4), len(value) > most // 4
