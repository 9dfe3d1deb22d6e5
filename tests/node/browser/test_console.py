"""The console in a real browser."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import BrowserContext, Page, Route, expect

import headrace
from headrace import cli
from headrace.groups import decisions
from headrace.groups.decisions import Decision, UnitRange, What
from headrace.groups.decisions.store import record_linked
from headrace.node.files import Files
from tests.node.browser.conftest import SIZE, enter, go
from tests.node.browser.coverage import Coverage
from tests.node.support import RunningNode, running

SHARED = quote("$share/audit/orders.>", safe="")
READER = "/groups/reader%2Freport"
PAGES = {
    "/": "hr-overview table",
    "/streams": "hr-streams td",
    "/streams/orders": "hr-stream .map rect",
    "/streams/orders/events": "hr-events td",
    "/groups": "hr-groups td",
    "/groups/payments%2Fledger": "hr-group .feed li",
    f"/groups/{SHARED}": "hr-group .chart",
    READER: "hr-group .good",
    "/key?key=3": "hr-key td",
    "/pipeline": "hr-pipeline .tile",
    "/sessions": "hr-sessions td",
    "/epochs": "hr-epochs .chart",
    "/regions": "hr-regions .tile",
    "/access": "hr-access table",
}

SCHEMES: tuple[Literal["light"], Literal["dark"]] = ("light", "dark")


def test_the_first_page_asks_nobody_but_the_node(
    context: BrowserContext, console: RunningNode, coverage: Coverage
) -> None:
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    page = enter(context, console, coverage)
    page.wait_for_selector("hr-overview table")
    home = f"http://127.0.0.1:{console.port}/"
    assert asked
    assert [url for url in asked if not url.startswith(home)] == []
    assert "code=" not in page.url
    assert page.problems == []  # type: ignore[attr-defined]
    expect(page.locator("hr-overview")).to_contain_text("need")
    expect(page.locator("hr-overview")).to_contain_text("orders/billing")


def texts_over_lines(script: str) -> list[int]:
    """Where the text of a template goes on in another line; what stands in ``${…}`` is code."""
    found, inside = [], [""]
    quoted = r"//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
    at = 0
    while at < len(script):
        if inside[-1] == "`":
            part = re.compile(r"`|\$\{|\\.|\n|.", re.DOTALL).match(script, at)
        else:
            part = re.compile(quoted + r"|[`{}]|.", re.DOTALL).match(script, at)
        assert part is not None
        match inside[-1], part[0]:
            case ("`", "`") | (_, "}"):
                inside.pop()
            case _, "`" | "{" | "${":
                inside.append(part[0])
            case "`", "\n":
                found.append(at)
        at = part.end()
    assert inside == [""]
    return found


def test_the_console_is_small_and_has_no_inline_code() -> None:
    files = Files()
    assert files.size_bytes < 150_000
    folder = Path(__file__).parents[3] / "src" / "headrace" / "node" / "console"
    for file in folder.glob("*.js"):
        text = file.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|\beval\(|new Function", text)
        assert "http://" not in text.replace("http://www.w3.org", "")
        assert len(text.splitlines()) <= 600
        assert texts_over_lines(text) == []  # lines are sent without their indentation
        assert max(map(len, text.splitlines())) <= 240  # code that a person can read
    assert texts_over_lines("a = `x${`y\n${1}`}`") == [10]


AXE = "axe.run({resultTypes: ['violations']})"


@pytest.mark.parametrize("path", PAGES)
def test_every_page_fits_a_telephone_and_is_accessible_in_both_colour_schemes(
    page: Page, console: RunningNode, path: str
) -> None:
    page.set_viewport_size({"width": 360, "height": 780})
    page.goto(f"http://127.0.0.1:{console.port}{path}")
    page.wait_for_selector(PAGES[path])
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.set_viewport_size(SIZE)
    page.evaluate(AXE_SCRIPT)
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        found = page.evaluate(AXE)
        faults = [
            (each["id"], [node["html"][:160] for node in each["nodes"][:2]])
            for each in found["violations"]
        ]
        assert faults == [], scheme
        assert len(found["passes"]) > 15
    assert page.problems == []  # type: ignore[attr-defined]


def test_the_tables_of_the_overview_fit_a_laptop(page: Page, console: RunningNode) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    go(page, "/")
    page.wait_for_selector("hr-overview .spark")
    tables = "[...document.querySelectorAll('hr-overview .scroll')]"
    assert max(page.evaluate(f"{tables}.map(e => e.scrollWidth - e.clientWidth)")) <= 0


def test_regions_say_what_a_loss_would_cost(page: Page, console: RunningNode) -> None:
    go(page, "/regions")
    view = page.locator("hr-regions")
    expect(view).to_contain_text("If this were lost now")
    expect(view).to_contain_text("eu (here)")
    expect(view).to_contain_text("2 of its events are not here yet")
    expect(view).to_contain_text("headrace region fail-over --lost us --dry-run")
    expect(view).to_contain_text("payments/ledger")
    assert page.problems == []  # type: ignore[attr-defined]


def test_frontiers_are_drawn_as_staircases(page: Page, console: RunningNode) -> None:
    go(page, "/epochs")
    over_time = page.locator("hr-epochs .card", has=page.locator("h2", has_text="days"))
    expect(over_time.locator("path.line")).to_have_count(1)
    # From 0 a step up to 2, and on to the right: across, up, across.
    assert re.fullmatch(
        r"M[\d.]+ [\d.]+(H[\d.]+V[\d.]+)+H[\d.]+",
        over_time.locator("path.line").get_attribute("d") or "",
    )
    expect(over_time.locator("path.line2")).to_have_count(1)
    plane = page.locator("hr-epochs .card", has=page.locator("h2", has_text="cells"))
    expect(plane.locator("path.line").last).to_have_attribute("stroke-opacity", "1")
    assert (plane.locator("path.line").last.get_attribute("d") or "").count("V") == 2
    plane.locator("summary").click()
    expect(plane.locator("td", has_text="(0, 4) · (2, 0)")).to_have_count(1)


COMMANDS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("/streams", "New stream", {"stream": "it's", "subjects": "a.>, b.*"}),
    ("/groups", "New group", {"kind": "shared", "filter": "orders.>"}),
    ("/groups", "New group", {"kind": "reader", "group": "report"}),
    ("/groups", "New group", {"kind": "static", "members": "m1, m2"}),
    (
        "/groups",
        "New group",
        {
            "kind": "elastic",
            "filter": "orders.*.*",
            "wildcards": "1 2",
        },
    ),
    (
        "/streams/orders",
        "Publish",
        {"subject": "orders.a", "value": "it's $HOME", "key": "k"},
    ),
    ("/streams/orders", "Settings", {"age": "2", "events": "9"}),
    ("/streams/orders", "Trim", {"before": "2026-01-01T10:00"}),
    ("/streams/orders", "Trim", {}),
    ("/streams/orders", "Remove", {"force": "yes"}),
    ("/groups/payments%2Fledger", "Seek", {}),
    ("/groups/payments%2Fledger", "Remove", {}),
    ("/groups/payments%2Fledger", "Put back", {"reason": "timed out"}),
    ("/groups/payments%2Fledger", "Discard", {}),
    ("/groups/orders%2Fbilling", "Members", {"add": "m8", "drop": "m9"}),
    ("/groups/orders%2Fbilling", "Mapping", {"mappings": "m1:0,1 m2:2,3"}),
    ("/groups/orders%2Fbilling", "Mapping", {}),
    ("/groups/orders%2Fbilling", "Remove", {}),
    (f"/groups/{SHARED}", "Remove", {"force": "yes"}),
    (
        f"/groups/{SHARED}",
        "Settings",
        {"balance": "lag", "scale_for_members": "yes", "stall_timeout_ms": "120"},
    ),
    (READER, "Settings", {"retain": "checkpoint", "checkpoint_every_s": "30"}),
    (READER, "Take one", {"checkpoint": "it's"}),
    (READER, "Go back", {}),
    ("/sessions", "Remove", {}),
    ("/epochs", "Forget", {}),
    ("/epochs", "Do without", {"how": "rollback"}),
    ("/epochs", "Do without", {"how": "abort", "reason": "it's broken"}),
    (
        "/access",
        "New token",
        {"subjects": "a.>,b.>", "days": "30"},
    ),
)


def typed(text: str) -> None:
    """Whether a command is one that the command line takes, with these options."""
    for command in text.split(" && "):
        first, *words = shlex.split(command)
        assert first == "headrace", command
        cli.app.parse_args(words, exit_on_error=False, print_error=False)


def test_every_command_that_is_shown_can_be_typed(page: Page, console: RunningNode) -> None:
    here = ""
    for path, button, fields in COMMANDS:
        if path != here:
            go(page, path)
            page.wait_for_selector(PAGES.get(path, "hr-group .feed li"))
            here = path
            for each in page.locator(".cmd code").all_inner_texts():
                if each.startswith("headrace"):
                    typed(each)
        page.get_by_role("button", name=button, exact=True).first.click()
        shown = page.locator("dialog .cmd code")
        before = shown.inner_text()
        for name, value in fields.items():
            field = page.locator(f"dialog [name={name}]")
            if field.evaluate("e => e.tagName") == "SELECT":
                field.select_option(value)
            else:
                field.fill(value)
        if any(each != "shared" for each in fields.values()):
            expect(shown).not_to_have_text(before)
        typed(shown.inner_text())
        page.keyboard.press("Escape")
        expect(page.locator("dialog")).to_have_count(0)


def test_a_stream_goes_on_without_a_publisher(page: Page, console: RunningNode) -> None:
    days = headrace.Epochs(publishers=("eu", "us"))
    console.do(console.hr.create_stream("without", ["without.>"], epochs=days))
    go(page, "/epochs")
    row = page.get_by_role("region", name="Publishers of without").locator("tbody tr")
    row.filter(has_text="us").get_by_role("button").click()
    expect(page.locator("dialog .preview")).to_contain_text("what us left counts")
    page.get_by_label("type us").fill("us")
    page.get_by_role("button", name="End it").click()
    expect(row.filter(has_text="us")).to_have_count(0)
    expect(row.filter(has_text="eu")).to_have_count(1)
    console.do(console.hr.delete_stream("without"))


def test_a_page_that_could_not_be_shown_is_built_when_it_can(
    page: Page, console: RunningNode
) -> None:
    go(page, "/streams/later")
    expect(page.locator("hr-stream")).to_contain_text("there is no stream 'later'")
    console.do(console.hr.create_stream("later", ["later.>"]))
    expect(page.locator("hr-stream h1")).to_have_text("later")
    console.do(console.hr.delete_stream("later"))
    expect(page.locator("hr-stream")).to_contain_text("there is no stream 'later'")


QUICK = "const wait = setTimeout; window.setTimeout = (call, ms) => wait(call, ms / 20);"
"""A second of the page lasts a twentieth of one."""


def test_a_page_that_did_not_arrive_whole_is_loaded_again(
    context: BrowserContext, console: RunningNode, coverage: Coverage
) -> None:
    lost: list[Route] = []

    def lose(route: Route) -> None:
        lost.append(route)
        if len(lost) == 1:
            route.abort("connectionreset")
        else:
            route.continue_()

    context.route("**/view-key.js", lose)
    page = enter(context, console, coverage)
    expect(page.locator(".banner")).to_contain_text("loaded again")
    page.wait_for_selector("hr-overview table")
    assert len(lost) == 2
    assert page.problems == []  # type: ignore[attr-defined]


def test_a_page_that_never_arrives_says_what_to_do(
    context: BrowserContext, console: RunningNode, coverage: Coverage
) -> None:
    context.add_init_script(QUICK)
    context.route("**/view-key.js", lambda route: route.abort("connectionreset"))
    page = enter(context, console, coverage)
    expect(page.locator(".banner")).to_contain_text("Reload this page to try again")
    assert len(page.problems) == 1  # type: ignore[attr-defined]


KNOWS = """async name => {
  const from = document.querySelector("script[type=module]").src;
  const { store } = await import(from.replace("load.js", "store.js"));
  return store.streams.has(name);
}"""


def test_a_page_that_is_being_built_hears_of_later_changes(
    page: Page, console: RunningNode
) -> None:
    """What changes while it asks for what it could not show must not be the last it hears of."""
    held: list[Route] = []
    go(page, "/streams/held")
    expect(page.locator("hr-stream")).to_contain_text("there is no stream 'held'")
    page.route("**/api/v1/streams/held", lambda route: held.append(route))
    console.do(console.hr.create_stream("held", ["held.>"]))
    page.wait_for_function(KNOWS, arg="held")
    while not held:
        page.wait_for_timeout(50)
    console.do(console.hr.create_stream("meanwhile", ["meanwhile.>"]))
    page.wait_for_function(KNOWS, arg="meanwhile")
    page.unroute("**/api/v1/streams/held")  # and what was held goes on
    expect(page.locator("hr-stream h1")).to_have_text("held")
    for name in ("held", "meanwhile"):
        console.do(console.hr.delete_stream(name))
    expect(page.locator("hr-stream")).to_contain_text("there is no stream 'held'")


@pytest.mark.usefixtures("overview")
def test_a_change_appears_by_itself(page: Page, console: RunningNode) -> None:
    console.do(console.hr.create_stream("appears", ["appears.>"]))
    expect(page.locator("hr-overview")).to_contain_text("appears.>")
    console.do(console.hr.delete_stream("appears"))
    expect(page.locator("hr-overview")).not_to_contain_text("appears.>")


def test_a_split_is_seen_on_the_map(page: Page, console: RunningNode) -> None:
    console.do(console.hr.create_stream("map", ["map.>"]))
    go(page, "/streams/map?span=15m")
    expect(page.locator(".map rect.tile-seg")).to_have_count(1)
    page.locator(".map [role=button]").first.press("Enter")
    page.get_by_role("button", name="Split").click()
    page.get_by_role("button", name="Split it").click()
    expect(page.locator(".map rect.tile-seg")).to_have_count(3)
    page.locator(".map [role=button]").last.click()
    page.get_by_role("button", name="Merge with its neighbour").click()
    page.get_by_role("button", name="Merge them").click()
    expect(page.locator(".map rect.tile-seg")).to_have_count(4)
    expect(page).to_have_url(re.compile("span=15m&segment="))


def test_what_looks_like_markup_is_shown_as_text(page: Page, console: RunningNode) -> None:
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    go(page, f"/streams/orders/events?start=earliest&key={quote('<b>odd</b>')}")
    cell = page.locator("hr-events td", has_text="<b>odd</b>")
    expect(cell).to_have_count(1)
    page.locator("hr-events summary").first.click()
    expect(page.locator("hr-events .value")).to_contain_text("onerror=alert(1)>\\u202e")
    assert page.locator("hr-events img").count() == 0


def test_events_are_filtered_followed_and_linked(page: Page, console: RunningNode) -> None:
    go(page, f"/streams/orders/events?start=earliest&where={quote('total >= 28')}")
    expect(page.locator("hr-events tbody tr")).to_have_count(2)
    as_command, as_python, as_sql = page.locator("hr-events .cmd code").all_inner_texts()
    assert as_command == "headrace read orders --from earliest"
    assert as_python == 'async for batch in hr.read("orders", start="earliest"): …'
    assert as_sql.startswith("CREATE TEMPORARY VIEW events USING headrace OPTIONS (catalog '/")
    page.locator("hr-events tbody a").first.click()
    expect(page.locator("hr-events")).to_contain_text("the event at")
    go(page, "/streams/orders/events")
    page.get_by_role("textbox", name="Text").fill("total")
    page.get_by_role("button", name="Look", exact=True).click()
    expect(page.locator("hr-events [role=status]")).to_contain_text("looked at")
    page.get_by_role("button", name="Follow").click()
    expect(page.locator("hr-events [role=status]")).to_contain_text("following")
    # Nobody is told from when on it follows: something is published until it comes.
    first = page.locator("hr-events tbody tr", has_text='"total": 76')
    for _ in range(200):
        console.do(console.hr.publish("orders.eu.new", b'{"total": 76}', key="new"))
        page.wait_for_timeout(100)
        if first.count():
            break
    console.do(console.hr.publish("orders.eu.new", b'{"total": 77}', key="new"))
    expect(page.locator("hr-events tbody")).to_contain_text('"total": 77')
    page.get_by_role("button", name="Pause").click()
    console.do(console.hr.publish("orders.eu.paused", b'{"total": 78}', key="new"))
    page.get_by_role("button", name="Follow").click()  # and it goes on where it was
    expect(page.locator("hr-events tbody")).to_contain_text('"total": 78')
    expect(page.locator("hr-events tbody tr", has_text='"total": 77')).to_have_count(1)
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Follow")).to_be_visible()


def test_a_group_tells_its_past(page: Page, console: RunningNode) -> None:
    go(page, "/groups/payments%2Fledger?span=10m")
    expect(page.locator("hr-group .feed li").first).to_be_visible()
    page.locator("hr-group .feed summary").first.click()
    page.locator("hr-group").evaluate("view => view.fetchDecisions()")  # as any news makes it do
    page.get_by_role("button", name="as it was then").first.click()
    expect(page.locator("hr-group")).to_contain_text("last decision before it")
    expect(page).to_have_url(re.compile(r"[?&]at=\d"))
    page.get_by_role("button", name="back to now").click()
    page.get_by_label("which decisions").select_option("dead letter")
    expect(page.locator("hr-group .feed li")).to_have_count(1)
    page.locator("hr-group .chart").hover(position={"x": 300, "y": 60})
    page.locator("hr-group .chart").click(position={"x": 300, "y": 60})
    expect(page.locator("hr-group")).to_contain_text("back to now")
    expect(page.locator("hr-group")).to_contain_text("Dead letters")
    page.get_by_role("button", name="Put back").click()
    expect(page.locator("dialog .preview")).to_contain_text("1 letters")
    page.get_by_role("button", name="Put them back").click()
    expect(page.locator("dialog")).to_have_count(0)
    page.locator("hr-group th button").first.click()
    expect(page).to_have_url(re.compile("sort="))


def test_a_take_over_has_a_clock(page: Page, console: RunningNode) -> None:
    """Who was given up by its leader is told of with how long it was silent."""
    name, unit = "$share/audit/orders.>", (UnitRange(0, 0, "orders"),)
    told = [
        Decision(what=What.ASSIGNED, reason="below its share", target="gone", units=unit),
        Decision(what=What.LOST, reason="silent for 5.000 s", source="gone"),
        Decision(what=What.ASSIGNED, reason="below its share", target="other", units=unit),
    ]
    catalog, locks = console.hr.log.catalog, decisions.locks(name)
    catalog.write(lambda tx: record_linked(tx, name, told), locks=locks)
    go(page, f"/groups/{SHARED}")
    steps = page.locator("hr-group .clock .step")
    expect(steps).to_have_text([re.compile(each) for each in STEPS])
    expect(page.locator("hr-group .clock .gap").first).to_have_text("→ 5.0 s →")
    ended = [Decision(what=What.LOST, reason="silent for 7.000 s", source="last of all")]
    catalog.write(lambda tx: record_linked(tx, name, ended), locks=locks)
    of_two = [*STEPS[:1], "^lease out: last of all is lost", *STEPS]
    expect(steps).to_have_text([re.compile(each) for each in of_two])


STEPS = ("^last heard", "^lease out: gone is lost", "^assigned other")


def test_a_decision_about_epochs_leads_to_them(overview: Page, console: RunningNode) -> None:
    name = "epochs/days"
    told = [Decision(what=What.CONFIGURED, reason="a person wanted it", target="eu")]
    catalog, locks = console.hr.log.catalog, decisions.locks(name)
    catalog.write(lambda tx: record_linked(tx, name, told), locks=locks)
    overview.locator("hr-overview .feed li", has_text="a person wanted it").locator("a").click()
    expect(overview.locator("hr-epochs h1")).to_be_visible()


@pytest.mark.usefixtures("overview")
def test_streams_and_groups_are_made_and_removed_with_their_names_typed(
    page: Page, console: RunningNode
) -> None:
    page.get_by_role("button", name="New stream").click()
    page.get_by_label("Name", exact=True).fill("made")
    page.get_by_label("Subjects, with commas").fill("made.>")
    expect(page.locator("dialog code")).to_contain_text("headrace stream create made")
    page.get_by_role("button", name="Make it").click()
    expect(page.locator("hr-stream h1")).to_have_text("made")
    page.get_by_role("button", name="Publish").click()
    page.get_by_label("Subject", exact=True).fill("made.one")
    page.get_by_label("Value", exact=True).fill("hello")
    page.locator("dialog button.main").click()
    expect(page.locator("hr-stream")).to_contain_text("1 since it was made")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Keep for so many hours").fill("2")
    page.get_by_role("button", name="Change them").click()
    expect(page.locator("hr-stream dl")).to_contain_text("2 h")
    page.get_by_role("button", name="Trim").click()
    expect(page.locator("dialog .preview")).not_to_have_text("…")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Remove").click()
    button = page.get_by_role("button", name="Remove it")
    expect(page.locator("dialog .preview")).to_contain_text("1 events")
    expect(button).to_be_disabled()
    page.get_by_label("type made").fill("made")
    button.click()
    expect(page.locator("hr-streams h1")).to_be_visible()
    expect(page.locator("hr-streams")).not_to_contain_text("made.>")


def test_a_group_is_made_sought_and_removed(page: Page, console: RunningNode) -> None:
    go(page, "/groups")
    page.get_by_role("button", name="New group").click()
    page.get_by_label("Name", exact=True).fill("extra")
    page.get_by_label("Filter (shared, elastic)").fill("orders.>")
    page.get_by_role("button", name="Make it").click()
    page.get_by_role("link", name="$share/extra/orders.>").click()
    page.get_by_role("button", name="Seek").click()
    expect(page.locator("dialog .preview")).not_to_have_text("…")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Remove").click()
    page.get_by_label("type $share/extra/orders.>").fill("$share/extra/orders.>")
    page.get_by_role("button", name="Remove it").click()
    expect(page.locator("hr-groups h1")).to_be_visible()


def test_elastic_members_change_and_bad_input_is_said(page: Page, console: RunningNode) -> None:
    go(page, "/groups/orders%2Fbilling")
    page.get_by_role("button", name="Members", exact=True).click()
    page.get_by_label("Add, with commas").fill("m2")
    page.get_by_role("button", name="Change them").click()
    expect(page.locator("hr-group")).to_contain_text("m2")
    page.get_by_role("button", name="Members", exact=True).click()
    page.get_by_label("Add, with commas").fill("m!")
    page.get_by_role("button", name="Change them").click()
    expect(page.locator("dialog .problem")).not_to_be_empty()


def test_tokens_are_made_and_removed(page: Page, console: RunningNode) -> None:
    go(page, "/access")
    page.get_by_role("button", name="New token").click()
    page.get_by_label("Name", exact=True).fill("grafana")
    page.get_by_role("button", name="Make it").click()
    expect(page.locator("dialog code")).to_contain_text("hr_")
    page.keyboard.press("Escape")
    expect(page.locator("hr-access")).to_contain_text("grafana")
    page.get_by_role("button", name="Remove").first.click()
    page.get_by_label("type grafana").fill("grafana")
    page.get_by_role("button", name="Remove it").click()
    expect(page.locator("hr-access")).to_contain_text("DELETE /api/v1/tokens/grafana")


@pytest.mark.usefixtures("overview")
def test_everything_is_reached_by_keys(page: Page) -> None:
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.wait_for_selector("hr-streams td")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_selector("hr-stream h1")
    page.keyboard.press("Escape")
    page.wait_for_selector("hr-streams td")
    page.keyboard.press("/")
    page.keyboard.type("pay")
    expect(page.locator("hr-streams tbody tr")).to_have_count(1)
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_contain_text("Keyboard")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.keyboard.type("billing")
    expect(page.locator("dialog li").first).to_contain_text("orders/billing")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.wait_for_selector("hr-group h1")
    page.get_by_role("button", name="UTC").click()
    for wanted in ("light", "dark"):
        page.get_by_role("button", name="Theme").click()
        assert page.evaluate("document.documentElement.dataset.theme") == wanted


def test_the_ninth_tab_is_live_like_the_first(
    context: BrowserContext, console: RunningNode, coverage: Coverage
) -> None:
    first = enter(context, console, coverage)
    first.wait_for_selector("hr-overview table")
    tabs = [first]
    for _ in range(8):
        tab = context.new_page()
        tab.goto(f"http://127.0.0.1:{console.port}/")
        tab.wait_for_selector("hr-overview table")
        tabs.append(tab)
    console.do(console.hr.create_stream("ninth", ["ninth.>"]))
    for tab in (tabs[-1], tabs[0]):
        expect(tab.locator("hr-overview")).to_contain_text("ninth.>")
    console.do(console.hr.delete_stream("ninth"))


def test_a_node_that_goes_and_a_cookie_that_ends_are_said(
    context: BrowserContext, coverage: Coverage, tmp_path: Path
) -> None:
    url = str(tmp_path / "catalog")
    with running(url) as node:
        page = enter(context, node, coverage)
        page.wait_for_selector("hr-overview h1")
        port = node.port
    expect(page.locator(".banner")).to_contain_text("does not answer")
    with running(url, port=port) as node:
        expect(page.locator(".conn")).to_contain_text("live", timeout=30_000)
        context.clear_cookies()
        page.goto(f"http://127.0.0.1:{port}/groups")
        expect(page.locator(".login")).to_contain_text("headrace token link")
        page.get_by_label("token", exact=True).fill("wrong")
        page.get_by_role("button", name="Let me in").click()
        expect(page.locator(".problem")).not_to_be_empty()
        page.get_by_label("token", exact=True).fill(node.token)
        page.get_by_role("button", name="Let me in").click()
        page.wait_for_selector("hr-groups h1")


def test_a_node_that_only_reads_offers_nothing_else(
    context: BrowserContext, coverage: Coverage, tmp_path: Path
) -> None:
    with running(str(tmp_path / "catalog"), read_only=True) as node:
        node.do(node.hr.create_stream("orders", ["orders.>"]))
        page = enter(context, node, coverage, "/streams/orders")
        page.wait_for_selector("hr-stream h1")
        names = {each.inner_text() for each in page.locator("button").all()}
        assert not names & {"Trim", "Remove", "Settings", "Publish", "Split"}


def test_pages_that_are_not_there_are_said(page: Page, console: RunningNode) -> None:
    go(page, "/streams/absent")
    expect(page.locator("hr-stream")).to_contain_text("there is no stream 'absent'")
    go(page, "/streams/a/b/c")
    expect(page.locator("main")).to_contain_text("There is no such page")


def test_most_of_the_console_was_run(coverage: Coverage, request: pytest.FixtureRequest) -> None:
    """Last in this file: what the tests before it have run."""
    share, each = coverage.share()
    told: dict[str, Any] = {name: f"{one:.0%}" for name, one in sorted(each.items())}
    if len(request.session.items) > 20:
        assert share >= 0.85, (share, told)
