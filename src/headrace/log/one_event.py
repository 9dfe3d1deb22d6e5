"""The blob of a single plain event, written without Arrow.

A lone publisher waits for every call, and apart from the commit most of that time is spent in
Arrow: it takes 28 us to prepare an event, this module 8 us, of a publish of 370 us.  The IPC
messages of one row differ only in their texts and the sizes of their buffers, so a sample of each
layout is kept and the sizes in it are replaced (see ``message``).  Every sample is compared with
Arrow's output before it is used.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from headrace.log import events
from headrace.log.events import Event
from headrace.log.message import form_of, padded


class Single(NamedTuple):
    """An encoded event that will be a batch of its own."""

    subject: str
    key: str | None
    blob: bytes
    layout: int
    ts_us: int


def single(event: Event, now: int) -> Single | None:
    """A checked event as a blob; None if it has to be written by Arrow."""
    if event.headers or event.epoch is not None:
        return None
    key = event.key
    sample = _sample(events.PLAIN if key is None else events.PLAIN | events.KEY_BIT)
    if sample is None:
        return None
    ts_us = now if event.timestamp is None else events.to_us(event.timestamp)
    return Single(event.subject, key, sample.encode(ts_us, _texts(event)), sample.layout, ts_us)


def _texts(event: Event) -> list[bytes]:
    """The columns of text, in the order of their layout."""
    if event.key is None:
        return [event.subject.encode(), bytes(event.value)]
    return [event.subject.encode(), event.key.encode(), bytes(event.value)]


class _Sample:
    """The IPC message of one row: its header, and where the sizes stand in it."""

    def __init__(self, layout: int, description: bytes, sizes_at: int, body_at: int) -> None:
        self.layout = layout
        self._description = description
        self._sizes_at = sizes_at
        self._body_at = body_at
        texts = 3 if layout & events.KEY_BIT else 2
        self._sizes = struct.Struct(f"<{2 * (2 + 3 * texts)}q")

    def encode(self, ts_us: int, texts: list[bytes]) -> bytes:
        sizes, parts = _body(ts_us, texts)
        description = bytearray(self._description)
        self._sizes.pack_into(description, self._sizes_at, *sizes)
        end = sizes[-2] + padded(sizes[-1])
        description[self._body_at : self._body_at + 8] = end.to_bytes(8, "little")
        return b"".join((description, *parts))


def _body(ts_us: int, texts: list[bytes]) -> tuple[list[int], list[bytes]]:
    """(offset, length) of every buffer, flattened, and the buffers with their padding.

    A column has a validity buffer, which is empty here, and those of its values: one for times,
    two for text (offsets and bytes).
    """
    sizes = [0, 0, 0, 8]
    parts = [ts_us.to_bytes(8, "little", signed=True)]
    at = 8
    for text in texts:
        size = len(text)
        sizes += (at, 0, at, 8, at + 8, size)
        filled = padded(size)
        parts += (b"\0\0\0\0", size.to_bytes(4, "little"), text, bytes(filled - size))
        at += 8 + filled
    return sizes, parts


@lru_cache(maxsize=4)
def _sample(layout: int) -> _Sample | None:
    """The sample of a layout; None if its output differs from Arrow's."""
    form = form_of(layout)
    if form is None:
        return None
    keyed = bool(layout & events.KEY_BIT)
    sample = _Sample(layout, form.describe(1, [0] * (2 + keyed)), form.buffers_at, form.body_at)
    first = Event(subject="s" * 33, key="k" * 21 if keyed else None, value=b"v" * 1021)
    other = Event(subject="a.b", key="" if keyed else None, value=b"")
    alike = all(sample.encode(0, _texts(event)) == _by_arrow(event) for event in (first, other))
    return sample if alike else None


def _by_arrow(event: Event) -> bytes:
    return bytes(events.encode_blob(events.batch_of([event], 0)))
