"""Named subscriptions: the frontier is kept, one program holds it, acks and output are fenced."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import headrace
from headrace.catalog import Tx, epoch_subscriptions, leases
from headrace.epochs.core.antichains import Frontier
from headrace.epochs.runtime.acks import NamedHold
from headrace.epochs.runtime.given import EpochStep
from headrace.errors import (
    EpochAckError,
    EpochSubscriptionError,
    EpochSubscriptionInUseError,
    Fenced,
)
from tests.epochs.runtime.test_subscription import stream


async def test_acked_epochs_do_not_come_again_and_others_do(tmp_path: Path) -> None:
    async with headrace.open(tmp_path) as hr:
        writer = await stream(hr)
        for time in range(5):
            writer.publish("eu", [(time, b"x")], advance_to=time + 1)
        async with hr.epochs("orders", name="report", start="earliest") as epochs:
            it = aiter(epochs)
            first, second = await anext(it), await anext(it)
            await first.ack()
            with pytest.raises(EpochAckError, match="acked up to"):
                await first.ack()
        async with hr.epochs("orders", name="report") as epochs:
            it = aiter(epochs)
            again = await anext(it)
            assert again.time == second.time
            await (await anext(it)).ack()  # with all that came before it
            with pytest.raises(EpochAckError):
                await again.ack()
        for options in ({"start": "now"}, {"mode": "streaming"}, {"segments": [0]}):
            with pytest.raises(EpochSubscriptionError, match="was made with"):
                async with hr.epochs("orders", name="report", **options):
                    pass
        async with hr.epochs("orders", start="earliest") as epochs:
            with pytest.raises(EpochAckError, match="only a named"):
                await (await anext(aiter(epochs))).ack()


async def test_output_and_progress_commit_together(tmp_path: Path) -> None:
    async with headrace.open(tmp_path) as hr:
        writer = await stream(hr)
        await hr.create_stream("reports", subjects=["reports.>"])
        for time in range(3):
            writer.publish("eu", [(time, b"x")])
        writer.close("eu")
        async with hr.epochs("orders", name="report", start="earliest") as epochs:
            it = aiter(epochs)
            epoch = await anext(it)
            output = epoch.transaction()
            await output.__aenter__()
            output.publish("reports.day", b"never")
            await output.__aexit__(RuntimeError, RuntimeError(), None)
            async with epoch.transaction() as tx:
                tx.publish("reports.day", b"0")
        async with hr.epochs("orders", name="report") as epochs:
            async for epoch in epochs:
                async with epoch.transaction() as tx:
                    tx.publish("reports.day", str(epoch.time).encode())
        values = [v for batch in hr.log.read("reports") for v in batch["value"].to_pylist()]
        assert values == [b"0", b"1", b"2"]
        async with hr.epochs("orders", name="report") as epochs:
            assert [epoch async for epoch in epochs] == []


async def test_one_program_holds_it_and_one_that_was_replaced_is_fenced(tmp_path: Path) -> None:
    async with headrace.open(tmp_path) as hr, headrace.open(tmp_path) as other:
        writer = await stream(hr)
        await hr.create_stream("reports", subjects=["reports.>"])
        writer.publish("eu", [(1, b"x")], advance_to=2)
        async with hr.epochs("orders", name="report", start="earliest") as epochs:
            epoch = await anext(aiter(epochs))
            with pytest.raises(EpochSubscriptionInUseError, match="another program"):
                async with other.epochs("orders", name="report", standby=False):
                    pass
            successor = other.epochs("orders", name="report")
            opening = asyncio.ensure_future(successor.__aenter__())
            await asyncio.sleep(0)
            assert not opening.done()
            # As if this program had been frozen past its lease.
            hr.log.catalog.write(
                lambda tx: leases.fence(tx, epoch_subscriptions.lease_name("report"))
            )
            await asyncio.wait_for(opening, 30)
            with pytest.raises(Fenced):
                await epoch.ack()
            with pytest.raises(Fenced):
                async with epoch.transaction() as tx:
                    tx.publish("reports.day", b"never")
            assert list(hr.log.read("reports")) == []
            theirs = await anext(aiter(successor))
            assert theirs.time == 1
            await theirs.ack()
            await successor.close()


async def test_a_subscription_is_listed_and_forgotten(tmp_path: Path) -> None:
    async with headrace.open(tmp_path) as hr:
        await stream(hr)
        async with hr.epochs("orders", name="report"):
            (found,) = await hr.epoch_subscriptions()
            assert (found.name, found.streams, found.frontier, found.held) == (
                "report", ("orders",), (0,), True
            )  # fmt: skip
        (found,) = await hr.epoch_subscriptions()
        assert not found.held
        await hr.forget_epoch_subscription("report")
        assert await hr.epoch_subscriptions() == ()
        with pytest.raises(headrace.errors.UnknownEpochSubscriptionError, match="no subscription"):
            await hr.forget_epoch_subscription("report")


async def test_a_transaction_that_is_cancelled_while_it_commits_has_its_output_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with headrace.open(tmp_path) as hr:
        writer = await stream(hr)
        await hr.create_stream("reports", subjects=["reports.>"])
        writer.publish("eu", [(1, b"x")], advance_to=2)

        async def commit(epoch: EpochStep, value: bytes) -> None:
            async with epoch.transaction() as tx:
                tx.publish("reports.day", value)

        async with hr.epochs("orders", name="report", start="earliest") as epochs:
            epoch = await anext(aiter(epochs))
            loop, stage = asyncio.get_running_loop(), NamedHold.stage

            def stage_and_cancel(hold: NamedHold, tx: Tx, frontier: Frontier) -> None:
                stage(hold, tx, frontier)
                loop.call_soon_threadsafe(first.cancel)
                cancelled.wait(10)  # and only then goes on to commit

            monkeypatch.setattr(NamedHold, "stage", stage_and_cancel)
            cancelled = threading.Event()
            first = asyncio.ensure_future(commit(epoch, b"first"))
            first.add_done_callback(lambda _: cancelled.set())
            with pytest.raises(asyncio.CancelledError):
                await first
            monkeypatch.setattr(NamedHold, "stage", stage)
            with pytest.raises(EpochAckError, match="acked up to"):
                await commit(epoch, b"again")
            with pytest.raises(EpochAckError, match="acked up to"):
                await epoch.ack()
        values = [v for batch in hr.log.read("reports") for v in batch["value"].to_pylist()]
        assert values == [b"first"]
