"""A name in, what was measured on this machine under it out: JSON files in the cache folder.

A file is replaced as a whole and carries the digest of what it says, so that whoever reads it sees
an entry that some process finished, or none; changes to one are made under a lock, so that no
process loses what another added.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

WAIT = 20.0
"""Seconds to wait for the lock, which no process holds for longer than it takes to write a file."""

Entry = dict[str, Any]


def folder(kind: str) -> Path:
    """Where entries of a kind are kept: in $LACC_CACHE, else where this system has caches."""
    from platformdirs import user_cache_path

    given = os.environ.get("LACC_CACHE")
    return (Path(given) if given else user_cache_path("lacc")) / kind


def read(kind: str, name: str) -> Entry | None:
    """The entry called ``name``; None where there is none, or none that can be read: a warning
    says why."""
    return _parsed(folder(kind) / f"{name}.json")


def every(kind: str, begins: str = "") -> Iterator[Entry]:
    """All entries whose names begin so, in order; those that cannot be read are left out."""
    for path in sorted(folder(kind).glob(f"{begins}*.json")):
        entry = _parsed(path)
        if entry is not None:
            yield entry


def change(kind: str, name: str, changed: Callable[[Entry | None], Entry]) -> Entry:
    """Puts what ``changed`` makes of the entry in its place. Raises OSError where the folder
    cannot be written to, the disk is full, or another process does not let go of the lock."""
    from filelock import FileLock

    path = folder(kind) / f"{name}.json"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with FileLock(path.parent / ".lock", timeout=WAIT):
        entry = changed(_parsed(path))
        _write(path, entry)
    return entry


def forget(kind: str, begins: str = "") -> int:
    """Removes all entries whose names begin so, and says how many there were. Raises OSError."""
    paths = sorted(folder(kind).glob(f"{begins}*.json"))
    for path in paths:
        path.unlink(missing_ok=True)
    if not begins:
        for path in folder(kind).glob(".*.part"):  # of processes that were killed
            path.unlink(missing_ok=True)
    return len(paths)


def digest(*parts: str) -> str:
    """A short digest of texts, in order."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part.encode()).to_bytes(8, "little") + part.encode())
    return found.hexdigest()[:16]


def _write(path: Path, entry: Entry) -> None:
    text = json.dumps({"digest": _digest(entry), "entry": entry}, indent=1)
    handle, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _parsed(path: Path) -> Entry | None:
    try:
        whole = json.loads(path.read_text("utf-8"))
        entry = whole["entry"]
        if isinstance(entry, dict) and whole["digest"] == _digest(entry):
            return entry
        problem = "it is not what was written"
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        problem = str(error.strerror)
    except (ValueError, KeyError, TypeError):
        problem = "it is no whole entry"
    warnings.warn(f"{path} is left out: {problem}", RuntimeWarning, stacklevel=3)
    return None


def _digest(entry: Entry) -> str:
    return digest(json.dumps(entry, sort_keys=True))
