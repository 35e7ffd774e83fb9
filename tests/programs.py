"""Random tile programs with arrays for them, and the check that a program's gradient is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from lacc.spec.shapes import Size
from lacc.tile.grad import differentiate, partials
from lacc.tile.interp import interpret
from lacc.tile.program import Axes, Program, Tiles, verify

DIMS = {"K": 4, "V": 3}
K, V = Size.of("K"), Size.of("V")
SIZES = {
    **{"K": K, "K'": K, "V": V, "P": Size.of(2), "R": Size.of(1)},
    **{"K+V": K + V, "(K V)": K * V},
}
LENGTHS = {name: size.evaluate(DIMS) for name, size in SIZES.items()}
Loads = dict[tuple[str, str], Any]


def shape(axes: Axes, tokens: int) -> tuple[int, ...]:
    """The shape of a tile."""
    return tuple(tokens if a in ("t", "s") else LENGTHS[a] for a in axes)


def arrays(program: Program, tokens: int, seed: int, lead: tuple[int, ...] = ()) -> Loads:
    """Normal numbers for everything that a program loads."""
    rng = np.random.default_rng(seed)
    return {
        inst.value: rng.standard_normal((*lead, *shape(inst.axes, tokens)))
        for inst in program.body
        if inst.op == "load"
    }


def gradient(program: Program, kinds: tuple[str, ...] = ("input", "state", "param")) -> Program:
    """The vjp of all outputs."""
    seeds = {out: ("cotangent", out) for out in program.outs}
    return verify(differentiate(program, seeds, kinds, lambda kind, name: f"{kind}:{name}"))


def reverse(program: Program, kinds: tuple[str, ...] = ("input", "state", "param")) -> Program:
    """The backward program of a pass: the cotangent of a state is carried."""
    states = {out for out in program.outs if out.startswith("state:")}
    seeds = {
        out: ("dstate", out.removeprefix("state:")) if out in states else ("cotangent", out)
        for out in program.outs
    }
    return verify(differentiate(program, seeds, kinds, lambda kind, name: f"{kind}:{name}"))


def check_gradient(
    program: Program, tokens: int, seed: int = 0, loads: Loads | None = None, step: float = 1e-5
) -> None:
    """<ct, J u> = <Jᵀ ct, u>, with J u by central differences in float64."""
    rng = np.random.default_rng(seed + 1)
    loads = arrays(verify(program), tokens, seed) if loads is None else loads
    along = {key: rng.standard_normal(x.shape) for key, x in loads.items()}

    def at(by: float) -> dict[str, Any]:
        moved = {key: x + by * along[key] for key, x in loads.items()}
        return interpret(program, moved, DIMS, tokens)

    ahead, behind = at(step), at(-step)
    cts = {out: rng.standard_normal(np.shape(x)) for out, x in ahead.items()}
    pairs = [(cts[out] * (ahead[out] - behind[out]) / (2 * step)) for out in cts]
    given = {("cotangent", out): ct for out, ct in cts.items()}
    grads = interpret(gradient(program), {**loads, **given}, DIMS, tokens)
    pulled = {
        key: np.broadcast_to(grads.get(":".join(key), 0.0), x.shape) for key, x in loads.items()
    }
    assert all(np.isfinite(x).all() for x in pulled.values())
    terms = [pulled[key] * along[key] for key in loads]
    scale = sum(np.abs(x).sum() for x in (*pairs, *terms)) + 1e-3
    apart = abs(sum(x.sum() for x in pairs) - sum(x.sum() for x in terms))
    assert apart <= 2e-7 * scale, f"{apart:.2e} of {scale:.2e}\n{program}"


@dataclass
class Draft:
    """A program under construction: the builder and the values to choose from."""

    draw: Callable[[Any], Any]
    f: Tiles
    values: list[int]

    def pick(self, fits: Callable[[Axes], bool] = lambda axes: True) -> int | None:
        """One of the values whose axes fit."""
        found = [v for v in self.values if fits(self.f.axes(v))]
        return found[self.draw(st.integers(0, len(found) - 1))] if found else None

    def one_of(self, items: tuple[Any, ...]) -> Any:
        """One of the items."""
        return items[self.draw(st.integers(0, len(items) - 1))]


def _map(d: Draft) -> int | None:
    op, x = d.one_of(("tanh", "sin", "sigmoid", "softplus", "neg", "silu")), d.pick()
    return None if x is None else d.f.ew(op, x)


def _pair(d: Draft) -> int | None:
    x = d.pick()
    own = set() if x is None else set(d.f.axes(x))
    y = d.pick(lambda axes: len(own | set(axes)) <= 3)
    if x is None or y is None:
        return None
    return d.f.ew(d.one_of(("mul", "add", "sub")), x, y)


def _choice(d: Draft) -> int | None:
    x = d.pick()
    own = set() if x is None else set(d.f.axes(x))
    y, z = (d.pick(lambda axes: set(axes) <= own) for _ in range(2))
    if x is None or y is None or z is None:
        return None
    return d.f.where(d.f.gt(x, 0.0), y, z)


def _contract(d: Draft) -> int | None:
    x = d.pick(lambda axes: bool(axes))
    if x is None:
        return None
    over = d.one_of(d.f.axes(x))
    own = set(d.f.axes(x))
    y = d.pick(lambda axes: over in axes and len(own | set(axes)) <= 4)
    return None if y is None else d.f.mul(0.3, d.f.contract(x, y, (over,)))


def _sum(d: Draft) -> int | None:
    x = d.pick(lambda axes: bool(axes))
    return None if x is None else d.f.mul(0.3, d.f.sum(x, (d.one_of(d.f.axes(x)),)))


def _expand(d: Draft) -> int | None:
    x = d.pick(lambda axes: len(axes) < 3)
    return None if x is None else d.f.expand(x, (d.one_of(("t", "K", "V")),))


def _rename(d: Draft) -> int | None:
    old, new = d.one_of((("t", "s"), ("s", "t"), ("K", "K'"), ("K'", "K")))
    x = d.pick(lambda axes: old in axes and new not in axes)
    return None if x is None else d.f.rename(x, {old: new})


def _mask(d: Draft) -> int | None:
    x = d.pick(lambda axes: axes == ("t", "s"))
    return None if x is None else d.f.op("mask", (x,), d.draw(st.booleans()))


def _of_time(d: Draft) -> int | None:
    x = d.pick(lambda axes: "t" in axes)
    return None if x is None else d.f.op(d.one_of(("shift", "row")), (x,), d.draw(st.booleans()))


def _scan(d: Draft) -> int | None:
    a, b = (d.pick(lambda axes: "t" in axes and "s" not in axes) for _ in range(2))
    if a is None or b is None or len(set(d.f.axes(a)) | set(d.f.axes(b))) > 3:
        return None
    start = d.f.op("row", (b,), False)
    return d.f.op("scan", (d.f.tanh(a), b, start))


def _solve(d: Draft) -> int | None:
    system = d.pick(lambda axes: axes == ("t", "s"))
    right = d.pick(lambda axes: "t" in axes and "s" not in axes and len(axes) < 3)
    if system is None or right is None:
        return None
    return d.f.op("solve", (d.f.mul(0.3, d.f.tanh(system)), right), d.draw(st.booleans()))


def _decays(d: Draft) -> int | None:
    g = d.pick(lambda axes: axes in (("t",), ("t", "K"), ("t", "V")))
    if g is None:
        return None
    f, axes, log = d.f, d.f.axes(g), d.draw(st.booleans())
    g = f.neg(f.softplus(g)) if log else f.tanh(g)
    runs = f.op("levels", (g,), (log, d.draw(st.booleans())))
    x, y = (d.pick(lambda a: a == axes) for _ in range(2))
    pairs = d.pick(lambda a: a == ("t", "s"))
    op = d.one_of(("prefix", "suffix", "whole", "matrix", "gram", "decayed"))
    if op == "gram":
        return None if len(axes) < 2 or x is None or y is None else f.op(op, (x, y, runs))
    if op == "decayed":
        return None if len(axes) < 2 or y is None or pairs is None else f.op(op, (pairs, y, runs))
    return None if op == "matrix" and len(axes) > 1 else f.op(op, (runs,))


def _met(d: Draft) -> int | None:
    """Pairs beside what their tokens are to the ends of the chunk."""
    x, y = (d.pick(lambda axes: axes in (("t", "K"), ("t", "V"))) for _ in range(2))
    if x is None or y is None or d.f.axes(x) != d.f.axes(y):
        return None
    f, log = d.f, d.draw(st.booleans())
    g = f.neg(f.softplus(y)) if log else f.tanh(y)
    runs = f.op("levels", (g,), (log, d.draw(st.booleans())))
    ends = ("prefix", x) if d.draw(st.booleans()) else ("suffix", y)
    d.values.append(f.mul(0.3, f.op("gram", (x, y, runs))))
    return f.mul(ends[1], f.op(ends[0], (runs,)))


def _weighed(d: Draft) -> int | None:
    """A product, or a sum of products, of which an operand has a factor of fewer axes."""
    x = d.pick(lambda axes: len(axes) == 2)
    own = set() if x is None else set(d.f.axes(x))
    w, y = d.pick(lambda axes: set(axes) < own), d.pick(lambda axes: len(set(axes) & own) == 1)
    z = d.pick(lambda axes: set(axes) == own)
    if x is None or w is None or y is None or z is None:
        return None
    f, over = d.f, d.one_of(d.f.axes(x))
    scaled = f.neg(x) if d.draw(st.booleans()) else f.mul(w, x)
    if over in f.axes(y):
        return f.mul(0.3, f.contract(scaled, y, (over,)))
    return f.mul(0.3, f.sum(f.mul(scaled, z), (over,)))


def _of_axes(d: Draft) -> int | None:
    f = d.f
    match d.one_of(("take", "put", "concat", "roll", "fold", "unfold")):
        case "take":
            x = d.pick(lambda axes: "K" in axes and "P" not in axes)
            return None if x is None else f.op("take", (x,), ("K", "P", Size.of(1), 2))
        case "put":
            x = d.pick(lambda axes: "P" in axes and "K" not in axes)
            return None if x is None else f.op("put", (x,), ("K", "P", Size.of(0), 2))
        case "concat":
            x = d.pick(lambda axes: "K" in axes and "V" not in axes and "K+V" not in axes)
            y = d.pick(lambda axes: "V" in axes and "K" not in axes and "K+V" not in axes)
            if x is None or y is None:
                return None
            return f.op("concat", (x, y), ("K+V", ("K", "V")))
        case "roll":
            x = d.pick(lambda axes: "K" in axes)
            return None if x is None else f.op("roll", (x,), ("K", d.one_of((-1, 2))))
        case "fold":
            x = d.pick(lambda axes: {"K", "V"} <= set(axes) and "(K V)" not in axes)
            return None if x is None else f.op("fold", (x,), ("K", "V", "(K V)"))
        case _:
            x = d.pick(lambda axes: "(K V)" in axes and not {"K", "V"} & set(axes))
            return None if x is None else f.op("unfold", (x,), ("K", "V", "(K V)"))


PADDED = (_map, _pair, _choice, _contract, _sum, _expand, _rename, _mask, _solve, _decays)
PADDED += (_met, _weighed)
"""Moves that tiles with padding have."""
MOVES = (*PADDED, _of_time, _scan, _decays, _of_axes, _of_axes)
LOADED = ((("input", "x"), ("t", "K")), (("input", "y"), ("t", "V")), (("input", "g"), ("t",)))
LOADED += ((("state", "S"), ("K", "V")), (("param", "w"), ("K",)), (("param", "c"), ()))


@st.composite
def programs(draw: Any, moves: tuple[Callable[[Draft], int | None], ...] = MOVES) -> Program:
    """A well-formed program of smooth ops; its values stay of the order of one."""
    f = Tiles(SIZES)
    loads = [f.load(*key, axes) for key, axes in LOADED]
    pairs = f.contract(loads[0], f.rename(f.tanh(loads[0]), {"t": "s"}), ("K",))
    d = Draft(draw, f, [*loads, pairs])
    for move in draw(st.permutations(moves * 2))[: draw(st.integers(8, 20))]:
        value = move(d)
        if value is not None:
            d.values.append(value if draw(st.booleans()) else f.tanh(value))
    made = d.values[len(loads) + 1 :] or [pairs]
    kept = [v for v in made if draw(st.booleans())] or made
    outs = {f"o{n}": v for n, v in enumerate(dict.fromkeys(kept))}
    return verify(f.finish(outs))


def _scanned(d: Draft, start: int) -> int:
    """S[t] = a[t] ⊙ S[t-1] + b[t]."""
    f, full = d.f, ("t", "K", "V")
    a = d.pick(lambda axes: "t" in axes and set(axes) <= set(full))
    b = d.pick(lambda axes: set(axes) <= set(full))
    assert a is not None and b is not None
    return f.op("scan", (f.expand(f.tanh(a), full), f.expand(b, full), start))


def _tropical(d: Draft, start: int) -> int:
    """S[t] = op(S[t-1] + a[t], b[t]): its values by a scan of the chunk, its gradient token by
    token."""
    f, full, op = d.f, ("t", "K", "V"), d.one_of(("max", "min", "logaddexp"))
    a, b = (d.pick(lambda axes: "t" in axes and set(axes) <= set(full)) for _ in range(2))
    assert a is not None and b is not None
    a, b = f.expand(a, full), f.expand(f.sin(b), full)
    met = f.add(f.op("running", (a,)), start)
    value = f.ew(op, f.op("tropical", (a, b), op), met)
    moved = f.add(f.op("before", (f.stop_gradient(value), start)), a)
    update = f.ew(op, moved, b)
    slope = partials(f, op, update, (moved, b))[0]
    assert slope is not None
    return f.op("instead", (value, f.op("through_time", (update, f.expand(slope, full)))))


def _chained(d: Draft, start: int) -> int:
    """Two states that need one another: the chain of what tokens add, and from the first on that
    of the identity times the start; the first of them."""
    f, full, states = d.f, ("t", "K", "V"), range(2)
    a, b = (d.pick(lambda axes: "t" in axes and set(axes) <= set(full)) for _ in range(2))
    assert a is not None and b is not None
    steps = [f.stack([f.tanh(f.mul(a, 0.5 * (i - j))) for j in states], "@j") for i in states]
    kept = f.stack(steps, "@i")
    added = f.stack([f.expand(f.mul(b, 1.0 - i), full) for i in states], "@i")
    f.sizes["@k"] = Size.of(2)
    first = f.rename(f.op("row", (kept,), False), {"@j": "@k"})
    ahead = f.op("chain", (kept, f.op("place_row", (first,), False)), ("@i", "@j"))
    local = f.entry(f.op("chain", (kept, added), ("@i", "@j")), "@i", 0)
    return f.add(local, f.mul(f.entry(f.entry(ahead, "@i", 0), "@k", 0), start))


@st.composite
def passes(draw: Any) -> Program:
    """A pass that carries S by a scan, a tropical one or a chain, with reads of it, of its row
    before and of what is made of both; what it carries on is its last row, or one of a value that
    it enters entry by entry."""
    f = Tiles(SIZES)
    loads = [f.load(*key, axes) for key, axes in LOADED]
    start = loads[3]
    d = Draft(draw, f, [v for v in loads if v != start])
    for move in draw(st.permutations((_map, _pair, _choice)))[: draw(st.integers(0, 3))]:
        value = move(d)
        if value is not None:
            d.values.append(value)
    value = d.one_of((_scanned, _tropical, _chained))(d, start)
    before = f.op("before", (value, start))
    d.values += [value, before] if draw(st.booleans()) else [value]
    made = len(d.values)
    for move in draw(st.permutations((_map, _pair, _contract, _sum)))[: draw(st.integers(1, 4))]:
        found = move(d)
        if found is not None:
            d.values.append(f.tanh(found))
    kept = f.mul(value, f.sigmoid(loads[4])) if draw(st.booleans()) else value
    outs = {f"o{n}": v for n, v in enumerate(dict.fromkeys(d.values[made:]))}
    return verify(f.finish({**outs, "state:S": f.op("row", (kept,), True)}))
