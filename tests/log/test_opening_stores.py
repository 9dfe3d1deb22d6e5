"""An address that can never be a store is refused before a catalog is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import StoreError, UnknownSchemeError
from headrace.log.open import open_log


@pytest.mark.parametrize(
    ("store", "error"),
    [("ftp://host/files", UnknownSchemeError), ("s3://", StoreError), ("", StoreError)],
)
def test_a_bad_store_leaves_no_catalog_behind(
    tmp_path: Path, store: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        open_log(tmp_path / "data", store)
    assert not (tmp_path / "data").exists()
