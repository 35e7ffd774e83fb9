"""The names of a spec in, names for what its derivation adds out: none twice."""

from __future__ import annotations

from collections.abc import Iterable

from lacc.analysis.stability import named
from lacc.spec.model import Expr, Spec
from lacc.spec.names import RESERVED


class Names:
    """Gives names; each is one that neither the spec nor the derivation has."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.given = named(spec)
        own = {a.name for a in spec.args} | {s.name for s in spec.states}
        own |= {d.name for d in spec.definitions} | {o.name for o in spec.outputs}
        self._paths: set[str] = set()
        self._taken = {*own, *spec.dims, *spec.consts, *RESERVED, "C", "s", "u", "d"}

    def fresh(self, *wanted: str) -> str:
        """The first of ``wanted`` that is free, else the last with primes."""
        name = next((w for w in wanted if w not in self._taken), wanted[-1])
        while name in self._taken:
            name += "'"
        self._taken.add(name)
        return name

    def several(self, count: int, *wanted: str) -> list[str]:
        """Names for ``count`` things of a kind: one letter, numbered where there are several."""
        if not count:
            return []
        base = self.fresh(*wanted)
        return [base] if count == 1 else [f"{base}^{n + 1}" for n in range(count)]

    def of(self, expr: Expr, *otherwise: str) -> str:
        """The name that the spec gives to a factor, for its products; else a fresh one."""
        name = self.given.get(expr)
        if name is None and expr.op == "input" and not expr.reference[1]:
            name = expr.reference[0]
        elif name is None and expr.op in ("param", "buffer"):
            name = str(expr.value)
        if name is not None and name.replace("_", "").isalnum() and name not in self._paths:
            self._paths.add(name)
            return name
        return self.fresh(*otherwise)


def alphabet(words: Iterable[str]) -> str:
    """Words as a list: `a, b and c`."""
    words = list(words)
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
