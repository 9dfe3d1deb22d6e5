"""What somebody is about to use stays while the page changes: focus, presses, what is open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

import headrace
from headrace.catalog import Tx
from tests.node.browser.conftest import go
from tests.node.support import RunningNode


def older(tx: Tx) -> None:
    """Its segments are ten minutes old: as wide on the map as they become."""
    of_shop = "(SELECT id FROM streams WHERE name = 'shop')"
    tx.execute(
        f"UPDATE segments SET created_us = created_us - 600000000 WHERE stream_id = {of_shop}"
    )


async def prepare(hr: headrace.Headrace) -> None:
    """A stream with a group that has decided something."""
    await hr.create_stream("shop", ["shop.>"], partitions=2)
    await hr.in_thread(hr.log.catalog.write, older)
    await hr.groups.create_static("shop", "till", max_members=2, members=["a", "b"])
    await hr.publish("shop.0", b"x", key="0")
    async with hr.join("shop", "till", member="a"), hr.join("shop", "till", member="b"):
        pass


@pytest.fixture
def shop(console: RunningNode) -> Iterator[RunningNode]:
    """The console with a stream of its own for each test."""
    console.do(prepare(console.hr))
    yield console
    console.do(console.hr.delete_stream("shop", force=True))


def publish(page: Page, node: RunningNode, count: int) -> None:
    """The event that makes it so many, and the stream's page has drawn it."""
    node.do(node.hr.publish(f"shop.{count}", b"x", key=str(count)))
    expect(page.locator("hr-stream")).to_contain_text(f"{count} since it was made")


def press(page: Page, what: Locator) -> None:
    """The mouse's button goes down on it, near its right edge, and stays down.

    Tiles begin at the right edge of the map and grow to the left; one that has just begun is so
    narrow that only its outline can be hit, and that moves.
    """
    what.scroll_into_view_if_needed()
    right = page.wait_for_function(WIDE_ENOUGH, arg=what.element_handle()).json_value()
    page.mouse.move(right - 4, middle(what)[1])
    page.mouse.down()


WIDE_ENOUGH = """element => {
    const box = element.getBoundingClientRect();
    return box.width > 8 && box.right;
}"""


def middle(what: Locator) -> tuple[float, float]:
    box = what.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_a_tile_of_the_map_keeps_the_focus(page: Page, shop: RunningNode) -> None:
    go(page, "/streams/shop")
    tile = page.get_by_role("button", name="segment 1,")
    tile.focus()
    publish(page, shop, 2)
    expect(tile).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("hr-stream h3")).to_have_text("Segment 1")
    publish(page, shop, 3)
    expect(tile).to_be_focused()


def test_a_tile_keeps_the_focus_when_others_come(page: Page, shop: RunningNode) -> None:
    shop.do(shop.hr.create_stream("shop2", ["shop2.>"], segments=2))
    go(page, "/streams/shop2")
    tile = page.get_by_role("button", name="segment 1,")
    tile.focus()
    shop.do(shop.hr.in_thread(shop.hr.log.split, "shop2", 0, 2))
    expect(page.locator(".map [role=button]")).to_have_count(4)
    expect(tile).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("hr-stream h3")).to_have_text("Segment 1")
    shop.do(shop.hr.delete_stream("shop2"))


def test_a_press_on_the_map_counts_though_it_is_drawn_meanwhile(
    page: Page, shop: RunningNode
) -> None:
    go(page, "/streams/shop")
    press(page, page.locator(".map .tile-seg").last)
    publish(page, shop, 2)
    page.mouse.up()
    expect(page.locator("hr-stream h3")).to_have_text("Segment 1")
    press(page, page.get_by_role("button", name="Split"))
    publish(page, shop, 3)
    page.mouse.up()
    expect(page.locator("dialog h2")).to_have_text("Split segment 1 of shop")


def test_a_press_on_a_group_counts_though_it_is_drawn_meanwhile(
    page: Page, shop: RunningNode
) -> None:
    go(page, "/groups/shop%2Ftill")
    lag = page.locator("hr-group .tile", has_text="Lag").locator(".v")
    expect(lag).to_have_text("1")
    expect(page.locator("hr-group .findings li")).to_have_count(2)  # nothing moves any more
    page.locator("hr-group .feed summary").first.click()
    press(page, page.get_by_role("button", name="as it was then").first)
    shop.do(shop.hr.publish("shop.2", b"x", key="2"))
    expect(lag).to_have_text("2")
    page.mouse.up()
    expect(page.locator("hr-group")).to_contain_text("last decision before it")
    press(page, page.locator("hr-group .chart"))
    shop.do(shop.hr.publish("shop.3", b"x", key="3"))
    expect(lag).to_have_text("3")
    page.mouse.move(*middle(page.locator("hr-group .chart")))
    before = page.url
    page.mouse.up()
    expect(page).not_to_have_url(before)


def test_a_list_that_is_open_keeps_what_is_chosen_in_it(page: Page, shop: RunningNode) -> None:
    hr = shop.hr
    shop.do(hr.groups.create_static("shop", "zebra", max_members=2, members=["a"]))
    go(page, "/streams/shop")
    chooser = page.get_by_label("whose progress lies on the map")
    expect(chooser.locator("option")).to_have_text(["nobody", "shop/till", "shop/zebra"])
    chooser.focus()
    chooser.press("Space")
    chooser.press("ArrowDown")
    shop.do(hr.groups.create_static("shop", "apple", max_members=2, members=["a"]))
    publish(page, shop, 2)
    expect(chooser).to_be_focused()
    chooser.press("Enter")
    expect(chooser).to_have_value("shop/zebra")
    publish(page, shop, 3)
    expect(chooser).to_be_focused()
    expect(chooser).to_have_value("shop/zebra")
    chooser.blur()
    publish(page, shop, 4)
    names = ["nobody", "shop/apple", "shop/till", "shop/zebra"]
    expect(chooser.locator("option")).to_have_text(names)
    expect(chooser).to_have_value("shop/zebra")


def test_a_stream_tells_of_its_groups_though_nothing_is_appended(
    page: Page, shop: RunningNode
) -> None:
    go(page, "/streams/shop")
    groups = page.get_by_role("region", name="Groups that consume it")
    expect(groups.locator("tbody tr")).to_have_count(1)
    shop.do(shop.hr.groups.create_static("shop", "apple", max_members=2, members=["a"]))
    expect(groups.locator("tbody tr")).to_have_count(2)
    behind = page.locator("hr-stream .tile", has_text="Groups").locator(".s")
    expect(behind).to_have_text("at most 1 behind")

    for name in ("shop/till", "shop/apple"):
        shop.do(shop.hr.seek(name, "latest"))
    expect(behind).to_have_text("none is behind")


def test_what_a_chart_tells_stays_and_is_of_what_lies_under_the_pointer(
    page: Page, shop: RunningNode
) -> None:
    go(page, "/streams/shop")
    chart = page.get_by_role("img", name="events a second over time")
    tip = chart.locator("[data-key=tip] .tip")
    chart.scroll_into_view_if_needed()
    page.mouse.move(*middle(chart))
    expect(tip).to_have_count(1)
    publish(page, shop, 2)
    publish(page, shop, 3)
    expect(tip).to_have_count(1)
    newest = page.evaluate(NEWEST)
    assert newest["told"] in newest["table"]
    page.mouse.move(1, 1)
    expect(tip).to_have_count(0)
    publish(page, shop, 4)
    expect(tip).to_have_count(0)


NEWEST = """() => ({
  told: document.querySelector("[data-key=tip] .tip").textContent.split("  ")[0],
  table: [...document.querySelectorAll("details td:first-child")].map((each) => each.textContent),
})"""


def test_a_link_keeps_the_focus_when_its_row_goes_up(page: Page, shop: RunningNode) -> None:
    shop.do(shop.hr.create_stream("shop2", ["shop2.>"]))
    go(page, "/streams?q=shop&sort=-retained_events")
    links = page.locator("hr-streams td a")
    expect(links).to_have_text(["shop", "shop2"])
    links.last.focus()
    for at in range(2):
        shop.do(shop.hr.publish(f"shop2.{at}", b"x"))
    expect(links).to_have_text(["shop2", "shop"])
    expect(links.first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("hr-stream h1")).to_have_text("shop2")
    shop.do(shop.hr.delete_stream("shop2"))


@pytest.mark.usefixtures("overview")
def test_the_overview_keeps_the_focus_when_something_is_decided(
    page: Page, shop: RunningNode
) -> None:
    async def decide() -> None:
        async with shop.hr.join("shop", "till", member="a"):
            pass

    links = page.locator("hr-overview .feed a")
    links.first.focus()
    chosen = page.evaluate("document.activeElement.getAttribute('href')")
    assert "decision=" in chosen
    shop.do(decide())
    expect(links.first).not_to_have_attribute("href", chosen)
    assert page.evaluate("document.activeElement.getAttribute('href')") == chosen


def test_buttons_of_epochs_keep_focus_and_press(page: Page, console: RunningNode) -> None:
    hr = console.hr
    epochs = headrace.Epochs(publishers=("eu",))
    console.do(hr.create_stream("evenings", ["evenings.>"], epochs=epochs))

    publisher = hr.epoch_publisher("evenings", "eu")
    evenings = console.do(publisher.__aenter__())

    def append(epoch: int) -> None:
        console.do(evenings.append(epoch, [headrace.Event(subject="evenings.x", value=b"x")]))
        expect(card.locator("[aria-label='open epochs']")).to_contain_text(f"{epoch}: 1 row")

    go(page, "/epochs")
    card = page.locator("hr-epochs .card", has=page.locator("h2", has_text="evenings"))
    button = card.get_by_role("button", name="Do without")
    summary = card.locator("summary")
    button.focus()
    append(1)
    expect(button).to_be_focused()
    summary.click()
    append(2)
    expect(summary).to_be_focused()
    expect(card.locator("details tbody tr")).to_have_count(2)
    expect(card.locator("details tbody tr").last).to_be_visible()
    summary.click()  # else the next row moves what is below it
    press(page, button)
    append(3)
    page.mouse.up()
    expect(page.locator("dialog h2")).to_have_text("Do without eu")
    console.do(publisher.__aexit__(None, None, None))
    console.do(hr.delete_stream("evenings"))


RULES = """async () => {
  const from = document.querySelector("script[type=module]").src;
  const { copyable, h, redraw } = await import(from.replace("load.js", "dom.js"));
  const place = document.body.appendChild(h("div"));
  const said = [];
  const button = (text, call) => h("button", { onclick: () => said.push(call) }, text);
  const item = (key, ...rest) => h("li", { "data-key": key }, ...rest);
  const same = {};

  redraw(place, button("Go", "old"), h("details", h("summary", "more"), "a"));
  let [first, details] = place.children;
  details.open = true;
  const text = details.lastChild;
  redraw(place, button("Go", "new"), h("details", h("summary", "more"), "b"));
  place.firstChild.click();
  same.button = place.firstChild === first;
  same.details = place.lastChild === details && details.open;
  same.text = details.lastChild === text && text.data === "b";
  redraw(place, button("Stop", "stop"));
  first.click();
  same.renamed = place.firstChild === first;

  redraw(place, item("a", h("i")), item("b", button("Go", "b")), item("c"));
  const [a, b, c] = place.children;
  b.firstChild.focus();
  redraw(place, item("n"), item("c"), item("b", button("Go", "b2")), item("a", h("i.x")));
  same.keyed = [...place.children].slice(1).every((each, at) => each === [c, b, a][at]);
  same.focus = document.activeElement === b.firstChild;
  same.class = a.firstChild.className === "x";
  b.firstChild.click();

  redraw(place, copyable("one"), copyable("two"));
  const two = place.lastChild;
  two.lastChild.textContent = "copied";
  redraw(place, copyable("two"));
  same.copied = place.firstChild === two && two.lastChild.textContent === "copied";

  const wide = (width) => h("p", { vars: { "min-width": width }, title: width });
  redraw(place, wide("4px"));
  const p = place.firstChild;
  redraw(place, wide("8px"));
  same.style = place.firstChild === p && getComputedStyle(p).minWidth;
  redraw(place, h("p", null, "text", false, 0));
  same.attributes = p.getAttributeNames().length;
  same.children = p.textContent;
  place.remove();
  return { said, ...same };
}"""


@pytest.mark.usefixtures("overview")
def test_what_is_drawn_again_is_the_same_where_it_means_the_same(page: Page) -> None:
    found: dict[str, Any] = page.evaluate(RULES)
    # A handler follows its button; a button with another name is another button.
    assert found.pop("said") == ["new", "new", "b2"]
    assert found.pop("renamed") is False
    assert (found.pop("style"), found.pop("attributes"), found.pop("children")) == (
        "8px",
        0,
        "text0",
    )
    assert [name for name, kept in found.items() if not kept] == []
