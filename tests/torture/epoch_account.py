"""The account of a torture of epochs: what was stored, what counts of it, and who was given what.

Everything is judged against the lines of the progress log and the rows themselves; the sources are
known, so it is known too what every epoch has to hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from headrace.epochs.core.lines import Line
from headrace.epochs.core.times import TimeShape
from tests.torture.epoch_worker import Seen, digest, rows_of

SHAPE = TimeShape()

Place = tuple[int, int]
"""Segment and offset."""


class Stored(msgspec.Struct, frozen=True):
    """A row as it is stored."""

    epoch: int
    value: bytes


class Counted(msgspec.Struct, frozen=True):
    """What counts of a stream: the values of each publisher in each epoch, up to a frontier."""

    frontier: int
    rows: dict[tuple[str, int], list[bytes]]
    taken_back: int
    lives: set[tuple[str, int]]
    """Publishers and the tokens under which they wrote."""
    findings: list[str]

    def digests(self) -> dict[int, str]:
        """Of every complete epoch that has rows; one without is not given to anybody."""
        found: dict[int, list[bytes]] = {}
        for (_, epoch), values in sorted(self.rows.items()):
            if epoch < self.frontier:
                found.setdefault(epoch, []).extend(values)
        return {epoch: digest(values) for epoch, values in found.items()}


def count(lines: Sequence[Line], stored: Mapping[Place, Stored]) -> Counted:
    """Go through the lines as they were committed."""
    findings: list[str] = []
    rows: dict[tuple[str, int], list[bytes]] = {}
    left = dict(stored)
    tokens: dict[str, int] = {}
    lives = {(line.publisher, line.token) for line in lines}
    before = taken_back = 0
    for number, line in enumerate(lines):
        name = line.publisher
        if line.token < tokens.get(name, 0):
            findings.append(f"line {number}: {name} wrote with token {line.token} when replaced")
        tokens[name] = max(line.token, tokens.get(name, 0))
        for key in [key for key in rows if line.takes_back(SHAPE, key[0], key[1])]:
            taken_back += len(rows.pop(key))
        for span in line.spans:
            for offset in range(span.start, span.end):
                row = left.pop((span.segment, offset), None)
                if row is None:
                    findings.append(f"line {number}: its row {span.segment}/{offset} is not there")
                elif row.epoch not in line.times or row.epoch < before:
                    findings.append(f"line {number}: a row of {row.epoch}, complete is {before}")
                else:
                    rows.setdefault((name, row.epoch), []).append(row.value)
        (now,) = line.lower
        assert isinstance(now, int)
        if now < before:
            findings.append(f"line {number}: the frontier went back from {before} to {now}")
        before = now
    if left:
        findings.append(f"{len(left)} rows are in no line, {sorted(left)[:3]}")
    return Counted(before, rows, taken_back, lives, findings)


def judge_sources(counted: Counted, publishers: Sequence[str]) -> list[str]:
    """Every complete epoch holds what its sources have, put there by one life of each publisher."""
    found = []
    for name in publishers:
        for epoch in range(counted.frontier):
            values = [value.decode().split() for value in counted.rows.get((name, epoch), [])]
            numbers = sorted(int(value[2]) for value in values)
            if numbers != list(range(rows_of(name, epoch))):
                found.append(f"epoch {epoch} has rows {numbers} of {name}")
            if len({value[3] for value in values}) > 1:
                found.append(f"epoch {epoch} has rows of several lives of {name}")
            if any(value[:2] != [name, str(epoch)] for value in values):
                found.append(f"epoch {epoch} has rows of another epoch or publisher than {name}")
    return found


def judge_chain(
    who: str, given: Sequence[tuple[int, str]], digests: Mapping[int, str]
) -> list[str]:
    """A chain has every epoch once, in order and whole."""
    found = []
    times = [time for time, _ in given]
    if times != sorted(digests):
        counts = Counter(times)
        twice = sorted(time for time, n in counts.items() if n > 1)
        lost = sorted(digests.keys() - counts.keys())
        found.append(f"{who}: not every epoch once and in order: twice {twice}, lost {lost}")
    for time, what in given:
        if digests.get(time) != what:
            found.append(f"{who}: epoch {time} was given as {what}, it is {digests.get(time)}")
    return found


def judge_acks(who: str, seen: Sequence[Seen], digests: Mapping[int, str]) -> list[str]:
    """What was acked never comes to a later holder; each is acked once, nothing is left out.

    Holders are told apart by their fencing tokens, not by clocks: a program that is frozen between
    reading its frontier and giving the first epoch gives, late, what its successor has acked.  It
    may, since it can ack nothing any more.
    """
    found = []
    acked: dict[int, Seen] = {}
    given: dict[int, list[int]] = {}
    for each in sorted(seen, key=lambda each: (each.under, each.at_ns)):
        ((time, what),) = each.epochs
        if digests.get(time) != what:
            found.append(f"{who}: epoch {time} was given as {what}, it is {digests.get(time)}")
        if each.kind == "acked":
            if time in acked:
                found.append(f"{who}: epoch {time} was acked twice")
            elif acked and time < max(acked):
                found.append(f"{who}: epoch {time} was acked after {max(acked)}")
            acked[time] = each
            continue
        if time in acked:  # under an earlier token, or the same one before
            found.append(f"{who}: epoch {time} came again after it was acked")
        given.setdefault(each.under, []).append(time)
    for times in given.values():
        due = [time for time in sorted(digests) if times[0] <= time <= times[-1]]
        if times != due:
            found.append(f"{who}: one subscription was given {times}")
    lost = digests.keys() - {time for times in given.values() for time in times}
    if lost:
        found.append(f"{who}: never given: {sorted(lost)}")
    return found


def judge_relay(counted: Counted, inputs: Sequence[bytes], lag: int) -> list[str]:
    """Every input is one epoch of two rows, once; as many are acked as there are epochs."""
    found = []
    epochs: dict[int, list[bytes]] = {}
    for (_, epoch), values in counted.rows.items():
        epochs.setdefault(epoch, []).extend(values)
    if sorted(epochs) != list(range(counted.frontier)):
        found.append(f"relay: frontier {counted.frontier}, but rows in {len(epochs)} epochs")
    found += [f"relay: epoch {e} is {v}" for e, v in epochs.items() if len(v) != 2 or v[0] != v[1]]
    through = Counter(values[0] for values in epochs.values())
    twice = [value for value, n in through.items() if n > 1]
    if twice:
        found.append(f"relay: {len(twice)} inputs came through twice, {twice[:3]}")
    missing = len(set(inputs) - through.keys())
    if missing != lag:
        found.append(f"relay: {missing} inputs did not come through, {lag} are not acked")
    return found
