"""What every test shares: where the examples are, and builds of C that take less time."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("CFLAGS", "-O1")

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.la"))
