"""A real browser on a real node: Debian's chromium, driven by Playwright.

Without a chromium these tests are left out with one line, unless ``HEADRACE_BROWSER=1`` asks for
them (``make test-browser``, ``.ci/run``).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Page,
    Request,
    Response,
    TimeoutError,
    ViewportSize,
    expect,
    sync_playwright,
)

from tests.node.browser.coverage import Coverage
from tests.node.support import RunningNode, running
from tests.support import wait_until

ENTER_MS = 60_000
"""The first page of a browser on a busy machine; what tests are about is waited for less."""
WAIT_MS = 20_000
"""How long something may take to appear: a machine may be busy."""
expect.set_options(timeout=WAIT_MS)

SIZE: ViewportSize = {"width": 1300, "height": 900}

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first is the same engine without the window's parts: half the CPU."""
FLAGS = (
    *("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)


def chromium() -> str | None:
    """The machine's browser."""
    given = os.environ.get("CHROMIUM")
    return given or next((found for name in NAMES if (found := shutil.which(name))), None)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = chromium()
    if path is None:
        text = "no chromium on this machine: the console was not tried in a browser"
        if os.environ.get("HEADRACE_BROWSER"):
            pytest.fail(text)
        pytest.skip(text)
    root = ("--no-sandbox",) if os.geteuid() == 0 else ()
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=[*FLAGS, *root])
        yield found
        found.close()


@pytest.fixture(scope="session")
def coverage() -> Coverage:
    """What of the console's code was run."""
    return Coverage()


async def fill(node: RunningNode) -> None:
    """Something of everything, and things that look like markup."""
    import headrace

    hr = node.hr
    await hr.create_stream("orders", ["orders.>"], segments=2)
    await hr.create_stream("payments", ["payments.>"], partitions=2)
    await hr.create_stream("days", ["days.>"], epochs=headrace.Epochs())
    await hr.groups.create_elastic(
        "orders", "billing", max_members=4, filter="orders.*.*", wildcards=[2], members=["m1"]
    )
    await hr.groups.create_static("payments", "ledger", max_members=2, members=["east", "west"])
    await hr.shared_groups.declare("audit", "orders.>", start="earliest")
    for at in range(30):
        await hr.publish(f"orders.eu.{at}", b'{"total": %d}' % at, key=str(at), headers={"h": b"1"})
        await hr.publish(f"payments.{at}", b"\x00\x01", key=str(at))
    await hr.publish("orders.odd.1", b"<img src=x onerror=alert(1)>\xe2\x80\xae", key="<b>odd</b>")
    await hr.in_thread(hr.log.split, "orders", 0, 2)
    async with hr.join("payments", "ledger", member="east") as member:
        async for delivery in member:
            await delivery.reject()
            break
    async with hr.epoch_publisher("days", "eu") as days:
        await days.append(1, [headrace.Event(subject="days.eu", value=b"x")], advance_to=2)
        await days.append(3, [headrace.Event(subject="days.eu", value=b"y")])
    await hr.create_stream(
        "cells", ["cells.>"], epochs=headrace.Epochs(length=2, publishers=("a", "b"))
    )
    for name, times in (("a", [(0, 0), (2, 0)]), ("b", [(0, 2), (0, 4)])):
        async with hr.epoch_publisher("cells", name) as cells:
            row = headrace.Event(subject="cells.x", value=b"x")
            await cells.append(times[0], [row], advance_to=times[1])
    group = await hr.reader_groups.create("report", streams=["orders"])
    await group.checkpoint("nightly")
    async with hr.epochs("days", mode="whole", name="monthly"):
        pass
    async with hr.session("worker-1") as session:
        await session.subscribe("$share/audit/orders.>")


async def link(node: RunningNode, other: str) -> None:
    """A second region, which has published what is not here yet."""
    import headrace

    async with headrace.open(other) as us:
        await us.regions.name("us")
    await node.hr.regions.name("eu")
    await node.hr.regions.link("payments", "us", catalog=other)
    await node.hr.regions.enable("payments", "ledger", home="eu")
    async with headrace.open(other) as us:
        for at in range(2):
            await us.publish(f"payments.us.{at}", b"x", key=str(at))


@pytest.fixture(scope="package")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node with something of everything."""
    with running(str(tmp_path_factory.mktemp("console") / "catalog")) as node:
        node.do(fill(node))
        node.do(link(node, str(tmp_path_factory.mktemp("other") / "catalog")))
        wait_until(lambda: node.get("/overview")["groups_count"] == 4, "all groups")
        yield node


@pytest.fixture
def context(browser: Browser, coverage: Coverage) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport=SIZE)
    made.set_default_timeout(WAIT_MS)
    yield made
    for page in made.pages:
        coverage.take(page)
    made.close()


class Asked:
    """What a page has asked the node for, to say where a page stands that does not come."""

    def __init__(self, page: Page) -> None:
        self.open: list[str] = []
        self.failed: list[str] = []
        page.on("request", lambda one: self.open.append(one.url))
        page.on("requestfinished", lambda one: self.open.remove(one.url))
        page.on("requestfailed", self._failed)
        page.on("response", self._answered)

    def _failed(self, one: Request) -> None:
        self.open.remove(one.url)
        self.failed.append(f"{one.url}: {one.failure}")

    def _answered(self, answer: Response) -> None:
        if answer.status >= 400:
            self.failed.append(f"{answer.url}: {answer.status}")

    def __str__(self) -> str:
        return f"failed {self.failed}, not answered {self.open}"


def enter(context: BrowserContext, node: RunningNode, coverage: Coverage, path: str = "") -> Page:
    """A page that is let in by a one-time link."""
    page = context.new_page()
    coverage.begin(page)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.problems = problems  # type: ignore[attr-defined]
    page.asked = Asked(page)  # type: ignore[attr-defined]
    code = node.post("/link", {})["path"].partition("#")[2]
    page.goto(f"http://127.0.0.1:{node.port}{path or '/'}#{code}")
    return page


@pytest.fixture(scope="package")
def visitor(browser: Browser, console: RunningNode, coverage: Coverage) -> Iterator[Page]:
    """One who was let in once and goes from page to page: what has a hashed name is sent once."""
    context = browser.new_context(viewport=SIZE)
    context.set_default_timeout(WAIT_MS)
    found = enter(context, console, coverage)
    arrived(found, ENTER_MS)
    yield found
    coverage.take(found)
    context.close()


@pytest.fixture
def page(visitor: Page, coverage: Coverage) -> Iterator[Page]:
    """The visitor's page, wherever the last test has left it: each goes where it wants to be."""
    visitor.problems.clear()  # type: ignore[attr-defined]
    yield visitor
    coverage.note(visitor)
    visitor.unroute_all()
    visitor.mouse.move(0, 0)
    if visitor.evaluate(LEAVE):
        visitor.reload()
    visitor.emulate_media(color_scheme="light", reduced_motion="no-preference")
    visitor.set_viewport_size(SIZE)


LEAVE = """() => {
  for (const each of document.querySelectorAll("dialog")) each.remove();
  const chosen = localStorage.length; // the theme, times in UTC
  localStorage.clear();
  return chosen > 0;
}"""


GO = """path => {
  const link = document.body.appendChild(document.createElement("a"));
  link.setAttribute("href", path);
  link.click();
  link.remove();
}"""


def go(page: Page, path: str) -> None:
    """To another view, as a link in the console leads there: nothing is loaded again."""
    page.evaluate(GO, path)


@pytest.fixture
def overview(page: Page) -> Page:
    """The visitor's page, at the overview."""
    go(page, "/")
    arrived(page, WAIT_MS)
    return page


def arrived(page: Page, within_ms: int) -> None:
    """Wait for the overview; where it does not come, what the page has asked for is told."""
    try:
        page.wait_for_selector("hr-overview table", timeout=within_ms)
    except TimeoutError as error:
        shown = page.locator("body").inner_text()
        told = f"{page.problems}, {page.asked} at {page.url}: {shown!r}"  # type: ignore[attr-defined]
        raise AssertionError(told) from error
