"""What a kernel of a device loads or stores in, the kind of array that it is out: which of its
places a target declares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from lacc.tile.program import TIME, Axes

PlaceT = TypeVar("PlaceT")


class Places(ABC, Generic[PlaceT]):
    """The places of arrays by kind and name; ``_places`` holds those that were asked for."""

    _places: dict[tuple[str, str], PlaceT]

    def place(self, kind: str, name: str, axes: Axes) -> PlaceT:
        """The place of what is loaded or stored under a name; declared when first asked for."""
        key = (kind, name)
        if key not in self._places:
            self._places[key] = self._declare(kind, name, axes)
        return self._places[key]

    def _declare(self, kind: str, name: str, axes: Axes) -> PlaceT:
        match kind:
            case "input" | "cotangent" | "param" | "buffer" | "stored":
                return self._strided(kind, name, axes)
            case "last" | "begun" | "ended" | "dbegun" | "dended" | "dlast":
                return self._per_sequence(kind, name)
            case "y" | "dx":
                return self._per_token(kind, name, axes)
            case "dfixed":
                return self._partial(name)
        assert kind == "kept", kind
        if {*TIME} & {*axes}:
            return self._per_token(kind, name, axes)
        return self.per_chunk(kind, name, axes)

    @abstractmethod
    def _strided(self, kind: str, name: str, axes: Axes) -> PlaceT:
        """What a caller gives, with its strides."""

    @abstractmethod
    def _per_sequence(self, kind: str, name: str) -> PlaceT:
        """A state of every sequence and head."""

    @abstractmethod
    def _per_token(self, kind: str, name: str, axes: Axes) -> PlaceT:
        """A contiguous array with tokens."""

    @abstractmethod
    def _partial(self, name: str) -> PlaceT:
        """A program's sums of the gradient of a param."""

    @abstractmethod
    def per_chunk(self, kind: str, name: str, axes: Axes) -> PlaceT:
        """A contiguous array that has one entry for each chunk."""
