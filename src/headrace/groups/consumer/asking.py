"""What the applications of other programs hold: they are asked, through the catalog.

Nothing stores what an application has in hand (``in_hand.py``).  Who wants to know puts a question
into the catalog; programs that consume hear of it and answer for the units that they own.  Who has
asked takes the question and its answers away again, and those that somebody else left behind.  A
program that is frozen does not answer: whoever hears nothing for ``ANSWER_S`` waits no longer.  And
where nothing may be written nobody is asked.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping

import msgspec

from headrace.catalog import Catalog, Tx, entries
from headrace.errors import CatalogClosedError, HeadraceError
from headrace.groups.consumer.in_hand import ANSWERING, InHand, UnitPlace, in_hand
from headrace.host.host import Host

QUESTIONS, ANSWERS = "in-hand-questions", "in-hand-answers"
ANSWER_S = 1.0
LOOKS_MAX = 100
"""News of answers, which may be to others."""
LEFT_S = 60.0
"""A question that is so old was left behind."""
OFFSETS_MAX = 10_000
"""Of one unit, in an answer."""

_log = logging.getLogger(__name__)


class Question(msgspec.Struct, frozen=True, array_like=True):
    """What of some units, from one offset to another, is in hand?"""

    asked_us: int
    ranges: tuple[tuple[UnitPlace, int, int], ...]


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What one program has in hand of the units that it owns."""

    held: tuple[tuple[UnitPlace, tuple[int, ...]], ...]


# Made here, since the first use of a type by msgspec is not safe in several threads at once.
_questions, _answers = msgspec.msgpack.Decoder(Question), msgspec.msgpack.Decoder(Answer)
_encode = msgspec.msgpack.encode


def ask(catalog: Catalog, ranges: Mapping[UnitPlace, tuple[int, int]]) -> InHand:
    """What other programs have in hand of these units, of those that answer in time; blocks."""
    if catalog.heard is None:
        return {}  # a test drives the clock: there is one thread, on which nobody would answer
    name = uuid.uuid4().hex
    found: dict[UnitPlace, frozenset[int]] = {}
    try:
        with catalog.waiting(entries.channel(ANSWERS)) as wait:
            try:
                catalog.write(
                    lambda tx: _put_question(tx, name, ranges),
                    locks=(entries.lock(QUESTIONS),),
                    sync=False,
                )
                for _ in range(LOOKS_MAX):
                    if len(found) == len(ranges) or not wait(ANSWER_S):
                        break
                    for place, offsets in catalog.read(lambda tx: _answered(tx, name)):
                        found[place] = found.get(place, frozenset()) | frozenset(offsets)
            finally:
                catalog.write(
                    lambda tx: _take_away(tx, name),
                    locks=(entries.lock(ANSWERS), entries.lock(QUESTIONS)),
                    sync=False,
                )
    except HeadraceError as error:
        _log.debug("nobody can be asked what is in flight: %s", error)
    return found


def _put_question(tx: Tx, name: str, ranges: Mapping[UnitPlace, tuple[int, int]]) -> None:
    asked = tuple((place, first, last) for place, (first, last) in sorted(ranges.items()))
    entries.put(tx, QUESTIONS, name, _encode(Question(tx.now_us(), asked)))


def _answered(tx: Tx, name: str) -> list[tuple[UnitPlace, tuple[int, ...]]]:
    given = (entries.get(tx, ANSWERS, key) for key in entries.keys(tx, ANSWERS, f"{name}."))
    return [
        held
        for entry in given
        if entry is not None and entry.value is not None
        for held in _answers.decode(entry.value).held
    ]


def _take_away(tx: Tx, name: str) -> None:
    """Remove a question with its answers, and those that were left behind."""
    over_us = tx.now_us() - int(LEFT_S * 1_000_000)
    asked = set()
    for key in entries.keys(tx, QUESTIONS, ""):
        entry = entries.get(tx, QUESTIONS, key)
        question = None if entry is None else _read_question(entry)
        if key == name or question is None or question.asked_us < over_us:
            entries.delete(tx, QUESTIONS, key)
        else:
            asked.add(key)
    for key in entries.keys(tx, ANSWERS, ""):
        if key.partition(".")[0] not in asked:
            entries.delete(tx, ANSWERS, key)


def _read_question(entry: entries.Entry) -> Question | None:
    try:
        return None if entry.value is None else _questions.decode(entry.value)
    except msgspec.MsgspecError:
        return None


class Answering:
    """Answers for one program, as soon as it consumes anything."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._name = host.clock.local_name()
        self._revision = 0
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        host.parts[ANSWERING] = self

    def begin(self) -> None:
        """The program consumes."""
        if self._task is None and self._host.log.catalog.heard is not None:  # else nobody asks
            self._task = self._host.spawn(self._run())

    async def _run(self) -> None:
        stop = await self._host.listen(entries.channel(QUESTIONS), self._asked.set)
        try:
            while True:
                try:
                    await self._answer()
                except CatalogClosedError:
                    return
                except HeadraceError as error:
                    _log.debug("questions of other programs: %s", error)
                await self._asked.wait()
                self._asked.clear()
        finally:
            stop()

    async def _answer(self) -> None:
        catalog, since = self._host.log.catalog, self._revision
        changed = await self._host.in_thread(
            catalog.read, lambda tx: entries.changes(tx, QUESTIONS, since)
        )
        self._revision = changed.revision
        held = in_hand(self._host)
        answers = {}
        for entry in changed.entries:
            question = _read_question(entry)
            own = () if question is None else _own(held, question)
            if own:
                answers[f"{entry.key}.{self._name}"] = _encode(Answer(own))

        def put(tx: Tx) -> None:
            for key, value in answers.items():
                if entries.get(tx, QUESTIONS, key.partition(".")[0]) is not None:
                    entries.put(tx, ANSWERS, key, value)

        if answers:
            locks = (entries.lock(ANSWERS), entries.lock(QUESTIONS))
            await self._host.in_transaction(put, locks, sync=False)


def _own(held: InHand, question: Question) -> tuple[tuple[UnitPlace, tuple[int, ...]], ...]:
    return tuple(
        (place, tuple(sorted(at for at in held[place] if first <= at <= last)[:OFFSETS_MAX]))
        for place, first, last in question.ranges
        if place in held
    )
