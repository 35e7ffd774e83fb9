"""Derived programs and a machine in, a plan out: modes, prices, and each choice with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lacc.plan import cost
from lacc.plan.cost import Work
from lacc.plan.explain import Spoken, spoken_of
from lacc.plan.machine import DEFAULT, MACHINES, Machine
from lacc.plan.plan import Plan, Price, price_at, sizes
from lacc.spec.shapes import Size
from lacc.tile.derive import Derived

CHUNKS = (16, 32, 64, 128, 256)
PASTS = (32, 2048)
"""Tokens before the chunk of a price that is looked at."""
NEGLIGIBLE = 2e-3
"""The share of a price below which a term of it is left out."""
IN_FIRST, IN_ONE, IN_CHUNK = 0.5, 0.25, 0.07
"""Of a machine's ``near`` and ``call`` what a token by itself takes where heads go apart: its tiles
stay in the first level, and most of its calls are loops that follow each other. The last is the
same for the calls of a chunk, which start while the work of those before is still under way, and
for each token of a loop over them inside one."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to plan for: a dtype, the mode and chunk of a call that names none, a name of
    `MACHINES` or "local", and whether what was measured goes before the model: where that is kept
    on this machine, or in a file."""

    dtype: str = "float32"
    mode: str = "auto"
    chunk: int | None = None
    machine: str = DEFAULT
    tuned: bool | str = False


def choose(
    derived: Derived,
    *,
    dtype: str = "float32",
    mode: str = "auto",
    chunk: int | None = None,
    machine: Machine = MACHINES["numpy"][DEFAULT],
) -> Plan:
    """The plan of a spec for one machine; ``mode`` and ``chunk`` leave it only that choice."""
    exist = tuple(m for m in ("parallel", "chunk", "recurrent") if derived.modes[m] is None)
    dims = {name: dim.default for name, dim in derived.spec.dims.items()}
    size = 8 if dtype == "float64" else 4
    bare = Plan(
        machine=machine.name,
        modes=exist if mode == "auto" else (mode,),
        chunks=_lengths(derived.longest) if chunk is None else (chunk,),
        block=machine.L2 // size,
        cached=(machine.L2 if machine.apart else machine.L3) // size,
        near=float(f"{size / machine.near * 1e9:.3g}"),
        far=float(f"{size / machine.far * 1e9:.3g}"),
        tile=_price((cost.held(derived), 1.0)),
        apart=machine.apart,
    )
    plan, back = (_priced(bare, derived, machine, size, dims, way) for way in (False, True))
    return spoken_of(derived, replace(plan, back=back), machine, dims, Spoken())


def _lengths(longest: int | None) -> tuple[int, ...]:
    """The chunk lengths to choose from, none above ``longest``."""
    if longest is None:
        return CHUNKS
    return tuple(C for C in CHUNKS if longest >= C) or (longest,)


def _priced(
    plan: Plan, derived: Derived, machine: Machine, size: int, dims: Mapping[str, int], back: bool
) -> Plan:
    """``plan`` with the prices of a forward call, or of one that also goes ``back`` for
    gradients."""
    phases = [cost.work(program, "state") for program in cost.lowered(derived)]
    tokens = [derived.token.lowered] if derived.token is not None else []
    kept = Size.of(0)
    if back:
        phases += [cost.work(program, "dstate") for program in cost.lowered(derived, back=True)]
        tokens += [derived.token.lowered_back] if derived.token is not None else []
        tokens += tokens[:1] if machine.apart else []  # goes there again, to come back
        kept = cost.kept(derived, machine.apart)
    carry = cost.total(p["carry"] for p in phases) + cost.attended(derived)
    carry = carry + cost.attended(derived, back=True) if back else carry
    block = cost.total(p[name] for p in phases for name in ("local", "output"))
    token = cost.total(cost.from_state(program) for program in tokens)
    beside = cost.TILE_CALLS if machine.apart else cost.BLOCK_CALLS
    products = (block + carry).products if machine.apart else Size.of(0)
    call, extra = machine.call * 1e9, Size.of(beside * (1 + back))
    in_chunk = call * IN_CHUNK if machine.apart else call
    near, far = size / machine.near * 1e9, size / machine.far * 1e9
    by_token = (IN_FIRST, IN_ONE) if machine.apart else (1.0, 1.0)
    return replace(
        plan,
        moved=_short(_price(((block + carry).entries, 1.0)), dims),
        chunk=_short(_price(*_seconds(block + carry, machine, size), (kept, far)), dims),
        products=_short(_price((products, size / 4 / machine.flops * 1e9)), dims),
        chunk_calls=_short(_price((carry.calls, in_chunk), (carry.steps, in_chunk)), dims),
        block_calls=_short(_price((block.calls + extra, in_chunk), (block.steps, in_chunk)), dims),
        token=_short(
            _price(*_seconds(token, machine, size), (token.entries, near * by_token[0])), dims
        ),
        token_calls=_short(_price((token.calls + token.steps + extra, call * by_token[1])), dims),
    )


def _seconds(work: Work, machine: Machine, size: int) -> Iterator[tuple[Size, float]]:
    """Counts of a chunk and a head with their nanoseconds, calls and memory aside."""
    width = size / 4
    yield work.products, width / machine.flops * 1e9
    yield work.maps, width / machine.map * 1e9
    yield work.matrices, machine.matrix * 1e9


def _price(*rates: tuple[Size, float]) -> Price:
    """The sum of counts, each at its rate."""
    found: dict[tuple[str, ...], float] = {}
    for size, rate in rates:
        for monomial, coefficient in size.terms:
            names = tuple(name for name, power in monomial for _ in range(power))
            found[names] = found.get(names, 0.0) + float(coefficient) * rate
    return tuple((rate, *names) for names, rate in sorted(found.items()))


def _short(price: Price, dims: Mapping[str, int]) -> Price:
    """The price without what never matters at ``dims``, to three digits."""
    kept = {n for C in CHUNKS for past in PASTS for n in _matters(price, sizes(C, dims, past))}
    return tuple((float(f"{price[n][0]:.3g}"), *price[n][1:]) for n in sorted(kept))


def _matters(price: Price, at: Mapping[str, float]) -> Sequence[int]:
    whole = price_at(price, at)
    return [n for n, term in enumerate(price) if price_at((term,), at) > NEGLIGIBLE * whole]
