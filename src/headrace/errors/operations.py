"""What people do to groups of any kind: seek, and dead letters."""

from __future__ import annotations

from headrace.errors.log import HeadraceError, InvalidInputError


class SeekOutsideError(InvalidInputError):
    """A seek beyond the head of a segment, or below what is kept of it."""

    def __init__(self, group: str, stream: str, kept: list[tuple[int, int, int]]) -> None:
        shown = ", ".join(f"{number}: {tail} to {head}" for number, tail, head in kept[:16])
        super().__init__(
            f"group {group}: stream {stream!r} does not have all of these places; by segment it "
            f"has {shown}{', …' if len(kept) > 16 else ''}"
        )
        self.group = group
        self.stream = stream
        self.kept = tuple(kept)


class SeekTooLateError(InvalidInputError):
    """A seek to a time that is still to come, of which there is no event."""

    def __init__(self, group: str, to: str) -> None:
        super().__init__(
            f"group {group}: {to} lies in the future, and there is no event of then; to skip all "
            "there is, seek to latest"
        )
        self.group = group


class UnknownUnitNameError(InvalidInputError):
    """Units that the group does not have."""

    def __init__(self, group: str, unknown: list[str], known: list[str]) -> None:
        shown = ", ".join(known[:16]) + (", …" if len(known) > 16 else "")
        what = f"has no {', '.join(unknown[:8])}" if unknown else "was given no units"
        super().__init__(f"group {group} {what}; its units are {shown}")
        self.group = group
        self.unknown = tuple(unknown)


class GroupMadeAnewError(HeadraceError):
    """The group was deleted and made again while the operation was on its way."""

    def __init__(self, group: str) -> None:
        super().__init__(
            f"group {group} was deleted and made anew meanwhile, and nothing was changed; look at "
            "it, and try again"
        )
        self.group = group


class NoLettersError(InvalidInputError):
    """No dead letter fits what was asked for."""

    def __init__(self, group: str) -> None:
        super().__init__(
            f"group {group} has no such dead letters, so there is nothing to do; see those there "
            f"are with: headrace group dead ls '{group}'"
        )
        self.group = group


class LetterGoneError(InvalidInputError):
    """There is no such dead letter: it was put back or discarded, or never was."""

    def __init__(self, group: str, id: int) -> None:
        super().__init__(
            f"group {group} has no dead letter {id}: it was put back or discarded, or never was"
        )
        self.group = group
        self.id = id


class TooManyLivesError(InvalidInputError):
    """Every letter that was chosen has died too often already."""

    def __init__(self, group: str, letters: int, lives_max: int) -> None:
        what = "the letter has" if letters == 1 else f"all {letters:,} letters have"
        super().__init__(
            f"group {group}: {what} died {lives_max} times or more, and would die again; mend what "
            f"they die of and raise lives_max, or discard them"
        )
        self.group = group
        self.lives_max = lives_max


class UndeliverableLetterError(InvalidInputError):
    """A letter cannot be published to its subject once more; nothing was put back."""

    def __init__(self, group: str, id: int, why: str) -> None:
        super().__init__(
            f"group {group}: letter {id} cannot be put back: {why}; nothing was put back, choose "
            "others or discard it"
        )
        self.group = group
        self.id = id


class LettersMovingError(HeadraceError):
    """Others put back or discard the same letters all the time."""

    def __init__(self, group: str) -> None:
        super().__init__(f"group {group}: others are busy with the same letters; try later")
        self.group = group
