"""Commits of acks that wait for reports: told once, when all is known, and never at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.errors import AckUnsettledError, Fenced
from headrace.groups.consumer import OwnedUnit, UnitAck
from headrace.groups.progress import Progress
from headrace.groups.shared.runtime.reports import Report, Waiting
from headrace.groups.shared.runtime.settling import Verdict


def ack(unit: str) -> UnitAck:
    owned = OwnedUnit(
        group="g", unit=unit, token=3, stream="s", segment=0, segment_id=1, progress=Progress()
    )
    return UnitAck(owned, Progress(floor=5))


class Told:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.results: list[list[Fenced | None]] = []
        self.errors: list[BaseException | None] = []

    def __call__(self, results: list[Fenced | None], error: BaseException | None) -> None:
        self.results.append(results)
        self.errors.append(error)


def at_once(tell: Callable[[], None]) -> None:
    tell()


def test_a_commit_is_over_when_the_last_of_its_reports_is_decided() -> None:
    told, first, second = Told(), Report(((0, 5),)), Report(((5, 9),))
    acks = [ack("a"), ack("b"), ack("c")]
    Waiting(acks, [first, Verdict.COUNTS, second], told, at_once)
    second.tell(Verdict.DOES_NOT)
    assert told.results == []
    first.tell(Verdict.COUNTS)
    first.tell(Verdict.DOES_NOT)  # decided before
    [[one, two, three]] = told.results
    assert (one, two) == (None, None)
    assert three is not None
    assert (three.unit, three.token) == ("c", 3)


def test_two_commits_may_wait_for_the_same_report() -> None:
    told, report = Told(), Report(((0, 5),))
    Waiting([ack("a")], [report], told, at_once)
    Waiting([ack("a")], [report], told, at_once)
    report.tell(Verdict.COUNTS)
    assert told.results == [[None], [None]]


def test_what_cannot_be_known_is_an_error_that_names_the_units() -> None:
    told, report = Told(), Report(((0, 5),))
    Waiting([ack("a"), ack("b")], [Verdict.COUNTS, report], told, at_once)
    report.tell(Verdict.UNKNOWN)
    [error] = told.errors
    assert isinstance(error, AckUnsettledError)
    assert "b" in str(error)


def test_a_commit_that_is_decided_from_the_beginning_is_told_a_turn_later() -> None:
    async def work() -> None:
        told, report = Told(), Report(((0, 5),))
        report.tell(Verdict.COUNTS)
        Waiting([ack("a"), ack("b")], [report, Verdict.DOES_NOT], told, at_once)
        assert told.results == []
        await asyncio.sleep(0)
        [[one, two]] = told.results
        assert one is None
        assert two is not None

    asyncio.run(work())
