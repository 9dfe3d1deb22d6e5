"""Whatever arrives, in whatever order: it is taken, or refused and nothing has changed."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ProtocolError
from headrace.groups.progress import Progress
from headrace.groups.shared.core.agent import Agent
from headrace.groups.shared.core.borrower import Borrower
from headrace.groups.shared.core.messages import (
    Disconnect,
    Grant,
    Invalidate,
    LeaderConnectResponse,
    LeaderWanted,
    Message,
    Ping,
    PingResponse,
    ProgressConfirmed,
    Revoke,
    Revoked,
    RevokeFinished,
    UnitReport,
    UpdateProgress,
)
from headrace.groups.shared.core.settings import BorrowerSettings
from tests.groups.shared.core.pair import GROUP, Led, open_segment

ME = "a:1:1"

groups = st.sampled_from([GROUP, GROUP, GROUP, "else"])
borrowers = st.sampled_from([ME, ME, ME, "b:1:1", "nobody:1:1"])
tokens = st.sampled_from([5, 5, 5, 5, 0, 4, 6])
units = st.sampled_from(["orders/0", "orders/1", "orders/9"])
unit_tokens = st.integers(0, 4)
numbers = st.integers(0, 6)
offsets = st.integers(-1, 12)
pairs = st.lists(st.tuples(offsets, offsets), max_size=3).map(tuple)
reports = st.lists(
    st.builds(UnitReport, units, unit_tokens, pairs, pairs, st.booleans(), st.booleans()),
    max_size=2,
).map(tuple)
head = (groups, borrowers, tokens)

messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(LeaderWanted, *head, st.sampled_from(["a", "b"])),
    st.builds(Ping, *head, numbers),
    st.builds(UpdateProgress, *head, numbers, reports),
    st.builds(RevokeFinished, *head, units, unit_tokens),
    st.builds(Disconnect, *head, numbers, reports),
    st.builds(LeaderConnectResponse, *head, st.just("n1")),
    st.builds(PingResponse, *head, numbers),
    st.builds(Grant, *head, units, unit_tokens, st.just(Progress(2, ((4, 5),)))),
    st.builds(Revoke, *head, units, unit_tokens),
    st.builds(Revoked, *head, units, unit_tokens),
    st.builds(ProgressConfirmed, *head, numbers),
    st.builds(Invalidate, *head, st.just("why")),
)


def refused(call: Callable[..., object], *arguments: object) -> ProtocolError | None:
    """The error with which a call was refused; any other error fails the test."""
    try:
        call(*arguments)
    except ProtocolError as error:
        return error
    return None


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(messages, st.integers(0, 4000)), max_size=40))
def test_leader_takes_it_or_refuses_it_unchanged(story: list[Message | int]) -> None:
    made = Led()
    made.segments(open_segment(0), open_segment(1))
    made.join(ME)
    for event in story:
        if isinstance(event, int):
            made.tick(event, alive=(ME, "b:1:1"))
            continue
        before = made.leader.snapshot()
        refusal = refused(made.say, event)
        if refusal is not None:
            assert type(event).__name__ in str(refusal)
            assert made.leader.snapshot() == before
    owned = [unit for owned in made.owners().values() for unit in owned]
    assert len(owned) == len(set(owned))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(messages, st.integers(0, 2000)), max_size=40))
def test_borrower_takes_it_or_refuses_it_unchanged(story: list[Message | int]) -> None:
    borrower = Borrower(ME, group=GROUP, session="a", settings=BorrowerSettings(), now_ms=0)
    now_ms = 0
    for event in story:
        if isinstance(event, int):
            now_ms += event
            borrower.tick(now_ms)
            continue
        before = borrower.snapshot()
        refusal = refused(borrower.receive, event, now_ms)
        if refusal is not None:
            assert type(event).__name__ in str(refusal)
            assert borrower.snapshot() == before


@settings(max_examples=100, deadline=None)
@given(st.lists(messages, max_size=40))
def test_agent_survives_everything_and_keeps_serving_its_subscription(
    story: list[Message],
) -> None:
    agent = Agent("a", 1, BorrowerSettings())
    agent.subscribe("one", GROUP, 0)
    for message in story:
        agent.receive(message, 0)
    assert agent.subscriptions == ("one",)
    assert len(agent.borrowers) == 1
