"""Whether a region may still take itself for the home of its groups: asked of the other regions.

A region that was down cannot know whether another one was made the home of its groups meanwhile.  A
program that begins to consume there draws a number (:class:`headrace.groups.homes.HomeProof`), and
the agent answers it after it has asked every other region:

* A region that answers has said where the group is at home, and this region has followed.
* A region that is silent, but was read before in the same *life* of the agent, counts as asked:
  this region is cut off and was not down, its other members go on consuming as well.  If it was
  given up elsewhere meanwhile, both consume until they meet; no region can know that alone.
* A region that was never read in this life is waited for: everything here was down, and may have
  been given up.  A person who knows better declares the silent region lost.

* A region that was declared lost is not waited for.  It is asked all the same, because it may be
  back, and may have been made the home since then.

A life ends with the agent's lease, so an agent that was frozen or without its catalog begins a new
one.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec


class HomeAnswer(msgspec.Struct, frozen=True):
    """What came of asking."""

    upto: int | None
    """Up to this number programs may begin; None if they have to wait."""
    silent: tuple[str, ...] = ()
    """Regions that are waited for."""
    cut_off: tuple[str, ...] = ()
    """Regions that are not waited for, although they did not answer."""


class HomeWatch:
    """What an agent knows, in one life, of the other regions."""

    def __init__(self) -> None:
        self._met: set[str] = set()

    def began(self) -> None:
        """A new life: what was read before does not count."""
        self._met.clear()

    def heard(self, region: str) -> None:
        """Another region was read, and what it says of homes is followed here."""
        self._met.add(region)

    def answer(
        self, upto: int, asked: Collection[str], heard: Collection[str], lost: Collection[str] = ()
    ) -> HomeAnswer:
        """Answer numbers up to ``upto``, which were drawn before ``asked`` regions were asked.

        ``heard`` are those that answered since, ``lost`` those that were declared lost.
        """
        for region in heard:
            self.heard(region)
        away = [each for each in sorted(asked) if each not in heard and each not in lost]
        silent = tuple(region for region in away if region not in self._met)
        if silent:
            return HomeAnswer(None, silent)
        return HomeAnswer(upto, cut_off=tuple(away))
