"""Which stream captures a subject is known without reading all streams again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.catalog import Catalog, Tx, streams
from headrace.errors import NoStreamError, SubjectOverlapError, UnknownStreamError
from headrace.log.log import Log
from headrace.store import Store
from tests.log.helpers import create, event, read


@pytest.fixture
def other(reopen: Callable[[], Catalog], store: Store) -> Log:
    """Another program on the same catalog."""
    return Log(reopen(), store)


def test_only_new_streams_are_read_however_many_there_are(
    log: Log, other: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(30):
        create(other, f"s{n}")
    log.publish(event(stream="s3"))
    counts = []
    real = streams.stored_configs

    def counted(tx: Tx, after_id: int = -1) -> list[tuple[int, str, bytes]]:
        found = real(tx, after_id)
        counts.append(len(found))
        return found

    monkeypatch.setattr(streams, "stored_configs", counted)
    log.publish(event(stream="s7"))
    assert counts == []
    create(other, "new")
    counts.clear()
    log.publish(event(stream="new"))
    assert counts == [1]
    create(log, "newer")
    with pytest.raises(SubjectOverlapError, match="of stream 's5'"):
        create_with(log, "twice", "s5.*")
    assert max(counts) == 1


def test_streams_that_others_made_or_deleted_are_seen(log: Log, other: Log) -> None:
    create(log, "a")
    log.publish(event(stream="a"))
    with pytest.raises(SubjectOverlapError):
        create_with(other, "b", "a.*")
    other.delete_stream("a")
    create_with(other, "b", "a.*")
    # Its route is cached, so the first attempt finds out that the stream is gone.
    with pytest.raises(UnknownStreamError):
        log.publish(event(stream="a"))
    assert log.publish(event(stream="a")).stream == "b"
    with pytest.raises(SubjectOverlapError, match="of stream 'b'"):
        create(log, "a")
    # And one that was made anew under its name captures what it says now.
    other.delete_stream("b")
    create_with(other, "b", "c.>")
    with pytest.raises(NoStreamError):
        log.publish(event(stream="none"))
    with pytest.raises(NoStreamError):
        log.publish(event(stream="a"))
    assert log.publish(event(stream="c")).stream == "b"
    create(log, "a")
    assert log.publish(event(stream="a")).stream == "a"
    assert len(read(log, "a")) == 1


def test_of_filters_that_match_the_newest_counts(log: Log, other: Log) -> None:
    create(log, "a")
    log.publish(event(stream="a"))
    other.delete_stream("a")
    create_with(other, "b", "a.*")
    log.routes.learn()
    # This program has not heard that the first stream is gone.
    assert log.routes.find("a.new") == "b"
    assert log.routes.find("a.new.too") == "a"


def test_a_new_subject_asks_the_catalog_for_nothing(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(log, "a")
    log.publish(event(stream="a"))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the catalog was read")

    monkeypatch.setattr(log.catalog, "read", refuse)
    assert log.publish(event(stream="a.never.seen")).stream == "a"


def create_with(log: Log, name: str, pattern: str) -> None:
    log.create_stream(name, streams.StreamConfig(subjects=(pattern,)))
