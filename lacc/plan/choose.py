"""Derived programs and a machine in, a plan out: modes, prices, and each choice with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lacc.plan import cost
from lacc.plan.cost import Work
from lacc.plan.explain import reasons
from lacc.plan.machine import GENERIC, Machine
from lacc.plan.plan import Plan, Price, price_at, sizes
from lacc.spec.shapes import Size
from lacc.tile.derive import Derived

CHUNKS = (16, 32, 64, 128, 256)
NEGLIGIBLE = 2e-3
"""The share of a price below which a term of it is left out."""


def choose(
    derived: Derived,
    *,
    dtype: str = "float32",
    mode: str = "auto",
    chunk: int | None = None,
    machine: Machine = GENERIC,
) -> Plan:
    """The plan of a spec for one machine; ``mode`` and ``chunk`` leave it only that choice."""
    exist = tuple(m for m in ("parallel", "chunk", "recurrent") if derived.modes[m] is None)
    forward = cost.lowered(derived)
    phases = [cost.work(program, "state") for program in forward]
    carry = cost.total(p["carry"] for p in phases)
    block = cost.total(p[name] for p in phases for name in ("local", "output"))
    token = Work()
    if derived.token is not None:
        found = cost.work(derived.token.forward, "state")
        token = cost.total(found[name] for name in ("local", "carry", "output"))
    dims = {name: dim.default for name, dim in derived.spec.dims.items()}
    size = 8 if dtype == "float64" else 4
    call = machine.call * 1e9
    plan = Plan(
        machine=machine.name,
        modes=exist if mode == "auto" else (mode,),
        chunks=CHUNKS if chunk is None else (chunk,),
        block=machine.L2 // size,
        cached=machine.L3 // size,
        near=float(f"{size / machine.near * 1e9:.3g}"),
        far=float(f"{size / machine.far * 1e9:.3g}"),
        moved=_short(_price({(block + carry).entries: 1.0}), dims),
        chunk=_short(_seconds(block + carry, machine, size), dims),
        tile=_price({cost.held(forward): 1.0}),
        block_calls=_short(_price({block.calls + Size.of(cost.BLOCK_CALLS): call}), dims),
        chunk_calls=_short(_price({carry.calls: call}), dims),
        token=_short(_seconds(token, machine, size, size / machine.near), dims),
        token_calls=_short(_price({token.calls + Size.of(cost.BLOCK_CALLS): call}), dims),
    )
    return replace(plan, why=tuple(reasons(derived, plan, machine, dims)))


def _seconds(work: Work, machine: Machine, size: int, move: float = 0.0) -> Price:
    """Nanoseconds of a chunk and a head, its calls aside; ``move`` seconds for each entry moved."""
    width = size / 4
    return _price(
        {
            work.products: width / machine.flops * 1e9,
            work.maps: width / machine.map * 1e9,
            work.entries: move * 1e9,
            work.matrices: machine.matrix * 1e9,
        }
    )


def _price(rates: Mapping[Size, float]) -> Price:
    """The sum of counts, each at its rate."""
    found: dict[tuple[str, ...], float] = {}
    for size, rate in rates.items():
        for monomial, coefficient in size.terms:
            names = tuple(name for name, power in monomial for _ in range(power))
            found[names] = found.get(names, 0.0) + float(coefficient) * rate
    return tuple((rate, *names) for names, rate in sorted(found.items()))


def _short(price: Price, dims: Mapping[str, int]) -> Price:
    """The price without what never matters at ``dims``, to three digits."""
    kept = {n for C in CHUNKS for n in _matters(price, sizes(C, dims))}
    return tuple((float(f"{price[n][0]:.3g}"), *price[n][1:]) for n in sorted(kept))


def _matters(price: Price, at: Mapping[str, float]) -> Sequence[int]:
    whole = price_at(price, at)
    return [n for n, term in enumerate(price) if price_at((term,), at) > NEGLIGIBLE * whole]
