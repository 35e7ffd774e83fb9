"""A file that extends another or uses the library goes in; one file without `extends` and `use` comes out."""

from __future__ import annotations

from typing import Protocol

from lacc.spec.syntax import File


class Loader(Protocol):
    """Finds other files by their dotted name."""

    def find(self, path: tuple[str, ...]) -> File | None:
        """The parsed file, None where there is none."""
