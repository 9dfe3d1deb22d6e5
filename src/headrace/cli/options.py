"""What every command shares: which log, how to open it, and how to speak."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Group, Parameter
from rich.console import Console
from rich.progress import Progress

from headrace.cli.failures import UsageError
from headrace.cli.values import pair

if TYPE_CHECKING:
    from headrace.api.client import Headrace
    from headrace.log.log import Log
    from headrace.net import TLS

CATALOG_VARIABLE = "HEADRACE_CATALOG"
CATALOG_DEFAULT = "./headrace-data"

PIPE_WIDTH = 200
"""Room for a table's lines where there is no screen to fit them on."""

SHARED = Group("Everywhere", sort_key=100)


@Parameter(name="*", group=SHARED)
@dataclass(frozen=True)
class Options:
    """The options that every command takes."""

    catalog: Annotated[
        str | None,
        Parameter(
            help=f"Folder or postgresql:// address; else ${CATALOG_VARIABLE}, else "
            f"{CATALOG_DEFAULT}."
        ),
    ] = None
    store: Annotated[
        str | None, Parameter(help="Where large batches go, if not beside the catalog.")
    ] = None
    store_option: Annotated[
        tuple[str, ...],
        Parameter(negative="", help="name=value for the store's client: allow_http=true."),
    ] = ()
    json: Annotated[bool, Parameter(negative="", help="Print JSON, for programs.")] = False

    @property
    def place(self) -> str:
        """The catalog's address."""
        return self.catalog or os.environ.get(CATALOG_VARIABLE) or CATALOG_DEFAULT

    @property
    def store_options(self) -> dict[str, str]:
        """What the storage client is told beside the usual environment variables."""
        return dict(pair(each, "--store-option") for each in self.store_option)

    @contextmanager
    def open(self, *, create: bool = False) -> Iterator[Log]:
        """The log; without ``create`` it must exist, so that a typo never makes a new one."""
        from headrace.log.open import open_log

        log = open_log(self.place, self.store, store_options=self.store_options, create=create)
        try:
            yield log
        finally:
            log.catalog.close()

    def open_async(self, tls: TLS | None = None) -> Headrace:
        """The log for asynchronous use; housekeeping is left to long-running programs."""
        import headrace

        return headrace.open(
            self.place,
            store=self.store,
            store_options=self.store_options,
            create=False,
            housekeeping=False,
            tls=tls,
        )


NONE = Options()


@Parameter(name="*", group=Group("TLS", sort_key=50))
@dataclass(frozen=True)
class TLSOptions:
    """The files of a command that talks to other processes; all as PEM."""

    tls_cert: Annotated[
        str | None,
        Parameter(env_var="HEADRACE_TLS_CERT", help="This process's certificate; talk with TLS."),
    ] = None
    tls_key: Annotated[
        str | None, Parameter(env_var="HEADRACE_TLS_KEY", help="The key that belongs to it.")
    ] = None
    tls_ca: Annotated[
        str | None,
        Parameter(
            env_var="HEADRACE_TLS_CA",
            help="The authority that certifies all who take part, else those of the machine.",
        ),
    ] = None

    @property
    def tls(self) -> TLS | None:
        """What the library takes."""
        if self.tls_cert is None and self.tls_key is None and self.tls_ca is None:
            return None
        if self.tls_cert is None or self.tls_key is None:
            raise UsageError("--tls-cert and --tls-key (or their variables) go together")
        from headrace import TLS

        return TLS(certificate=self.tls_cert, key=self.tls_key, authority=self.tls_ca)


NO_TLS = TLSOptions()


def console() -> Console:
    """Where people read results."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def print_json(value: Any) -> None:
    """One line of JSON on stdout."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def progress(*columns: Any, quiet: bool = False, console: Console | None = None) -> Progress:
    """A progress display on stderr; silent for programs and where nobody looks.

    Where results are printed meanwhile, it has to be on their `console`.
    """
    shown = console or Console(stderr=True)
    return Progress(*columns, console=shown, transient=True, disable=quiet or not shown.is_terminal)
