"""Planted bugs of homes: a region that takes itself for the home although it may not."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from headrace.groups.homes import HomeProof
from headrace.regions.core.confirming import HomeAnswer, HomeWatch
from headrace.sim.planted import PlantedBug, by_seeds, patched
from headrace.sim.scenarios.region_homes import HomeAgent

_hunt = by_seeds("region-homes", 200)


def _silence_is_consent(_original: Any) -> Any:
    return lambda _self, upto, *_arguments: HomeAnswer(upto)


def _one_answer_is_enough(original: Any) -> Any:
    def answer(self: HomeWatch, upto: int, *others: Collection[str]) -> HomeAnswer:
        found: HomeAnswer = original(self, upto, *others)
        return HomeAnswer(upto) if others[1] else found

    return answer


def _lost_not_asked(original: Any) -> Any:
    def ask(self: HomeAgent) -> None:
        original(self)
        if self.asking is not None:
            self.asking.asked = [r for r in self.asking.asked if r not in self.asking.lost]

    return ask


def _bug(
    name: str, about: str, owner: type[Any], method: str, change: Callable[[Any], Any]
) -> PlantedBug:
    return PlantedBug(f"region-homes/{name}", about, lambda: patched(owner, method, change), _hunt)


PLANTED = (
    _bug(
        "home without asking",
        "a region that returns takes itself for the home",
        HomeProof,
        "waits",
        lambda _original: lambda *_arguments: "",
    ),
    _bug(
        "silence is consent",
        "a region that cannot be asked counts as asked, after a return too",
        HomeWatch,
        "answer",
        _silence_is_consent,
    ),
    _bug(
        "one answer is enough",
        "of three regions only one is asked, which may know as little",
        HomeWatch,
        "answer",
        _one_answer_is_enough,
    ),
    _bug(
        "the lost are not asked",
        "a region that was declared lost is never heard, although it is back and is the home",
        HomeAgent,
        "_ask",
        _lost_not_asked,
    ),
    _bug(
        "a former life counts",
        "an agent that was frozen or without its catalog relies on what it had read",
        HomeWatch,
        "began",
        lambda _original: lambda *_arguments: None,
    ),
)
