"""The beginning of a word goes in, what it could become comes out: what a shell completes."""

from __future__ import annotations

from pathlib import Path


def spec_files(incomplete: str) -> list[str]:
    """Folders, .la and .py files that begin so."""
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    start = "" if incomplete.endswith("/") else Path(incomplete).name
    if not folder.is_dir():
        return []
    shown = incomplete[: len(incomplete) - len(start)]
    found = []
    for path in sorted(folder.iterdir()):
        if not path.name.startswith(start) or (path.name.startswith(".") and not start):
            continue
        if path.is_dir():
            found.append(f"{shown}{path.name}/")
        elif path.suffix in (".la", ".py"):
            found.append(shown + path.name)
    return found


def targets(incomplete: str) -> list[str]:
    """Targets that begin so."""
    from lacc import driver

    return [name for name in driver.TARGETS if name.startswith(incomplete)]


def examples(incomplete: str) -> list[str]:
    """Examples that begin so."""
    from lacc import library

    return [name for name in library.variants() if name.startswith(incomplete)]
