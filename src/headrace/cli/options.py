"""What every command shares: which log, how to open it, and how its result is shown."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from headrace.cli import tables
from headrace.cli.failures import UsageError
from headrace.cli.output import console, print_json, tell_log
from headrace.cli.values import pair

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headrace.api.client import Headrace
    from headrace.catalog import Catalog
    from headrace.log.log import Log
    from headrace.net import TLS

CATALOG_VARIABLE = "HEADRACE_CATALOG"
CATALOG_DEFAULT = "./headrace-data"

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
        found = self.catalog or os.environ.get(CATALOG_VARIABLE) or CATALOG_DEFAULT
        for option, text in (("--catalog", found), ("--store", self.store or "")):
            if "\0" in text:
                raise UsageError(f"{option}: {text!r} holds a NUL, which no address does")
        return found

    @property
    def store_options(self) -> dict[str, str]:
        """What the storage client is told beside the usual environment variables."""
        return dict(pair(each, "--store-option") for each in self.store_option)

    @contextmanager
    def open(self, *, create: bool = False) -> Iterator[Log]:
        """The log; without ``create`` it must exist, so that a typo never makes a new one."""
        from headrace.log.open import open_log

        tell_log()
        log = open_log(self.place, self.store, store_options=self.store_options, create=create)
        try:
            yield log
        finally:
            log.catalog.close()

    @contextmanager
    def look(self, *, brief: bool = True) -> Iterator[Catalog]:
        """The catalog alone, for commands that only look: nothing of the log is loaded.

        What is looked at once and shown (``brief``) is not searched for cycles on the way, which
        took a twentieth of listing a thousand groups.
        """
        from headrace.catalog import open_catalog

        if self.store is not None:  # is compared with the one that is recorded
            with self.open() as log:
                yield log.catalog
            return
        tell_log()
        catalog = open_catalog(self.place, create=False)
        collects = brief and gc.isenabled()
        if collects:
            gc.disable()
        try:
            yield catalog
        finally:
            if collects:
                gc.enable()
            catalog.close()

    def open_async(self, *, create: bool = False, **settings: Any) -> Headrace:
        """The log for asynchronous use.

        What stays open for long does the housekeeping and records who was lost
        (``housekeeping=True``), as every open program does.
        """
        import headrace

        tell_log()
        given = {"create": create, "housekeeping": False} | settings
        return headrace.open(
            self.place, store=self.store, store_options=self.store_options, **given
        )

    @property
    def spark(self) -> dict[str, str]:
        """The log as options of ``format("headrace")``."""
        store = {} if self.store is None else {"store": self.store}
        more = {f"store.{name}": value for name, value in self.store_options.items()}
        return {"catalog": self.place} | store | more

    def show(self, data: Any, *shown: RenderableType) -> None:
        """A result: JSON for programs, else tables and lines for people."""
        if self.json:
            print_json(data)
        else:
            out = console()
            for each in shown:
                tables.show(out, each)


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
