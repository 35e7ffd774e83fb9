"""A plan in, its reasons out: each choice with its numbers and what was not chosen instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lacc.plan import cost, crossover
from lacc.plan.cost import lowered
from lacc.plan.machine import Machine
from lacc.plan.plan import Plan, sizes
from lacc.tile.attention_pass import AttentionPass
from lacc.tile.derive import Derived
from lacc.tile.program import Program


@dataclass(frozen=True, slots=True)
class Spoken:
    """The call that reasons speak of, heads of all sequences."""

    tokens: int = 4096
    heads: int = 8

    def micros(self, nanoseconds: float, tokens: int) -> float:
        """Of a token and head, in three digits."""
        return float(f"{nanoseconds / tokens / self.heads / 1e3:.3g}")

    def until(self, last: int) -> str:
        """For which T something holds that does so up to ``last``, of those looked at."""
        return (
            f"at every T up to {self.tokens:,}" if last >= self.tokens - 1 else f"up to T = {last}"
        )


def reasons(
    derived: Derived, plan: Plan, machine: Machine, dims: Mapping[str, int], at: Spoken
) -> Iterator[str]:
    """One sentence a choice."""
    for mode in ("chunk", "parallel", "recurrent"):
        obstacle = derived.modes[mode]
        if obstacle is not None and not (mode == "parallel" and derived.modes["chunk"] is obstacle):
            yield f"no mode {mode}: {obstacle.reason}"
    if "chunk" in plan.modes:
        yield _of_chunk(plan, dims, at)
        yield f"{plan.block:,} floats a block: the L2 cache of {machine.L2 >> 10} KiB"
    if {"parallel", "chunk"} <= set(plan.modes):
        yield _of_parallel(plan, dims, at)
        order = _of_order(plan, lowered(derived), dims, at)
        if order:
            yield order
    if "chunk" in plan.modes:
        yield from _of_attention(derived, plan, dims, at)
    if "recurrent" in plan.modes:
        yield _of_recurrent(plan, dims, at)


def reasons_back(plan: Plan, dims: Mapping[str, int], at: Spoken) -> Iterator[str]:
    """Of the plan of calls for gradients."""
    if "chunk" in plan.modes:
        yield f"with gradients {_of_chunk(plan, dims, at)}"


def spoken_of(
    derived: Derived, plan: Plan, machine: Machine, dims: Mapping[str, int], at: Spoken
) -> Plan:
    """The plan, with its reasons for the call ``at``."""
    back = () if plan.back is None else reasons_back(plan.back, dims, at)
    return replace(plan, why=(*reasons(derived, plan, machine, dims, at), *back))


def spoken_at(derived: Derived, plan: Plan, machine: Machine, shape: Mapping[str, int]) -> Plan:
    """A plan with its reasons for a call of ``shape`` (B, T, H) in place of the general ones; what
    else it says stays."""
    dims = {name: dim.default for name, dim in derived.spec.dims.items()}
    at = Spoken(max(shape.get("T", 1), 1), max(shape.get("B", 1) * shape.get("H", 1), 1))
    general = {*spoken_of(derived, plan, machine, dims, Spoken()).why}
    beside = tuple(said for said in plan.why if said not in general)
    found = spoken_of(derived, plan, machine, dims, at)
    return replace(found, why=(*found.why, *beside))


def _of_chunk(plan: Plan, dims: Mapping[str, int], at: Spoken) -> str:
    T = at.tokens
    lengths = [C for C in plan.chunks if C <= T] or plan.chunks[:1]
    each = {C: at.micros(plan.by_chunk(min(C, T), T, at.heads, dims), T) for C in lengths}
    best = min(each, key=each.__getitem__)
    others = ", ".join(f"{us} with {C}" for C, us in each.items() if best != C)
    text = f"{best} tokens a chunk: {each[best]} µs a token and head"
    return f"{text}; {others}" if others else text


def last(holds: Callable[[int], bool], most: int) -> int:
    """The last number, up to ``most``, before ``holds`` fails for good: 0 where it fails for 1."""
    low, high = 0, 1
    while high < most and holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def switch(plan: Plan, modes: Sequence[str], dims: Mapping[str, int], at: Spoken) -> int:
    """The last T of those spoken of for which one of ``modes`` is chosen, 0 where none."""
    return last(lambda T: plan.choose(T, at.heads, dims)[0] in modes, at.tokens)


def _of_parallel(plan: Plan, dims: Mapping[str, int], at: Spoken) -> str:
    longest = switch(plan, ("parallel", "recurrent"), dims, at)
    if not longest:
        return "never one chunk: chunks cost less at every T"
    if plan.choose(at.tokens, at.heads, dims)[0] == "recurrent":
        return f"no chunks at T = {at.tokens:,}: token by token costs less than one or several"
    T = longest + 1
    shorter = [plan.by_chunk(C, T, at.heads, dims) for C in plan.chunks if C < T]
    text = f"one chunk {at.until(longest)}"
    if longest >= at.tokens - 1 or not shorter:
        return text
    one = at.micros(plan.by_chunk(T, T, at.heads, dims), T)
    chunked = at.micros(min(shorter), T)
    return f"{text}; at T = {T} it takes {one} µs a token and head, chunks {chunked}"


def _of_order(plan: Plan, forward: Sequence[Program], dims: Mapping[str, int], at: Spoken) -> str:
    """The flops of (Q Kᵀ) V against those of the state form, where pairs are formed at all."""
    long = at.tokens
    C = plan.choose(long, at.heads, dims)[1]
    state = cost.total(cost.from_state(p) for p in forward).products
    pairs = cost.total(cost.from_nothing(p) for p in forward).products
    if not any("s" in inst.axes for program in forward for inst in program.body):
        return ""
    per_token = cost.evaluate(state, sizes(C, dims)) / C
    T = 1 + last(lambda T: cost.evaluate(pairs, sizes(T, dims)) / T < per_token, long)
    here = cost.evaluate(pairs, sizes(long, dims)) / long
    return (
        f"order Q (Kᵀ V) from T = {T} on: {per_token:,.0f} flops a token in chunks of {C}, "
        f"(Q Kᵀ) V {here / long:,.0f} T"
    )


def _of_attention(
    derived: Derived, plan: Plan, dims: Mapping[str, int], at: Spoken
) -> Iterator[str]:
    """The flops of each attention, which no order of products makes fewer."""
    long = at.tokens
    C = plan.choose(long, at.heads, dims)[1]
    for p in derived.passes:
        if isinstance(p, AttentionPass):
            work = cost.attention(p).products
            flops = cost.evaluate(work, sizes(C, dims, long / 2)) / C
            sight = f"{p.window} tokens" if p.window is not None else f"all T = {long} so far"
            yield f"attends in tiles of {C} queries: {flops:,.0f} flops a token over {sight}"


def _of_recurrent(plan: Plan, dims: Mapping[str, int], at: Spoken) -> str:
    token = at.micros(plan.by_token(1, at.heads, dims), 1)
    if plan.modes == ("recurrent",):
        return f"token by token: {token} µs a token and head"
    longest = switch(plan, ("recurrent",), dims, at)
    until = f"token by token {at.until(longest)}" if longest else "never token by token"
    other = at.micros(plan.by_chunk(1, 1, at.heads, dims), 1)
    return f"{until}: {token} µs a token and head, {other} for a chunk of one"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of numbers as text under a title and a header."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def explain(derived: Derived, plan: Plan, shape: Mapping[str, int]) -> tuple[Table, ...]:
    """What a call of ``shape`` (B, T, H) could do and what each costs, and where the work of the
    choice is."""
    dims = {name: dim.default for name, dim in derived.spec.dims.items()}
    T, heads = max(shape.get("T", 1), 1), shape.get("B", 1) * shape.get("H", 1)
    if not plan.modes:
        return ()
    chosen = plan.choose(T, heads, dims)
    rows = tuple(_candidates(derived, plan, T, heads, dims, chosen))
    header = ("mode", "tokens a chunk", "order", "ms", "Mflop", "")
    sizes_ = ", ".join(f"{name}={size}" for name, size in shape.items())
    tables = [Table(f"at {sizes_}, forward, on the machine {plan.machine}", header, rows)]
    if chosen[0] != "recurrent":
        tables.append(_of_phases(derived, chosen[1], T, dims))
    return tuple(tables)


def against_softmax(
    derived: Derived,
    plan: Plan,
    shape: Mapping[str, int],
    machine: Machine,
    target: str,
    dtype: str = "float32",
) -> tuple[Table, ...]:
    """From which T on calls with ``shape``'s B and H cost less than softmax attention, and the
    terms of both sides there."""
    if not plan.modes:
        return ()
    T, heads = max(shape.get("T", 1), 1), shape.get("B", 1) * shape.get("H", 1)
    size = 8 if dtype == "float64" else 4
    at, cases = crossover.cases(derived, plan, machine, target, heads, size)
    sides = [_of_sides(case, T, machine) for case in cases if case.name == crossover.FORWARD]
    return _of_crossover(at, cases), *sides


def _of_crossover(at: crossover.Sizes, cases: Sequence[crossover.Case]) -> Table:
    rows = []
    for case in cases:
        T = case.crossover()
        found = "never" if T is None else "always" if T == 1 else f"T = {T:,}"
        shown = T or crossover.LONGEST
        sides = [crossover.total(side(shown)) for side in (case.spec, case.softmax)]
        unit, scale = ("B", 1e9) if "memory" in case.name else ("us", 1e3)
        rows.append((case.name, case.against, found, *(f"{x / scale:,.4g} {unit}" for x in sides)))
    title = (
        "costs less than causal softmax attention from which T on, with keys of "
        f"{at.K} entries, values of {at.V} ({at.like})"
    )
    return Table(title, ("call", "against", "from", "the spec there", "softmax there"), tuple(rows))


def _of_sides(case: crossover.Case, T: int, machine: Machine) -> Table:
    """The terms of both sides at the T where they meet, or at the call's."""
    there = case.crossover()
    at = there if there is not None and there > 1 else T
    rows = [
        (side, t.name, f"{t.amount:,.4g} {t.unit}", f"{t.rate:,.3g}", f"{t.nanoseconds / 1e3:,.4g}")
        for side, terms in (("the spec", case.spec(at)), ("softmax", case.softmax(at)))
        for t in terms
    ]
    title = (
        f"terms at T = {at:,}, {case.name}, against {case.against}\n"
        f"({machine.name}: {machine.flops:.3g} flops a second in products, {machine.map:.3g} "
        f"elementwise; bytes a second {machine.near:.3g} near, {machine.far:.3g} far)"
    )
    return Table(title, ("side", "term", "amount", "a second", "us"), tuple(rows))


def _figures(number: float) -> str:
    """Three figures, all digits before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def order_of(derived: Derived, mode: str) -> str:
    """How products associate: of pairs of tokens first where all of them make one chunk."""
    pairs = any("s" in inst.axes for program in lowered(derived) for inst in program.body)
    products = any(inst.op == "contract" for p in lowered(derived) for inst in p.body)
    if not products and any(isinstance(p, AttentionPass) for p in derived.passes):
        return "(Q Kᵀ) V"
    return "(Q Kᵀ) V" if mode == "parallel" and pairs else "Q (Kᵀ V)" if products else ""


def _candidates(
    derived: Derived,
    plan: Plan,
    T: int,
    heads: int,
    dims: Mapping[str, int],
    chosen: tuple[str, int],
) -> Iterator[tuple[str, ...]]:
    programs = lowered(derived)
    every = [("parallel", T)] if "parallel" in plan.modes else []
    every += [("chunk", C) for C in plan.chunks if C < T] if "chunk" in plan.modes else []
    for mode, C in [*every, *([("recurrent", 1)] if "recurrent" in plan.modes else [])]:
        work = cost.total(cost.from_state(program) for program in programs)
        work = work + cost.attended(derived)
        cost_ = plan.by_chunk(C, T, heads, dims)
        if mode == "recurrent" and derived.token is not None:
            work, cost_ = cost.from_state(derived.token.lowered), plan.by_token(T, heads, dims)
        flops = cost.evaluate(work.flops, sizes(C, dims, T / 2)) * heads * T / C
        mark = "chosen" if (mode, C) == chosen else ""
        numbers = _figures(cost_ / 1e6), _figures(flops / 1e6)
        yield mode, str(C), order_of(derived, mode), *numbers, mark


def _of_phases(derived: Derived, C: int, T: int, dims: Mapping[str, int]) -> Table:
    works = [cost.work(program, "state") for program in lowered(derived)]
    found = {phase: cost.total(w[phase] for w in works) for phase in ("local", "carry", "output")}
    if any(isinstance(p, AttentionPass) for p in derived.passes):
        found["attend"] = cost.attended(derived)
    rows = []
    for phase, work in found.items():
        counts = (work.products, work.maps, work.entries, work.calls + work.steps)
        numbers = (cost.evaluate(n, sizes(C, dims, T / 2)) for n in counts)
        rows.append((phase, *(f"{n:,.0f}" for n in numbers)))
    header = ("phase", "flops in products", "flops elementwise", "entries moved", "calls")
    return Table(f"a chunk of {C} tokens, one head", header, tuple(rows))
