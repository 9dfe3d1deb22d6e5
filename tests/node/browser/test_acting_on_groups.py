"""What is done to shared groups, reader groups and subscriptions in the console."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Page, expect

import headrace
from tests.node.browser.conftest import go
from tests.node.browser.test_console import READER, SHARED
from tests.node.support import RunningNode
from tests.support import wait_until


def open_settings(page: Page, console: RunningNode, path: str) -> None:
    go(page, path)
    page.get_by_role("button", name="Settings").click()
    expect(page.locator("dialog .preview")).to_have_text("nothing changes")


def test_a_shared_group_is_configured_and_a_change_in_between_is_said(
    page: Page, console: RunningNode
) -> None:
    open_settings(page, console, f"/groups/{SHARED}")
    page.get_by_label("A fair share is measured in").select_option("lag")
    page.get_by_label("Evict who acks nothing for so many seconds").fill("90.5")
    preview = page.locator("dialog .preview")
    expect(preview).to_have_text("balance from count to lag, stall_timeout_ms from 60000 to 90500")
    expect(page.locator("dialog .cmd code")).to_have_text(
        "headrace group shared configure '$share/audit/orders.>' "
        "--balance lag --stall-timeout 90.5s"
    )
    console.do(console.hr.shared_groups.configure("audit", heartbeat_ms=2000))
    page.get_by_role("button", name="Change them").click()
    expect(page.locator("dialog .problem")).to_contain_text("have changed since")
    page.get_by_role("button", name="Cancel").click()
    open_settings(page, console, f"/groups/{SHARED}")
    page.get_by_label("Split segments while there are more members").select_option("yes")
    page.get_by_role("button", name="Change them").click()
    expect(page.locator("dialog")).to_have_count(0)
    found = console.do(console.hr.shared_groups.get("audit")).properties
    assert (found.scale_for_members, found.balance.value) == (True, "count")
    expect(page.locator("hr-group .feed")).to_contain_text("scale_for_members was set")


def test_a_reader_group_goes_back_to_a_checkpoint(page: Page, console: RunningNode) -> None:
    open_settings(page, console, READER)
    page.get_by_label("Retention keeps").select_option("checkpoint")
    page.get_by_role("button", name="Change them").click()
    expect(page.locator("dialog")).to_have_count(0)
    group = console.do(console.hr.reader_groups.get("report"))
    assert console.do(group.info()).retain == "checkpoint"
    page.get_by_role("button", name="Take one").click()
    page.get_by_label("Name", exact=True).fill("weekly")
    page.get_by_role("button", name="Take it").click()
    expect(page.locator("dialog code")).to_contain_text("headrace-checkpoint:")
    page.keyboard.press("Escape")
    table = page.get_by_role("region", name="Checkpoints")
    row = table.locator("tbody tr", has_text="weekly")
    expect(row).to_contain_text("complete")

    async def read() -> None:
        async with group.reader("r1") as reader:
            left = 5
            async for delivery in reader:
                await delivery.ack()
                left -= 1
                if not left:
                    return

    console.do(read())
    row.get_by_role("button", name="Go back").click()
    button = page.get_by_role("button", name="Reset it")
    expect(page.locator("dialog .preview")).to_contain_text("5 events come again")
    expect(button).to_be_disabled()
    page.get_by_label("type reader/report").fill("reader/report")
    button.click()
    expect(page.locator("dialog")).to_have_count(0)
    expect(page.locator("hr-group .feed")).to_contain_text("weekly")

    def floors() -> list[int]:
        return [each["floor"] for each in console.get("/groups/reader%2Freport/units")["units"]]

    wait_until(lambda: sum(floors()) == 0, "its places before the reset")


def test_a_reader_is_put_offline_and_what_waits_for_it_is_given_up(
    page: Page, console: RunningNode
) -> None:
    group = console.do(console.hr.reader_groups.get("report"))

    async def hold() -> Any:
        reader = await group.reader("idle").__aenter__()
        async for _ in reader:  # which it keeps
            return reader
        raise AssertionError

    reader = console.do(hold())
    go(page, READER)
    units = page.get_by_role("region", name="Units")
    expect(units.locator("tbody tr", has_text="idle").first).to_be_visible()
    columns = units.locator("thead th").all_inner_texts()
    cells = units.locator(f"tbody tr td:nth-child({columns.index('In flight') + 1})")
    expect(cells.filter(has_text=re.compile("^1$"))).not_to_have_count(0)
    page.get_by_role("button", name="Take one").click()
    page.get_by_label("Name", exact=True).fill("waits")
    page.get_by_label("Wait for readers so many seconds").fill("0.2")
    page.get_by_role("button", name="Take it").click()
    expect(page.locator("dialog .problem")).to_contain_text("idle")
    page.get_by_role("button", name="Cancel").click()
    row = page.get_by_role("region", name="Checkpoints").locator("tbody tr", has_text="waits")
    expect(row).to_contain_text("for idle")
    row.get_by_role("button", name="Give up").click()
    page.get_by_role("button", name="Give it up").click()
    expect(row).to_have_count(0)
    page.get_by_role("button", name="Put offline").click()
    expect(page.locator("dialog .preview")).to_contain_text("others go on with")
    expect(page.locator("dialog .cmd code")).to_have_text("headrace reader offline report idle")
    page.get_by_role("button", name="Put it offline").click()
    expect(page.locator("hr-group .feed")).to_contain_text("somebody put it offline")
    console.do(reader.__aexit__(None, None, None))
    assert page.problems == []  # type: ignore[attr-defined]


def test_a_subscription_is_forgotten_with_its_name_typed(page: Page, console: RunningNode) -> None:
    async def subscribe() -> None:
        await console.hr.create_stream("nights", ["nights.>"], epochs=headrace.Epochs())
        async with console.hr.epochs("nights", mode="whole", name="dreams"):
            pass

    console.do(subscribe())
    go(page, "/epochs")
    row = page.get_by_role("region", name="Subscriptions to nights").locator("tbody tr")
    row.get_by_role("button", name="Forget").click()
    expect(page.locator("dialog .preview")).to_contain_text("subscription dreams to nights")
    expect(page.get_by_role("button", name="Forget it")).to_be_disabled()
    page.get_by_label("type dreams").fill("dreams")
    page.get_by_role("button", name="Forget it").click()
    expect(row).to_have_count(0)
    console.do(console.hr.delete_stream("nights"))
