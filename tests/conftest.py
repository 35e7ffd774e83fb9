"""What every test shares: where the examples are, and builds of C that take less time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("CFLAGS", "-O1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command has it

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.la"))


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """What a command sets in the environment of its process (`bench` holds threads) ends with the
    test, and what was read from it is read again."""
    own = "PYTEST_CURRENT_TEST"
    before = {name: value for name, value in os.environ.items() if name != own}
    yield
    after = {name: value for name, value in os.environ.items() if name != own}
    if before != after:
        for name in after.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
        if native := sys.modules.get("lacc.runtime.native"):
            native.processors.cache_clear()
