"""A process that opens a catalog when told to, writes one entry and closes it."""

from __future__ import annotations

import sys

from headrace.catalog import open_catalog


def main(url: str, name: str) -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    catalog = open_catalog(url)
    catalog.entries.put("openers", name, b"was here")
    catalog.close()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
