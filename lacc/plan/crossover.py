"""A plan, its machine and the sizes of a call in; the T from which the spec costs less than causal
softmax attention of the same sizes out, with the terms of both sides.

Softmax attention is modelled as two have it: the attention of this package's own targets, called
from Python like the spec, and a fused attention as PyTorch has it. Their rates are shares of the
machine's, so that both sides of a comparison are as fast as one another where the machine is slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from lacc.plan.machine import Machine
from lacc.plan.plan import Plan, price_at, sizes
from lacc.spec.shapes import Shape
from lacc.tile.attention_pass import AttentionPass
from lacc.tile.derive import Derived

LONGEST = 1 << 22
"""Tokens beyond which nothing is looked at."""
FORWARD, BOTH = "forward", "forward and backward"
TOKEN, MEMORY = "decoding, a token", "decoding, memory"
"""Kinds of calls."""
PAGES = 2.5e9
"""Bytes a second that are written for the first time: the system hands out memory by pages."""
GROWTH = 1.03
"""From one T that is looked at to the next."""


@dataclass(frozen=True, slots=True)
class Softmax:
    """Causal softmax attention as one implementation has it.

    blocks      (from T, queries of a block, share of the machine's rate of products it reaches)
    back        that share on the way back, where it does 2.5 times the products of the way forward
    exponential elementwise operations of a logit: its maximum, exponential and sum
    moved       entries that pass through memory for an entry of queries and values, forward; the
                way back moves twice that
    fresh       those of them that are new memory: (forward, more on the way back)
    kept        how often a step writes its cache anew
    entry       seconds before any token: (forward, forward and back, step)
    """

    name: str
    blocks: tuple[tuple[int, int, float], ...]
    back: float
    exponential: float
    moved: float
    fresh: tuple[float, float]
    kept: int
    entry: tuple[float, float, float]

    def block(self, T: int) -> tuple[int, float]:
        """The queries of a block, and the share of the rate, at T tokens."""
        return next((n, share) for least, n, share in reversed(self.blocks) if least <= T)


FUSED = Softmax(
    "fused attention (PyTorch's scaled_dot_product_attention)",
    ((1, 32, 0.36), (192, 64, 0.38), (768, 256, 0.65)),
    back=0.65,
    exponential=4,
    moved=2,
    fresh=(0, 0),
    kept=0,
    entry=(20e-6, 150e-6, 20e-6),
)
OWN = {
    "c": Softmax(
        "the C target's attention",
        ((1, 32, 0.5), (192, 64, 0.55), (768, 64, 0.8)),
        back=0.75,
        exponential=4,
        moved=2,
        fresh=(0, 10),
        kept=1,
        entry=(30e-6, 1500e-6, 200e-6),
    ),
    "numpy": Softmax(
        "the NumPy target's attention",
        ((1, 64, 0.8),),
        back=0.8,
        exponential=20,
        moved=10,
        fresh=(6, 10),
        kept=1,
        entry=(600e-6, 1050e-6, 600e-6),
    ),
}
"""Of each target what its kernel of an `attend` does."""
ENTRY = {"c": (30e-6, 40e-6, 6e-6), "numpy": (350e-6, 700e-6, 250e-6)}
"""Seconds that a call of a spec's kernel takes before any token, from Python: (forward, forward
and back, step)."""


@dataclass(frozen=True, slots=True)
class Term:
    """A part of a cost: how much of what, at which rate a second, and what it takes."""

    name: str
    amount: float
    unit: str
    rate: float

    @property
    def nanoseconds(self) -> float:
        """What it takes."""
        return self.amount / self.rate * 1e9


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of call: the cost of each side at T tokens as terms."""

    name: str
    against: str
    spec: Callable[[int], list[Term]]
    softmax: Callable[[int], list[Term]]

    def costs_less(self, T: int) -> bool:
        """Whether the spec does, at T tokens."""
        return total(self.spec(T)) < total(self.softmax(T))

    def crossover(self) -> int | None:
        """The T from which the spec costs less, at that and at any longer; None: never."""
        looked, T = [1], 1.0
        while T < LONGEST:
            T = max(T * GROWTH, T + 1)
            looked.append(min(int(T), LONGEST))
        holds = [self.costs_less(T) for T in looked]
        if not holds[-1]:
            return None
        fails = [n for n, good in enumerate(holds) if not good]
        if not fails:
            return 1
        low, high = looked[fails[-1]], looked[fails[-1] + 1]
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.costs_less(middle) else (middle, high)
        return high


def total(terms: list[Term]) -> float:
    """Nanoseconds, or bytes where these have no rate."""
    return sum(term.nanoseconds for term in terms)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What attention of the same sizes is: ``heads`` of all sequences, queries and keys of K
    entries, as ``like`` has them, values of V."""

    heads: int
    K: int
    V: int
    like: str
    bytes: int


def same_sizes(derived: Derived, heads: int, size: int) -> Sizes:
    """Queries and keys like the first input that has an axis, values like the output."""
    spec = derived.spec
    dims = {name: dim.default for name, dim in spec.dims.items()}
    V = entries(spec.outputs[0].shape, dims)
    wide = [a for a in spec.args if a.role == "input" and a.shape]
    K = entries(wide[0].shape, dims) if wide else V
    like = f"queries and keys like {wide[0].name}, " if wide else "queries and keys as well as "
    return Sizes(heads, K, V, f"{like}values like {spec.outputs[0].name}", size)


def entries(shape: Shape, dims: Mapping[str, int]) -> int:
    """How many entries a value has."""
    return prod(int(size.evaluate(dims)) for size in shape)


def cases(
    derived: Derived, plan: Plan, machine: Machine, target: str, heads: int, size: int
) -> tuple[Sizes, list[Case]]:
    """Every kind of call against each attention, time; then the memory of decoding."""
    at = same_sizes(derived, heads, size)
    spec = _Spec(derived, plan, machine, target, at)
    found = []
    for softmax in (OWN[target], FUSED):
        model = _Attention(softmax, machine, at)
        for kind in (FORWARD, BOTH, TOKEN) if derived.token is not None else (FORWARD, BOTH):
            found.append(Case(kind, softmax.name, spec.terms(kind), model.terms(kind)))
    if derived.token is not None:
        found.append(Case(MEMORY, "a cache of keys and values", spec.state, model.cache))
    return at, found


@dataclass(frozen=True, slots=True)
class _Spec:
    derived: Derived
    plan: Plan
    machine: Machine
    target: str
    at: Sizes

    def terms(self, kind: str) -> Callable[[int], list[Term]]:
        forward, both, step = ENTRY[self.target]
        if kind == TOKEN:
            return lambda T: [_calls("a call from Python", step), *self.token(T)]
        plan, entry = (self.plan, forward) if kind == FORWARD else (self.plan.back, both)
        if plan is None:
            raise ValueError("a plan without one for gradients")
        return lambda T: [_calls("a call from Python", entry), *self.tokens(plan, T)]

    def tokens(self, plan: Plan, T: int) -> Iterator[Term]:
        """What the plan says of T tokens of every head."""
        heads = self.at.heads
        mode, C = plan.choose(T, heads, self.dims)
        cost = plan.by_token(T, heads, self.dims)
        if mode != "recurrent":
            cost = plan.by_chunk(C, T, heads, self.dims)
        name = f"mode {mode}" + (f", chunks of {C}" if mode == "chunk" else "")
        tokens = heads * T
        yield Term(name, tokens, "tokens of a head", tokens / cost * 1e9)

    def token(self, T: int) -> Iterator[Term]:
        """One more token of every head, behind T."""
        at = sizes(1, self.dims, T)
        cost = self.at.heads * price_at(self.plan.token, at) + price_at(self.plan.token_calls, at)
        held = total(self.state(T)) / 1e9
        yield Term("the step", 1, "tokens", 1e9 / cost if cost else float("inf"))
        if held > self.machine.L2:
            yield Term("states, read and written", 2 * held, "bytes", self.machine.far)

    def state(self, T: int) -> list[Term]:
        """The bytes of all states behind T tokens; attention of its own keeps what it sees."""
        held = float(sum(entries(s.shape, self.dims) for s in self.derived.spec.states))
        for p in self.derived.passes:
            if isinstance(p, AttentionPass):
                seen = T if p.window is None else min(T, p.window)
                held += seen * (
                    entries(p.keys.shape, self.dims) + entries(p.values.shape, self.dims)
                )
        return [Term("states", self.at.heads * held * self.at.bytes, "bytes", 1.0)]

    @property
    def dims(self) -> dict[str, int]:
        return {name: dim.default for name, dim in self.derived.spec.dims.items()}


@dataclass(frozen=True, slots=True)
class _Attention:
    of: Softmax
    machine: Machine
    at: Sizes

    def terms(self, kind: str) -> Callable[[int], list[Term]]:
        forward, both, step = self.of.entry
        start = [_calls("a call from Python", forward)]
        if kind == FORWARD:
            return lambda T: start + self.forward(T)
        if kind == TOKEN:
            return lambda T: [_calls("a call from Python", step), *self.token(T)]
        start = [_calls("calls from Python", both)]
        return lambda T: start + self.forward(T) + self.backward(T)

    def pairs(self, T: int) -> float:
        """Logits that are computed: those of blocks of queries on the diagonal are so as wholes."""
        block = min(self.of.block(T)[0], T)
        return self.at.heads * T * (T + block) / 2

    def forward(self, T: int) -> list[Term]:
        """Queries against keys, their exponentials, these against values."""
        return self._way(T, "", 2, self.of.block(T)[1], 1)

    def backward(self, T: int) -> list[Term]:
        """The logits once more, and four products for each that is pulled back."""
        share = min(self.of.back, self.of.block(T)[1])
        return self._way(T, ", back", 5, share, 2)

    def _way(self, T: int, way: str, each: int, share: float, times: int) -> list[Term]:
        wide, size = self.at.K + self.at.V, self.at.bytes
        flops, logits = self.pairs(T) * each * wide, self.pairs(T) * self.of.exponential
        arrays = self.at.heads * T * wide / 2 * size
        fresh, width = self.of.fresh[times - 1] * arrays, size / 4
        terms = [
            Term(f"products{way}", flops, "flops", share * self.machine.flops / width),
            Term(f"exponentials{way}", logits, "flops", self.machine.map / width),
            Term(f"through memory{way}", times * self.of.moved * arrays, "bytes", self.machine.far),
        ]
        return [*terms, Term(f"new memory{way}", fresh, "bytes", PAGES)] if fresh else terms

    def token(self, T: int) -> list[Term]:
        """One query against a cache of T keys and values, read, and written anew by some."""
        read = self.cache(T)[0].amount
        rate = self.machine.near if read <= self.machine.L2 else self.machine.far
        terms = [Term("the cache, read", read, "bytes", rate)]
        if self.of.kept:
            again = 2 * read * self.of.kept
            terms.append(Term("the cache, written anew", again, "bytes", self.machine.far))
        return terms

    def cache(self, T: int) -> list[Term]:
        """The bytes of T keys and values."""
        at = self.at
        return [Term("keys and values", T * at.heads * (at.K + at.V) * at.bytes, "bytes", 1.0)]


def _calls(name: str, seconds: float) -> Term:
    return Term(name, 1, "calls", 1 / seconds)
