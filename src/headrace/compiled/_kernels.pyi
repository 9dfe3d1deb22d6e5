"""Types of what ``_kernels.pyx`` holds."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

def plain_events(
    columns: list[pa.Array], subject_max: int, key_max: int, value_max: int
) -> bool: ...
def plain_subjects(column: pa.Array, bytes_max: int) -> bool: ...
def begin_with(column: pa.Array, prefix: bytes) -> bool: ...
def hash_into(column: pa.Array, out: npt.NDArray[np.uint32], mixed: bool) -> bool: ...
def split(
    columns: list[pa.Array],
    prefix: bytes,
    hashed: int,
    limits: bytes,
    partitions: int,
    form: tuple[bytes, int, int, int, int],
) -> list[tuple[int, int, int, bytes, bytes]] | None: ...
