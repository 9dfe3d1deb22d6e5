"""The handler: shared subscriptions as a session sees them."""

from __future__ import annotations

import pytest

from headrace.errors import (
    InvalidFilterError,
    StaleTokenError,
    SubscriptionExistsError,
    UnknownSubscriptionError,
)
from headrace.groups.progress import Progress
from headrace.groups.shared.core.agent import Agent
from headrace.groups.shared.core.effects import ToRegistry
from headrace.groups.shared.core.handler import Installed, SubscriptionHandler
from headrace.groups.shared.core.messages import (
    Grant,
    Invalidate,
    LeaderConnectResponse,
    LeaderWanted,
    Revoke,
    Revoked,
)
from headrace.groups.shared.core.naming import group_key
from headrace.groups.shared.core.settings import BorrowerSettings

TEXT = "$share/audit/orders.>"
GROUP = group_key("audit", "orders.>")
ME = "s:1:1"


def handler() -> SubscriptionHandler:
    return SubscriptionHandler(Agent("s", 1, BorrowerSettings()))


def with_unit() -> SubscriptionHandler:
    made = handler()
    made.on_subscribe(TEXT, 0)
    made.receive(LeaderConnectResponse(GROUP, ME, 5, "n1"), 0)
    made.receive(Grant(GROUP, ME, 5, "orders/0", 2, Progress()), 0)
    return made


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("$share/audit/orders.>", "audit:orders.>"),
        ("$shared/audit/orders/#", "audit:orders.>"),
        ("$queue/audit/orders/+/new", "audit:orders.*.new"),
    ],
)
def test_every_spelling_names_its_group(text: str, group: str) -> None:
    (wanted,) = handler().on_subscribe(text, 0)
    assert isinstance(wanted, ToRegistry)
    assert isinstance(wanted.message, LeaderWanted)
    assert wanted.message.group == group


def test_text_that_is_not_a_shared_subscription_is_refused() -> None:
    with pytest.raises(InvalidFilterError, match=r"orders\.>"):
        handler().on_subscribe("orders.>", 0)


def test_subscribing_twice_and_unsubscribing_nothing_are_refused() -> None:
    made = handler()
    made.on_subscribe(TEXT, 0)
    with pytest.raises(SubscriptionExistsError):
        made.on_subscribe(TEXT, 0)
    with pytest.raises(UnknownSubscriptionError):
        made.on_unsubscribe("$share/other/orders.>", 0)
    assert made.subscriptions == (TEXT,)


def test_installed_units_are_listed_until_they_are_removed() -> None:
    made = with_unit()
    assert made.installed == {(ME, "orders/0"): Installed(TEXT, 2)}
    made.receive(Revoke(GROUP, ME, 5, "orders/0", 2), 0)
    assert made.installed == {(ME, "orders/0"): Installed(TEXT, 2, releasing=True)}
    made.on_progress(ME, "orders/0", 2, final=True, now_ms=0)
    made.receive(Revoked(GROUP, ME, 5, "orders/0", 2), 0)
    assert made.installed == {}


def test_ack_of_a_unit_that_was_lost_is_refused_with_the_reason() -> None:
    made = with_unit()
    with pytest.raises(StaleTokenError, match="token 2"):
        made.on_progress(ME, "orders/0", 1, acked=((0, 1),), now_ms=0)
    made.receive(Invalidate(GROUP, ME, 5, "evicted"), 0)
    with pytest.raises(StaleTokenError, match="lost it"):
        made.on_progress(ME, "orders/0", 2, acked=((0, 1),), now_ms=0)


def test_session_that_comes_back_takes_up_its_subscriptions() -> None:
    made = handler()
    effects = made.restore((TEXT, "$share/other/bills.>"), 0)
    assert len(effects) == 2
    assert made.subscriptions == (TEXT, "$share/other/bills.>")


def test_closing_removes_units_and_keeps_the_list_of_subscriptions() -> None:
    made = with_unit()
    made.on_disconnect(0)
    assert made.installed == {}
    assert made.subscriptions == (TEXT,)


def test_timers_of_borrowers_are_those_of_the_handler() -> None:
    made = handler()
    assert made.due_ms > 10**15
    made.on_subscribe(TEXT, 0)
    assert made.due_ms == 1000
    assert len(made.tick(1000)) == 1
