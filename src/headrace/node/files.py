"""The console's files, from the package: hashed names, so that browsers may keep them for good.

They are sent as they are, but for the indentation of their lines, empty ones, and lines that are
comments: no text of theirs spans lines.
"""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

from starlette.responses import Response

FOLDER = Path(__file__).parent / "console"
PAGE = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
PAGES = frozenset(
    ("", "streams", "groups", "key", "pipeline", "sessions", "epochs", "access", "regions")
)
"""How the addresses of views begin."""
MARK = b"@assets"
"""Stands for the folder of this version in the page."""


def sent(data: bytes) -> bytes:
    """A file as it is sent.

    >>> sent(b"a {\\n\\t// why\\n\\tb;\\n\\n}\\n")
    b'a {\\nb;\\n}\\n'
    """
    lines = [line.lstrip(b"\t") for line in data.split(b"\n")]
    return b"".join(line + b"\n" for line in lines if line and not line.startswith(b"//"))


class Files:
    """All files of the console, read once."""

    def __init__(self, folder: Path = FOLDER) -> None:
        found = {
            file.relative_to(folder).as_posix(): sent(file.read_bytes())
            for file in sorted(folder.rglob("*"))
            if file.suffix in TYPES
        }
        mark = hashlib.sha256(b"".join(k.encode() + v for k, v in found.items())).hexdigest()[:12]
        self.prefix = f"/assets/{mark}"
        self.page = found.pop(PAGE).replace(MARK, self.prefix.encode())
        self.size_bytes = sum(map(len, found.values())) + len(self.page)
        self._found = {f"{self.prefix}/{name}": data for name, data in found.items()}
        self._small = {path: gzip.compress(data, 6) for path, data in self._found.items()}

    def get(self, path: str, accepts: str) -> Response | None:
        """A file; every address of a view is the one page."""
        data = self._found.get(path)
        if data is not None:
            headers = {"cache-control": "public, max-age=31536000, immutable"}
            media = TYPES[Path(path).suffix]
            if "gzip" in accepts:
                headers |= {"content-encoding": "gzip", "vary": "accept-encoding"}
                data = self._small[path]
            return Response(data, 200, headers, media_type=media)
        if path.split("/")[1] not in PAGES:
            return None
        return Response(self.page, 200, {"cache-control": "no-store"}, media_type=TYPES[".html"])
