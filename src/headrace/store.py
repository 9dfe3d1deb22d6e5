"""The store: batch files on a local folder, in memory or on object storage, through ``obstore``.

A file is written whole under a name that was never used before, and never changed; the catalog
alone says which files count.  Files in a local folder are written under their final name and
synced to disk before the catalog learns of them, so that what a crash leaves behind is an orphan
like any other, and is found by the sweep.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit

import msgspec

from headrace.catalog import private
from headrace.errors import DiskFullError, StoreError, StoreUnavailableError, UnknownSchemeError

if TYPE_CHECKING:
    import pyarrow as pa
    from obstore.store import ObjectStore

SCHEMES = ("file", "memory", "s3", "gs", "az", "abfs", "abfss")
TIMEOUT_S = 30
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CLIENT_OPTIONS = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_url",
    "timeout",
    "user_agent",
)
"""Options of the HTTP client; all others are the storage service's."""


class StoredFile(msgspec.Struct, frozen=True):
    """A file as the store lists it."""

    path: str
    bytes: int
    modified: datetime


class Store:
    """Files by path; every failure is a :class:`~headrace.errors.StoreError`."""

    def __init__(
        self, url: str, backend: ObjectStore | None = None, folder: Path | None = None
    ) -> None:
        self.url = url
        self._given = backend
        self._folder = folder

    @cached_property
    def _backend(self) -> ObjectStore:
        """The client, made when it is first used: most looks at a log open no file."""
        if self._given is not None:
            return self._given
        from obstore.store import LocalStore

        return LocalStore(self._folder)

    @property
    def shared(self) -> bool:
        """Whether other machines can reach it."""
        return self._folder is None and not self.url.startswith("memory:")

    def put(self, path: str, data: bytes | memoryview) -> None:
        """Write a new file; when this returns it is durable."""
        view = memoryview(data).cast("B")
        try:
            if self._folder is not None:
                _write_durably(self._folder, self._folder / path, view)
            else:
                # Not "create only": a retry after a lost answer must not fail on the file of its
                # own first attempt, and names are never used twice.
                import obstore

                obstore.put(self._backend, path, view, use_multipart=False)
        except _failures() as error:
            raise self._failure("write", path, error) from error

    def put_same(self, paths: Sequence[str], data: bytes | memoryview) -> None:
        """Write a new file under several names; in a folder they are links to one.

        A file is never changed, and goes from the disk with the last of its names.
        """
        first, *others = paths
        self.put(first, data)
        for path in others:
            if self._folder is None or not _linked_durably(self._folder, first, path):
                self.put(path, data)

    def open(self, path: str) -> pa.NativeFile:
        """A seekable reader of the file; raises FileNotFoundError when there is none."""
        import pyarrow as pa

        try:
            if self._folder is not None:
                return pa.OSFile(str(self._folder / path))
            import obstore

            size = obstore.head(self._backend, path)["size"]
        except FileNotFoundError:
            raise
        except _failures() as error:
            raise self._failure("read", path, error) from error
        return pa.PythonFile(_Ranges(self, path, size), mode="r")

    def read_range(self, path: str, start: int, length: int) -> memoryview:
        import obstore

        try:
            return memoryview(obstore.get_range(self._backend, path, start=start, length=length))
        except FileNotFoundError:
            raise
        except _failures() as error:
            raise self._failure("read", path, error) from error

    def get(self, path: str) -> bytes:
        """A whole file; raises FileNotFoundError when there is none."""
        import obstore

        try:
            return obstore.get(self._backend, path).bytes().to_bytes()
        except FileNotFoundError:
            raise
        except _failures() as error:
            raise self._failure("read", path, error) from error

    def delete(self, path: str) -> bool:
        """Remove a file; false if it was gone already."""
        import obstore

        try:
            obstore.delete(self._backend, path)
        except FileNotFoundError:
            return False
        except _failures() as error:
            raise self._failure("delete", path, error) from error
        return True

    def list(self, prefix: str) -> Iterator[StoredFile]:
        """Every file below ``prefix``."""
        import obstore

        try:
            for page in obstore.list(self._backend, prefix, chunk_size=1000):
                for meta in page:
                    modified = meta["last_modified"].astimezone(UTC)
                    yield StoredFile(meta["path"], meta["size"], modified)
        except _failures() as error:
            raise self._failure("list", prefix, error) from error

    def _failure(self, verb: str, path: str, error: BaseException) -> Exception:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            return DiskFullError(
                f"store {self.url}: no room left to {verb} {path}; free some space and try again"
            )
        return StoreUnavailableError(
            f"store {self.url}: cannot {verb} {path}: {_first_line(error)}"
        )


def _write_durably(root: Path, file: Path, data: memoryview) -> None:
    """Write a new file and sync it, with every folder that got a new entry."""
    changed = _made_folders(root, file)
    handle = private.make_file(file, os.O_WRONLY | os.O_EXCL)
    try:
        while data:
            data = data[os.write(handle, data) :]
        os.fsync(handle)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(file)
        raise
    finally:
        os.close(handle)
    for folder in changed:
        _sync_folder(folder)


def _linked_durably(root: Path, path: str, link: str) -> bool:
    """Whether a file has a second name now; a file system may know no links."""
    try:
        changed = _made_folders(root, root / link)
        os.link(root / path, root / link)
        for folder in changed:
            _sync_folder(folder)
    except OSError:
        return False
    return True


def _made_folders(root: Path, file: Path) -> list[Path]:
    """The folders that get a new entry with a file; those that were missing are made."""
    changed = [file.parent]
    while changed[-1] != root and not changed[-1].exists():
        changed.append(changed[-1].parent)
    for folder in reversed(changed[:-1]):
        private.make_folder(folder, inside=True)
    return changed


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class _Ranges(io.RawIOBase):
    """A file on object storage as a Python file: every read is one ranged request."""

    def __init__(self, store: Store, path: str, size: int) -> None:
        self._store = store
        self._path = path
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._at)
        length = left if size < 0 else min(size, left)
        if length == 0:
            return b""
        data = self._store.read_range(self._path, self._at, length)
        self._at += len(data)
        return bytes(data)


def check_store_url(url: str | Path) -> None:
    """Refuse an address that can never be a store, without touching anything."""
    text = str(url)
    scheme, found, rest = text.partition("://")
    if not text:
        raise StoreError("the store's address is empty; give a folder or a URL such as s3://bucket")
    if not found:
        return
    if scheme not in SCHEMES:
        raise UnknownSchemeError(
            f"unknown store scheme {scheme!r}: give a folder or one of "
            f"{', '.join(f'{name}://' for name in SCHEMES)}"
        )
    if scheme not in ("file", "memory") and not rest.split("/", 1)[0]:
        raise StoreError(f"store {text!r} names no bucket; write {scheme}://bucket/prefix")


def open_store(url: str | Path, options: Mapping[str, str] | None = None) -> Store:
    """Open the store at a folder, ``memory://``, ``s3://bucket/prefix``, ``gs://…`` or ``az://…``.

    ``options`` go to the storage client (``endpoint``, ``region``, keys …); they are not kept, and
    credentials are also taken from the usual environment variables.
    """
    text = str(url)
    scheme = text.partition("://")[0] if "://" in text else ""
    if scheme in ("", "file"):
        folder = Path(unquote(urlsplit(text).path) if scheme else text).expanduser().resolve()
        try:
            private.make_folder(folder)
            return Store(str(folder), folder=folder)
        except OSError as error:
            raise StoreUnavailableError(f"store {folder} cannot be opened: {error}") from error
    check_store_url(text)
    from obstore.store import MemoryStore, from_url

    if scheme == "memory":
        return Store(text, MemoryStore())
    config = dict(options or {})
    client = {"timeout": f"{TIMEOUT_S}s", "connect_timeout": "5s"}
    client |= {name: config.pop(name) for name in CLIENT_OPTIONS if name in config}
    try:
        backend = from_url(
            text,
            config=cast(Any, config),
            client_options=cast(Any, client),
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=TIMEOUT_S)},
        )
    except _failures(ValueError) as error:
        reason = _first_line(error)
        raise StoreError(f"store {text} cannot be opened: {reason}") from error
    return Store(text, backend)


def _failures(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """What a storage client raises; asked for once it has raised something."""
    from obstore.exceptions import BaseError

    return *more, OSError, BaseError


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0][:300]
