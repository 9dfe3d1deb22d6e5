"""``make bench``: every benchmark, as a table and as JSON.

``python -m bench NAME…`` runs some of them; exit status 1 when a target is missed.
"""

from __future__ import annotations

import importlib
import sys

from rich.console import Console

from bench.harness import Result, save, show

MODULES = (
    "hashing",
    "publish",
    "read",
    "latency",
    "growth",
    "looking",
    "consume",
    "cores_delivery",
    "cores_shared",
    "shared_runtime",
    "cores_readers",
    "readers",
    "readers_many",
    "cores_regions",
    "regions",
    "regions_moves",
    "regions_backfill",
    "cores_epochs",
    "epochs",
    "epochs_large",
    "spark_source",
    "spark_wide",
    "spark_files",
    "spark_readers",
    "spark_epochs",
    "spark_sink",
    "spark_partition",
)


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in MODULES]
    if unknown:
        print(f"bench: no benchmark {', '.join(unknown)}; there are {', '.join(MODULES)}")
        return 2
    screen = Console(stderr=True)
    results: list[Result] = []
    for name in names or MODULES:
        with screen.status(f"measuring {name} …"):
            results += importlib.import_module(f"bench.{name}").run()
    show(results)
    print(f"written to bench/results/{save(results).name}")
    return 0 if all(result.ok is not False for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
