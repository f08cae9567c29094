"""Settings for all tests, made before PyTorch is imported."""

from __future__ import annotations

import os

# Tests run beside scenarios and in several processes: PyTorch's threads would wait for one another, spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")
