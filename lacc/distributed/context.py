"""A kernel and the ranks that share a sequence go in; a function that runs the kernel on all of it,
each rank on its own tokens, comes out.

    gla = context_parallel(lacc.compile("gla.la", target="auto"))      # ranks of the default group
    o, state = gla(q, k, v, g)          # [B, T of this rank, H, D]; rank 0 has the first tokens

A token needs no more of those before it than the state. There are two ways to have it:

    ring        states go from rank to rank, block by block of sequences and heads (`ring`)
    summaries   every rank tells all others what its tokens do to a state (`summaries`)

The ring takes whatever has a step, but a rank waits for those before it where there are few blocks.
Summaries cost another pass over the states, and exist where these are linear, or running maxima.
What goes wrong on one rank is an error on all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from lacc.analysis.summaries import Summary, summarized
from lacc.distributed.ran import Tensors
from lacc.distributed.ranks import Ranks, Trouble
from lacc.distributed.ring import Block, Ring, best_blocks, blocks_of, stretch
from lacc.distributed.summaries import Rounds, Summarized
from lacc.driver import compile as compiled
from lacc.runtime.contract import Value, axes_of, axes_text, record, size_of
from lacc.runtime.kernel import Kernel, bind
from lacc.spec.model import Spec

MOST = 8
"""Kinds of calls whose results are known by their shapes."""

EXCHANGES = ("auto", "ring", "summaries")


def context_parallel(
    kernel: Kernel, group: Any = None, *, blocks: int | None = None, exchange: str = "auto"
) -> Shared:
    """``kernel`` on sequences that lie on the ranks of ``group`` (of `torch.distributed`; None: the
    default group) in their order. All ranks call it together.

    ``exchange`` is what ranks tell each other: "ring", "summaries", or what is expected to cost
    less for each call, which `Shared.why` says. ``blocks`` is the number of parts that the ring
    cuts the sequences and heads of a call into, the same on every rank; by default that with which
    it is expected to be done soonest. Heads stay together where the spec reads `head` or `H` or a
    state is shared by all of them. Raises RuntimeError outside of `torch.distributed`, ValueError
    where a token needs more than what came before it, where summaries are asked for and do not
    exist, where ``blocks`` is not positive, and where the ranks disagree.
    """
    import torch.distributed as dist

    if not dist.is_initialized():
        raise RuntimeError("context_parallel: call torch.distributed.init_process_group first")
    name = kernel.signature.name
    for reason in (kernel.signature.no_initial, kernel.signature.no_step):
        if reason:
            raise ValueError(f"context_parallel: {name} cannot be cut in time: {reason}")
    if blocks is not None and blocks < 1:
        raise ValueError(f"blocks: expected 1 or more, got {blocks}")
    if exchange not in EXCHANGES:
        raise ValueError(f"exchange: expected one of {', '.join(EXCHANGES)}, got {exchange!r}")
    summary = summarized(kernel.spec)
    if isinstance(summary, str) and exchange == "summaries":
        raise ValueError(
            f"exchange: {name} has no summaries: {summary}; it goes by exchange='ring'"
        )
    mine = (name, kernel.spec.digest, sorted(kernel.spec.overrides.items()), blocks, exchange)
    theirs: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(theirs, mine, group=group)
    for rank, other in enumerate(theirs):
        if other != mine:
            what = f"{other[0]} with blocks={other[3]}, exchange={other[4]!r}"
            what = what if other[1:3] == mine[1:3] else other[0]
            raise ValueError(f"context_parallel: rank {rank} runs another call: {what}, not {name}")
    return Shared(kernel, Ranks(group), blocks, exchange, summary)


@dataclass
class Shared:
    """A kernel on sequences that several ranks share. ``sent`` counts the bytes of states and of
    their cotangents that this rank has sent to others; ``why`` says how the last call went, and for
    what reason."""

    kernel: Kernel
    ranks: Ranks
    blocks: int | None
    exchange: str
    summary: Summary | str
    why: str = ""
    calls: int = 0
    _rounds: Rounds | None = field(default=None, repr=False)
    _likes: dict[str, Tensors] = field(default_factory=dict, repr=False)

    @property
    def sent(self) -> int:
        return self.ranks.sent

    def __call__(
        self,
        *args: Any,
        initial_state: Any = None,
        valid: Any = None,
        cu_seqlens: None = None,
        mode: str = "auto",
        chunk: int | None = None,
        **named: Any,
    ) -> tuple[Any, Any]:
        """(outputs, state) of the tokens of this rank.

        Inputs are [B, T, H, *shape]; T may differ from rank to rank, and be 0. Params and buffers
        are whole on every rank, ``valid`` is [B, T]. ``initial_state`` is what the sequences start
        from, which rank 0 alone takes. The state is that after this rank's last token, on the last
        rank that of the whole sequence.

        Gradients reach inputs, params and the initial state; those of params are of this rank's
        tokens, and their sum over the ranks that of the sequence. All ranks call together and run
        backward together. Raises ValueError and TypeError as the kernel does, and ValueError for
        `cu_seqlens`. Where one rank raises, all others raise RuntimeError with its words; where
        sizes or dtypes of ranks differ, all raise ValueError.
        """
        trouble, given = Trouble(), None
        self.calls += 1
        self.ranks.doing = f"call {self.calls} of {self.kernel.signature.name}"
        with trouble:
            if cu_seqlens is not None:
                raise ValueError("cu_seqlens: sequences packed in one row cannot lie on ranks")
            given = _given(self, args, named, initial_state)
        mine, tokens = (str(given), given.tokens) if given else ("", 0)
        lengths = self.ranks.agree("context_parallel", trouble.problem, mine, tokens)
        assert given is not None  # or its problem was raised
        call = self._call(given, sum(lengths), valid, {"mode": mode, "chunk": chunk})
        signature = self.kernel.signature
        names = [v.name for v in (*signature.outputs, *signature.states)]
        found = dict(zip(names, _function().apply(call, given, *given.every)))
        several = record(f"{signature.name}_outputs", tuple(o.name for o in signature.outputs))
        fields = record(f"{signature.name}_state", tuple(s.name for s in signature.states))
        outputs = [found[o.name] for o in signature.outputs]
        state = fields(*(found[s.name] for s in signature.states))
        return outputs[0] if len(outputs) == 1 else several(*outputs), state

    def bytes_sent(self, exchange: str, *, itemsize: int = 4, **sizes: int) -> tuple[int, int]:
        """Bytes that a call and its backward pass send from one rank (of the ring, each but the
        last and each but the first): ``sizes`` are B, H, G and dims, states have ``itemsize``
        bytes an entry. Raises ValueError for what there is no such exchange of."""
        at = {
            **self.kernel.signature.dims,
            **sizes,
            "#N": sizes.get("B", 1),
            "#B": sizes.get("B", 1),
        }
        at |= {"#H": sizes.get("H", 1), "#G": sizes.get("G", sizes.get("H", 1))}
        sums = [0, 0]
        for way, values in enumerate(self._told(exchange)):
            for value in values:
                entries = 1
                for axis in axes_of(value):
                    entries *= size_of(axis, at)
                if exchange == "ring" and value.level == "layer":  # with every block of heads
                    entries *= self._parts_of_heads(at)
                sums[way] += entries * (8 if value.role == "position" else itemsize)
        times = self.ranks.count - 1 if exchange == "summaries" else 1
        return sums[0] * times, sums[1] * times

    def _parts_of_heads(self, sizes: Mapping[str, int]) -> int:
        """In how many parts the ring cuts the heads of a call."""
        levels = {"#H": "head", "#G": "group"}
        there = {a.level for a in self.kernel.signature.arguments}
        known = {n: x for n, x in sizes.items() if levels.get(n, "") in (*there, "")}
        return len({one.heads.start for one in self._blocks(known)})

    def _blocks(self, sizes: Mapping[str, int]) -> list[Block]:
        """The blocks of the ring."""
        if self.blocks is not None:
            return blocks_of(self.kernel.spec, sizes, self.blocks)
        return best_blocks(self.kernel.spec, sizes, self.ranks.count, self._alone)

    @property
    def _alone(self) -> bool:
        """Whether states are found without the calls that they are of."""
        return self.kernel.target in ("auto", "c") and isinstance(self.summary, Summary)

    def formula(self, exchange: str) -> tuple[str, str]:
        """What a call and its backward pass send from one rank, as a sum of shapes."""
        times = "(R - 1) x (" if exchange == "summaries" else "1 x ("
        forward, backward = (
            times + " + ".join(f"{v.name} {axes_text(*axes_of(v))}" for v in values) + ")"
            for values in self._told(exchange)
        )
        return forward, backward

    def _told(self, exchange: str) -> tuple[list[Value], list[Value]]:
        """What a rank tells another, forward and backward."""
        fields = list(self.kernel.signature.states)
        smooth = [s for s in fields if s.role != "position"]
        if exchange == "ring":
            return fields, smooth
        rounds, number = self._summaries(), len(self._summaries().summary.rounds)
        pasts = [s for s in fields if s.role == "past"]
        counted = [Value(n, "position", (), "layer") for n in ("tokens", "position")]
        counted = counted if len(fields) > len([s for s in fields if s.role == "state"]) else []
        told = [value for n in range(number) for value in rounds.told(n)]
        own = [value for value in told if value.name in {s.name for s in fields}]
        return [*counted, *pasts, *told], [*own, *pasts]

    def _summaries(self) -> Rounds:
        if isinstance(self.summary, str):
            raise ValueError(f"{self.kernel.signature.name} has no summaries: {self.summary}")
        if self._rounds is None:
            self._rounds = Rounds(self.summary, partial(compiled, target=self.kernel.target))
        return self._rounds

    def _call(self, given: Given, tokens: int, valid: Any, options: Tensors) -> Ring | Summarized:
        """How a call of ``tokens`` on all ranks goes."""
        blocks = self._blocks(given.sizes)
        exchange, self.why = self._chosen(given, tokens, blocks)
        values, wanted = given.values, given.wanted
        if exchange == "ring":
            like = self._like(given)
            learns = bool(given.wanted)
            return Ring(self.kernel, self.ranks, values, blocks, valid, options, like, learns)
        rounds = self._summaries()
        return Summarized(self.kernel, self.ranks, values, rounds, valid, options, wanted)

    def _like(self, given: Given) -> Tensors:
        """Outputs and the state of a call, as they are without tokens."""
        key = str(given)
        if key not in self._likes:
            if len(self._likes) >= MOST:  # of calls of other sizes, whose states are held here
                self._likes.clear()
            none = {
                n: x[:, :0] if given.values[n].role == "input" else x
                for n, x in given.tensors.items()
            }
            signature = self.kernel.signature
            outputs, state = self.kernel(**none)
            outputs = outputs if len(signature.outputs) > 1 else (outputs,)
            found = dict(zip((o.name for o in signature.outputs), outputs)) | state._asdict()
            self._likes[key] = {n: x.detach() for n, x in found.items()}
        return self._likes[key]

    def _chosen(self, given: Given, tokens: int, blocks: list[Block]) -> tuple[str, str]:
        """The exchange of a call, and why."""
        ranks = self.ranks.count
        if self.exchange != "auto":
            return self.exchange, f"{self.exchange}: asked for"
        if isinstance(self.summary, str):
            return "ring", f"ring: there are no summaries: {self.summary}"
        heads = given.sizes.get("#H", given.sizes.get("#G", 1))
        waits = stretch(blocks, heads, ranks, self._alone) - 1
        dims = {
            **self.kernel.signature.dims,
            **{n: x for n, x in given.sizes.items() if n[0] != "#"},
        }
        call = sum(_flops(self.kernel.spec, dims)) * given.heads * tokens / ranks
        more = _more(self.kernel.spec, self.summary, dims) * given.heads * tokens / ranks
        bytes_, costs = {}, {}
        at = {n.removeprefix("#"): x for n, x in given.sizes.items()}
        for way, extra in (("ring", waits * call), ("summaries", more)):
            bytes_[way] = sum(self.bytes_sent(way, itemsize=given.itemsize, **at))
            costs[way] = extra + FLOPS_A_BYTE * bytes_[way]
        way = min(costs, key=lambda name: costs[name])
        ring = f"{len(blocks)} blocks, {waits:.0%} longer; {bytes_['ring']:,} bytes a rank"
        summed = f"{more / call:.0%} longer; {bytes_['summaries']:,} bytes a rank"
        if way == "ring":
            return way, f"ring: {ring} (summaries: {summed})"
        return way, f"summaries: {summed} (ring: {ring})"


FLOPS_A_BYTE = 50
"""Operations that take as long as a byte from rank to rank."""

_TOKENS = 64


def _flops(spec: Spec, dims: Mapping[str, int]) -> tuple[float, float]:
    """Operations of a token and head, forward and backward, in chunks."""
    from lacc.plan.cost import evaluate, lowered, total, work
    from lacc.plan.plan import sizes
    from lacc.tile.derive import derive

    derived, at = derive(spec), sizes(_TOKENS, dims)
    forward, backward = (
        sum(
            evaluate(total(work(p, carried).values()).flops, at)
            for p in lowered(derived, carried == "dstate")
        )
        / _TOKENS
        for carried in ("state", "dstate")
    )
    return forward, backward


def _more(spec: Spec, summary: Summary, dims: Mapping[str, int]) -> float:
    """Operations of a token and head that summaries take beside the call itself."""
    summed = sum(_flops(one.spec, dims)[0] for one in summary.rounds)
    return summed + len(summary.rounds) * _flops(spec, dims)[1]


@dataclass(frozen=True)
class Given:
    """What a call was given, and of what sizes; its text is what ranks compare."""

    values: Mapping[str, Value]
    tensors: Tensors
    start: Tensors

    @property
    def wanted(self) -> frozenset[str]:
        """The arguments that have gradients; all of floats, where the state alone has."""
        import torch

        if not torch.is_grad_enabled():
            return frozenset()
        found = frozenset(n for n, x in self.tensors.items() if x.requires_grad)
        smooth = frozenset(n for n, x in self.tensors.items() if x.is_floating_point())
        return found or (smooth if any(x.requires_grad for x in self.start.values()) else found)

    @property
    def every(self) -> tuple[Any, ...]:
        return *self.tensors.values(), *self.start.values()

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes by axis, those of the tokens aside."""
        return {
            axis: length
            for name, x in self.tensors.items()
            for axis, length in zip(axes_of(self.values[name]), x.shape)
            if isinstance(axis, str) and axis != "#T"
        }

    @property
    def tokens(self) -> int:
        """Tokens of this rank."""
        return next(
            (x.shape[1] for n, x in self.tensors.items() if self.values[n].role == "input"), 0
        )

    @property
    def heads(self) -> int:
        """Heads of all sequences."""
        return self.sizes.get("#B", 1) * self.sizes.get("#H", self.sizes.get("#G", 1))

    @property
    def itemsize(self) -> int:
        """Bytes of an entry of a state."""
        return max(
            4, *(int(x.element_size()) for x in self.tensors.values() if x.is_floating_point())
        )

    def __str__(self) -> str:
        names = {"#B": "sequences", "#H": "heads", "#G": "groups"}
        sizes = self.sizes
        counts = [f"{sizes[axis]} {noun}" for axis, noun in names.items() if axis in sizes]
        dims = [f"{axis}={n}" for axis, n in sorted(sizes.items()) if axis not in names]
        dtypes = [
            f"{name} {str(x.dtype).removeprefix('torch.')}" for name, x in self.tensors.items()
        ]
        return ", ".join([*counts, *dims, *dtypes])


def _given(
    shared: Shared, args: Sequence[Any], named: Mapping[str, Any], initial_state: Any
) -> Given:
    """The arguments of a call. Raises TypeError and ValueError for what is none."""
    import torch

    signature = shared.kernel.signature
    tensors = {n: x for n, x in bind(signature, args, named).items() if x is not None}
    values = {v.name: v for v in (*signature.arguments, *signature.states)}
    for name, x in tensors.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name}: expected a tensor, got {type(x)}")
        if x.ndim != len(axes_of(values[name])):
            raise ValueError(
                f"{name}: expected {axes_text(*axes_of(values[name]))}, got {list(x.shape)}"
            )
    if not tensors:
        raise TypeError(f"{signature.name}: expected tensors")
    if shared.ranks.before is not None and initial_state is not None:
        raise ValueError("initial_state: only rank 0 takes one")
    start: Tensors = {}
    if initial_state is not None:
        names = [s.name for s in signature.states]
        if list(getattr(initial_state, "_fields", ())) != names:
            raise TypeError(f"initial_state: expected a state that a call gave, with {names}")
        start = dict(initial_state._asdict())
    return Given(values, tensors, start)


@cache
def _function() -> Any:
    """The autograd function of a call: (call, what is given, its tensors) to outputs and state."""
    import torch
    from torch.autograd.function import once_differentiable

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, call: Ring | Summarized, given: Given, *every: Any) -> Any:
            ctx.call, ctx.names = call, (list(given.tensors), list(given.start))
            ctx.save_for_backward(*every)
            outputs, state = call.forward(*_split(ctx.names, every))
            signature = call.kernel.signature
            found = [outputs[o.name] for o in signature.outputs]
            found += [state[s.name] for s in signature.states]
            ctx.mark_non_differentiable(*(x for x in found if not x.is_floating_point()))
            ctx.set_materialize_grads(False)
            return tuple(found)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *pulled: Any) -> Any:
            signature = ctx.call.kernel.signature
            tensors, start = _split(ctx.names, ctx.saved_tensors)
            count = len(signature.outputs)
            cotangents = {o.name: x for o, x in zip(signature.outputs, pulled) if x is not None}
            ends = {s.name: x for s, x in zip(signature.states, pulled[count:]) if x is not None}
            gradients, first = ctx.call.backward(tensors, cotangents, ends)
            found = [(gradients.get(n), x) for n, x in tensors.items()]
            found += [(first.get(n), x) for n, x in start.items()]
            return (
                None,
                None,
                *(
                    None if g is None or not x.is_floating_point() else g.to(x.dtype)
                    for g, x in found
                ),
            )

    return Function


def _split(names: tuple[list[str], list[str]], given: Sequence[Any]) -> tuple[Tensors, Tensors]:
    arguments, fields = names
    return dict(zip(arguments, given)), dict(zip(fields, given[len(arguments) :]))
