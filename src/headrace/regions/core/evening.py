"""Lanes that nobody continues: regions take from each other what one has more of them.

Events of a lane come from the region that published them.  A region that was declared lost, and one
that began a new life after it was restored from a copy, does not give its old lanes any more.  What
had crossed of them differs from region to region then, so whoever has less takes the rest from
whoever has more.  The events are the same, by lane and sequence; a commit checks that a lane goes
on exactly where it ended.

The lost region may return, and its log is read from the place where it was left: what came from
others meanwhile is passed over, up to exactly the sequence that was noted when it came.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from headrace.regions.core.origins import Lane, base_region, lane_reaches

Lives = Mapping[str, int]


def life_of(lane: Lane) -> int:
    """Which life of its region a lane belongs to.

    >>> life_of("eu"), life_of("eu~3"), life_of("eu~2!us")
    (1, 3, 2)
    """
    life = lane.partition("!")[0].partition("~")[2]
    return int(life) if life.isdigit() else 1


def lives_of(lanes: Iterable[Lane], known: Lives) -> dict[str, int]:
    """The latest life of every region that something is known of.

    >>> lives_of(["eu", "eu~2", "us"], {"us": 3})
    {'us': 3, 'eu': 2}
    """
    found = dict(known)
    for lane in lanes:
        region = base_region(lane)
        found[region] = max(found.get(region, 1), life_of(lane))
    return found


def is_closed(lane: Lane, lost: Collection[str], lives: Lives) -> bool:
    """Whether nobody continues a lane."""
    region = base_region(lane)
    return region in lost or life_of(lane) < lives.get(region, 1)


def to_even(
    region: str,
    mine: Mapping[Lane, int],
    theirs: Mapping[Lane, int],
    lost: Collection[str],
    lives: Lives,
) -> list[tuple[Lane, int, int]]:
    """The sequences of closed lanes that a region lacks and another has: (lane, first, end).

    What it publishes itself, it never takes from others, whatever those think of it.

    >>> to_even("us", {"eu": 3}, {"eu": 5, "ap": 9, "eu!ap": 4}, {"eu"}, {})
    [('eu', 3, 5)]
    """
    latest, gone = lives_of([*mine, *theirs], lives), {each for each in lost if each != region}
    return [
        (lane, mine.get(lane, 0), end)
        for lane, end in sorted(theirs.items())
        if end > mine.get(lane, 0) and lane_reaches(lane, region) and is_closed(lane, gone, latest)
    ]


def passed_over(sequence: int, count: int, evened: int) -> int:
    """How many events of a run, from its first on, came from other regions before.

    >>> passed_over(3, 10, 7), passed_over(3, 2, 7), passed_over(8, 2, 7)
    (4, 2, 0)
    """
    return max(0, min(count, evened - sequence))
