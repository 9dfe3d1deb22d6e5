"""A commit whose answer was lost: the caller hears of it, and nothing is written twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.catalog import Tx
from headrace.catalog.base import Catalog
from headrace.catalog.committer import Done
from headrace.errors import CatalogUnavailableError


def lose_answers(monkeypatch: pytest.MonkeyPatch, catalog: Catalog) -> None:
    """Writes are committed, but whoever sent them is told that the catalog went away."""
    submit = catalog.submit

    def losing(fn: Any, done: Done, *, locks: Iterable[str] = (), sync: bool = True) -> None:
        def answer(result: Any, error: BaseException | None) -> None:
            done(result, CatalogUnavailableError("the connection broke"))

        submit(fn, answer, locks=locks, sync=sync)

    write = catalog.write

    def losing_write(fn: Any, **options: Any) -> None:
        write(fn, **options)
        raise CatalogUnavailableError("the connection broke")

    monkeypatch.setattr(catalog, "submit", losing)
    monkeypatch.setattr(catalog, "write", losing_write)


def test_events_of_an_unknown_commit_to_two_streams_are_not_published_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first commit may take one event alone; the rest share the next, over both streams."""
    subjects = ["left.a", "left.a", "right.a", "left.b", "right.b"]

    async def main() -> list[int]:
        async with headrace.open(tmp_path / "data", loop_io=False) as hr:
            for name in ("left", "right"):
                await hr.create_stream(name, [f"{name}.>"])
            lose_answers(monkeypatch, hr.log.catalog)
            outcomes = await asyncio.gather(
                *(hr.publish(subject, b"1") for subject in subjects), return_exceptions=True
            )
            assert {type(outcome) for outcome in outcomes} == {CatalogUnavailableError}
            return [(await hr.stream(name)).segments[0].head for name in ("left", "right")]

    assert asyncio.run(main()) == [3, 2]


def test_publishing_goes_on_after_an_error_of_an_unexpected_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> list[object]:
        async with headrace.open(tmp_path / "data", loop_io=False) as hr:
            await hr.create_stream("left", ["left.>"])
            submit, write = hr.log.catalog.submit, hr.log.catalog.write
            first: list[object] = []

            def broken(tx: Tx) -> object:
                raise RuntimeError("a driver's own error")

            def chosen(fn: Any) -> Any:
                """What is run in place of a transaction: the first one fails."""
                first.append(fn)
                return broken if len(first) == 1 else fn

            # An event may be committed by the committer's thread, or settled on another.
            monkeypatch.setattr(
                hr.log.catalog, "submit", lambda fn, done, **o: submit(chosen(fn), done, **o)
            )
            monkeypatch.setattr(hr.log.catalog, "write", lambda fn, **o: write(chosen(fn), **o))
            one = asyncio.create_task(hr.publish("left.a", b"1"))
            while not first:
                await asyncio.sleep(0)
            two = asyncio.create_task(hr.publish("left.a", b"2"))
            return list(await asyncio.gather(one, two, return_exceptions=True))

    failed, published = asyncio.run(asyncio.wait_for(main(), 30))
    assert isinstance(failed, RuntimeError)
    assert isinstance(published, headrace.Position)
    assert published.offset == 0
