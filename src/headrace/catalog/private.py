"""Who may use the files of a catalog: their owner alone, unless their folder is shared on purpose.

A folder that its group may write to (``chmod 2770``) is shared with that group, and so is all that
is made in it.  Nobody else ever gets a right.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path

_log = logging.getLogger(__name__)


def mode_in(folder: Path) -> int:
    """The rights that a file in this folder gives."""
    return 0o660 if os.stat(folder).st_mode & stat.S_IWGRP else 0o600


def make_folder(folder: Path, *, inside: bool = False) -> None:
    """Make a folder, if there is none; ``inside`` of a catalog or store, with the rights there."""
    if not inside:
        folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return
    if inside and mode_in(folder.parent) == 0o660:
        folder.chmod(0o770)


def make_file(path: Path, flags: int) -> int:
    """The descriptor of a file, made if there is none, with the rights of its folder."""
    mode = mode_in(path.parent)
    descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, mode)
    about = os.fstat(descriptor)
    if mode != 0o600 and not about.st_size and about.st_uid == os.getuid():
        os.fchmod(descriptor, mode)  # whatever the umask is
    return descriptor


def mend(folder: Path, names: Iterable[str]) -> None:
    """Take away the rights that others have to a catalog which an older version made."""
    mode = mode_in(folder)
    _take(folder.resolve(), 0o770 if mode == 0o660 else 0o700)
    if [name for name in names if _take(folder / name, mode)]:
        _log.warning(
            "%s could be read by other users of this machine; now only by its %s",
            folder,
            "group" if mode == 0o660 else "owner",
        )


def _take(path: Path, allowed: int) -> bool:
    try:
        about = os.lstat(path)
        surplus = about.st_mode & 0o777 & ~allowed
        if not surplus or about.st_uid != os.getuid() or stat.S_ISLNK(about.st_mode):
            return False
        os.chmod(path, stat.S_IMODE(about.st_mode) & ~surplus)
    except OSError:
        return False
    return True
