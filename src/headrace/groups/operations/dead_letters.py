"""Dead letters: list them by their reasons, show one, put some back, discard some.

Putting back is one transaction for each part of a few hundred letters: they are deliverable again
and gone from the dead-letter stream, or neither.  The transaction checks that none of them is gone
already, so whoever repeats it, and however many do it at a time, each letter comes back once.

Letters of an elastic group go to its work queue, where only this group sees them.  Those of the
others are published to their subjects once more, and every group that reads those sees them again.
A header says that it was put back, by which group, and how often it has died.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from headrace.catalog import Tx
from headrace.catalog.streams import Stream
from headrace.errors import (
    AlreadyAckedError,
    GroupMadeAnewError,
    LetterGoneError,
    LettersMovingError,
    NoLettersError,
    NoStreamError,
    TooManyLivesError,
    UndeliverableLetterError,
)
from headrace.groups import decisions
from headrace.groups import letter_names as headers
from headrace.groups.decisions import Decision, What
from headrace.groups.operations import targets
from headrace.groups.operations.letters import (
    Letter,
    Selection,
    select,
    settle,
    settle_lock,
    stream_of,
)
from headrace.groups.operations.targets import Target
from headrace.log.log import Log
from headrace.log.query import Query
from headrace.log.times import now_us
from headrace.subjects import matches

if TYPE_CHECKING:
    from headrace.log.append import Write
    from headrace.log.events import Event

LIVES_MAX = 3
PART_LETTERS_MAX = 250
PART_BYTES_MAX = 4 * 1024 * 1024
ATTEMPTS_MAX = 100
ALL = Selection()

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LetterReason(msgspec.Struct, frozen=True, kw_only=True):
    """Letters that died of the same thing."""

    reason: str
    error: str
    """The first line of the last error."""
    letters: int
    first_id: int
    first_died_us: int | None
    last_died_us: int | None


class PutBack(msgspec.Struct, frozen=True, kw_only=True):
    """What was put back or discarded, or with ``dry_run`` what would be."""

    group: str
    dry_run: bool
    letters: int
    refused: int
    """Left where they are, since they have died too often."""
    to: str
    """Where they go: a work queue, or their subjects; empty if they are discarded."""
    seen_by: tuple[str, ...]
    """The other groups that see them again."""


# --- looking -------------------------------------------------------------------------------------


def _open(log: Log, name: str) -> tuple[Target, Stream | None]:
    target = log.catalog.read(lambda tx: targets.find(tx, name), snapshot=True)
    return target, stream_of(log, target)


def letters(log: Log, name: str, selection: Selection = ALL) -> tuple[Letter, ...]:
    """The dead letters of a group that fit, oldest first."""
    _, stream = _open(log, name)
    return () if stream is None else tuple(select(log, stream, selection))


def show(log: Log, name: str, id: int) -> Letter:
    """One letter."""
    found = letters(log, name, Selection(ids=(id,)))
    if not found:
        raise LetterGoneError(name, id)
    return found[0]


def reasons(log: Log, name: str) -> tuple[LetterReason, ...]:
    """The dead letters of a group by what they died of, most frequent first."""
    _, stream = _open(log, name)
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], Letter] = {}
    last: dict[tuple[str, str], Letter] = {}
    for letter in () if stream is None else select(log, stream, ALL):
        kind = letter.reason, letter.error.partition("\n")[0]
        counts[kind] += 1
        first.setdefault(kind, letter)
        last[kind] = letter
    return tuple(
        LetterReason(
            reason=kind[0],
            error=kind[1],
            letters=count,
            first_id=first[kind].id,
            first_died_us=first[kind].died_us,
            last_died_us=last[kind].died_us,
        )
        for kind, count in counts.most_common()
    )


# --- putting back and discarding -----------------------------------------------------------------


def put_back(
    log: Log,
    name: str,
    selection: Selection = ALL,
    *,
    lives_max: int = LIVES_MAX,
    dry_run: bool = False,
) -> PutBack:
    """Have letters delivered again; each comes back once."""
    return _settle_all(log, name, selection, lives_max, dry_run=dry_run, back=True)


def discard(log: Log, name: str, selection: Selection = ALL, *, dry_run: bool = False) -> PutBack:
    """Forget letters for good."""
    return _settle_all(log, name, selection, None, dry_run=dry_run, back=False)


def _settle_all(
    log: Log,
    name: str,
    selection: Selection,
    lives_max: int | None,
    *,
    dry_run: bool,
    back: bool,
) -> PutBack:
    target, stream = _open(log, name)
    found = () if stream is None else tuple(select(log, stream, selection))
    if stream is None or not found:
        raise NoLettersError(target.name)
    if selection.ids is not None and len(found) != len(set(selection.ids)):
        raise LetterGoneError(name, min(set(selection.ids) - {letter.id for letter in found}))
    due = [each for each in found if lives_max is None or each.lives < lives_max]
    if lives_max is not None and not due:
        raise TooManyLivesError(target.name, len(found), lives_max)
    elastic = target.kind == "elastic"
    restored = _restored(log, target, due) if back else {}
    seen_by = () if elastic or not back else _seen_by(log, target, set(restored.values()))
    done = PutBack(
        group=target.name,
        dry_run=dry_run,
        letters=len(due),
        refused=len(found) - len(due),
        to="" if not back else "the work queue" if elastic else "their subjects",
        seen_by=seen_by,
    )
    if dry_run:
        return done
    count = 0
    for part in _parts(due):
        count += _settle_part(log, target, stream, part, restored, strict=selection.ids is not None)
    if not count:  # somebody else was quicker with all of them
        raise NoLettersError(target.name)
    return msgspec.structs.replace(done, letters=count)


def _settle_part(
    log: Log,
    target: Target,
    stream: Stream,
    part: Sequence[Letter],
    restored: dict[int, str],
    *,
    strict: bool,
) -> int:
    """Put back or discard in one transaction, without those that somebody else was quicker with."""
    left = list(part)
    for _ in range(ATTEMPTS_MAX):
        if not left:
            return 0
        try:
            _commit(log, target, stream, left, restored)
        except AlreadyAckedError as gone:
            if strict:
                raise LetterGoneError(target.name, gone.lo) from gone
            ids = tuple(letter.id for letter in left)
            still = {each.id for each in select(log, stream, Selection(ids=ids))}
            left = [letter for letter in left if letter.id in still]
        else:
            return len(left)
    raise LettersMovingError(target.name)


def _commit(
    log: Log,
    target: Target,
    stream: Stream,
    part: Sequence[Letter],
    restored: dict[int, str],
) -> None:
    ids = [letter.id for letter in part]

    def stage(tx: Tx) -> None:
        if targets.find(tx, target.name).incarnation != target.incarnation:
            raise GroupMadeAnewError(target.name)
        settle(tx, stream, ids)
        decisions.record(tx, target.name, [_decision(part, back=bool(restored))])

    locks = [settle_lock(stream.name), *decisions.locks(target.name)]
    if not restored:
        log.catalog.write(stage, locks=locks)
        return
    write = log.write_of()
    _add(log, write, target, part, restored)
    write.stage, write.stage_locks = stage, locks
    log.commit(write)


def _add(
    log: Log, write: Write, target: Target, part: Sequence[Letter], restored: dict[int, str]
) -> None:
    from headrace.log.events import batch_of

    now = now_us()
    if target.kind == "elastic":
        assert target.partitioned is not None
        queue = target.partitioned.work_queue
        by_segment: dict[int, list[Event]] = {}
        for letter in part:
            event = _event(target, letter, f"{letter.segment}.{letter.subject}")
            by_segment.setdefault(letter.segment, []).append(event)
        for segment, events in by_segment.items():
            write.add(queue, batch_of(events, now), segment=segment, captured=True)
        return
    by_stream: dict[str, list[Event]] = {}
    for letter in part:
        subject = restored[letter.id]
        by_stream.setdefault(log.routes.stream_for(subject), []).append(
            _event(target, letter, subject)
        )
    for name, events in by_stream.items():
        write.add(name, batch_of(events, now), captured=True)


def _event(target: Target, letter: Letter, subject: str) -> Event:
    from headrace.log.events import Event

    return Event(
        subject=subject,
        value=letter.value,
        key=letter.key,
        headers=(
            *letter.headers,
            (headers.PUT_BACK, target.key),
            (headers.LIVES, str(letter.lives)),
        ),
        timestamp=_EPOCH + timedelta(microseconds=letter.timestamp_us),
    )


def _restored(log: Log, target: Target, due: Sequence[Letter]) -> dict[int, str]:
    """The subjects under which letters are published again; all of them, before any is."""
    found = {}
    in_shares = any(reader.member for reader in target.readers)
    for letter in due:
        subject = _original(log, target, letter) if in_shares else letter.subject
        if target.kind != "elastic":
            try:
                log.routes.stream_for(subject)
            except NoStreamError as error:
                raise UndeliverableLetterError(
                    target.name, letter.id, f"no stream captures {subject!r} any more"
                ) from error
        found[letter.id] = subject
    return found


def _original(log: Log, target: Target, letter: Letter) -> str:
    """The subject with its partition, which members of shares do not see."""
    segment = log.stream(letter.stream).segment(letter.segment)
    if segment is not None and segment.tail <= letter.offset < segment.head:
        query = Query(start={letter.segment: letter.offset}, segments=[letter.segment], limit=1)
        for rows in log.rows(letter.stream, query):
            if rows and rows[0].offset == letter.offset:
                return rows[0].subject
    raise UndeliverableLetterError(
        target.name,
        letter.id,
        f"the event at {letter.stream}/{letter.segment}:{letter.offset} that tells its partition "
        "is trimmed",
    )


def _seen_by(log: Log, target: Target, subjects: set[str]) -> tuple[str, ...]:
    reached = {(log.routes.stream_for(subject), subject) for subject in subjects}

    def look(tx: Tx) -> tuple[str, ...]:
        return tuple(
            other.name
            for other in targets.all_targets(tx)
            if other.name != target.name
            and any(
                stream in {reader.stream for reader in other.readers}
                and (other.kind == "static" or matches(other.filter or ">", subject))
                for stream, subject in reached
            )
        )

    return log.catalog.read(look, snapshot=True)


def _decision(part: Sequence[Letter], *, back: bool) -> Decision:
    subjects = sorted({letter.subject for letter in part})
    shown = ", ".join(subjects[:3]) + (
        f" and {len(subjects) - 3} more" if len(subjects) > 3 else ""
    )
    verb = "put back" if back else "discarded"
    return Decision(
        what=What.PUT_BACK if back else What.DEAD_LETTER,
        reason=f"{len(part):,} dead letter{'s' if len(part) > 1 else ''} {verb} by an "
        f"administrator: {shown}",
    )


def _parts(due: Sequence[Letter]) -> Iterator[list[Letter]]:
    part: list[Letter] = []
    size = 0
    for letter in due:
        if part and (len(part) >= PART_LETTERS_MAX or size + len(letter.value) > PART_BYTES_MAX):
            yield part
            part, size = [], 0
        part.append(letter)
        size += len(letter.value)
    if part:
        yield part
