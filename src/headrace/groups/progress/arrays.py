"""The arrays of offsets, for those who have numpy loaded."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
