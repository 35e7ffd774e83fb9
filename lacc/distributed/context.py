"""A kernel and the ranks that share a sequence go in; a function that runs the kernel on all of it,
each rank on its own tokens, comes out.

    gla = context_parallel(lacc.compile("gla.la", target="auto"))      # ranks of the default group
    o, state = gla(q, k, v, g)          # [B, T of this rank, H, D]; rank 0 has the first tokens

A token needs no more of those before it than the state, so one state per sequence and head is all
that goes from a rank to the next; its cotangent comes back in the backward pass. Sequences and
heads are independent: a call is cut into blocks of them that go through the ranks as through a
pipeline (while rank 1 has the first block, rank 0 has the second). Nothing is computed twice, and
whatever has a step can be run so, linear in its state or not. With n blocks on R ranks, n of
n + R - 1 turns are busy.

Handing states from rank to rank is LASP's way (Sun et al. 2024, arXiv:2404.02882), the pipeline
GPipe's (Huang et al. 2019, arXiv:1811.06965).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

from lacc.ir.graph import nodes
from lacc.runtime.contract import Value, axes_of, grows, record
from lacc.runtime.kernel import Kernel, bind
from lacc.spec.model import Spec

BLOCKS_A_RANK = 8
"""Blocks that a call is cut into for each rank, where it has as many sequences and heads."""

Tensors = dict[str, Any]


def context_parallel(kernel: Kernel, group: Any = None, *, blocks: int | None = None) -> Shared:
    """``kernel`` on sequences that lie on the ranks of ``group`` (of `torch.distributed`; None: the
    default group) in their order. All ranks call it together.

    ``blocks`` is the number of parts that the sequences and heads of a call are cut into, the same
    on every rank; by default `BLOCKS_A_RANK` a rank, as far as there are as many. Heads stay
    together where the spec reads `head` or `H` or a state is shared by all of them. Raises
    RuntimeError outside of `torch.distributed`, ValueError where a token needs more than what came
    before it, where ``blocks`` is not positive, and where the ranks disagree.
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
    mine = (name, kernel.spec.digest, sorted(kernel.spec.overrides.items()), blocks)
    theirs: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(theirs, mine, group=group)
    for rank, other in enumerate(theirs):
        if other != mine:
            what = f"{other[0]} in blocks={other[3]}" if other[1:3] == mine[1:3] else other[0]
            raise ValueError(f"context_parallel: rank {rank} runs another call: {what}, not {name}")
    return Shared(kernel, group, blocks)


@dataclass
class Shared:
    """A kernel on sequences that several ranks share. ``sent`` counts the bytes of states and of
    their cotangents that this rank has sent to others."""

    kernel: Kernel
    group: Any
    blocks: int | None
    sent: int = 0

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
        backward together. Raises ValueError and TypeError as the kernel does, and ValueError where
        what another rank sends does not fit, and for `cu_seqlens`.
        """
        import torch

        if cu_seqlens is not None:
            raise ValueError("cu_seqlens: sequences packed in one row cannot lie on ranks")
        arguments = bind(self.kernel.signature, args, named)
        tensors = {n: x for n, x in arguments.items() if x is not None}
        for name, x in tensors.items():
            if not isinstance(x, torch.Tensor):
                raise TypeError(f"{name}: expected a tensor, got {type(x)}")
        if not tensors:
            raise TypeError(f"{self.kernel.signature.name}: expected tensors")
        ring = _Ring(self, next(iter(tensors.values())).device)
        if ring.before is not None and initial_state is not None:
            raise ValueError("initial_state: only rank 0 takes one")
        start = _fields(self.kernel, initial_state)
        call = _Call(self.kernel, ring, tensors, start, valid, {"mode": mode, "chunk": chunk})
        found = _function().apply(call, *tensors.values(), *start.values())
        count = len(self.kernel.signature.outputs)
        name = self.kernel.signature.name
        outputs, state = found[:count], found[count:]
        several = record(f"{name}_outputs", tuple(o.name for o in self.kernel.signature.outputs))
        fields = record(f"{name}_state", tuple(s.name for s in self.kernel.signature.states))
        return outputs[0] if count == 1 else several(*outputs), fields(*state)


def _fields(kernel: Kernel, state: Any) -> Tensors:
    """The fields of an initial state that a call gave; {} for None."""
    if state is None:
        return {}
    names = [s.name for s in kernel.signature.states]
    if list(getattr(state, "_fields", ())) != names:
        raise TypeError(f"initial_state: expected a state that a call gave, with {names}")
    return dict(state._asdict())


@dataclass(frozen=True)
class _Block:
    """Some sequences, and some heads with the groups they are of."""

    rows: slice
    heads: slice
    groups: slice

    def of(self, value: Value) -> tuple[slice, ...]:
        """Where it lies in an argument, an output or a field of the state."""
        places = {"#B": self.rows, "#N": self.rows, "#H": self.heads, "#G": self.groups}
        return tuple(places.get(str(axis), slice(None)) for axis in axes_of(value))


def _cut(length: int, parts: int) -> list[slice]:
    """``range(length)`` in at most ``parts`` runs that differ by one at most."""
    parts = max(1, min(length, parts))
    ends = [length * i // parts for i in range(parts + 1)]
    return [slice(a, b) for a, b in pairwise(ends)]


def apart(spec: Spec) -> bool:
    """Whether every head can be run without the others."""
    roots = [*(s.update for s in spec.states), *(s.initial for s in spec.states)]
    roots += [*(o.expr for o in spec.outputs), *(a.default for a in spec.args if a.default)]
    levels = {*(s.per for s in spec.states), *(o.per for o in spec.outputs)}
    if any(a.draw and a.per in ("head", "group") for a in spec.args):
        return False  # what is drawn for some heads is not a part of what is drawn for all
    return "layer" not in levels and not any(node.op in ("head", "H") for node in nodes(roots))


def _blocks(spec: Spec, values: Mapping[str, Value], tensors: Tensors, count: int) -> list[_Block]:
    """About ``count`` blocks: sequences apart first, then heads by whole groups."""
    sizes = {
        axis: length
        for name, x in tensors.items()
        for axis, length in zip(axes_of(values[name]), x.shape)
        if isinstance(axis, str)
    }
    B, H, G = sizes.get("#B", 1), sizes.get("#H"), sizes.get("#G")
    heads = H or G or 1
    units = (G or heads) if apart(spec) else 1
    rows = _cut(B, count)
    found = []
    for row in rows:
        for part in _cut(units, -(-count // len(rows))):
            a, b = part.start, part.stop
            each = heads // units
            per = (G or units) // units
            found.append(_Block(row, slice(a * each, b * each), slice(a * per, b * per)))
    return found


@dataclass
class _Ring:
    """The ranks before and after this one, and what goes to them."""

    shared: Shared
    device: Any
    on_the_way: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        import torch.distributed as dist

        self.group = self.shared.group
        self.rank, self.ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.before = self.rank - 1 if self.rank else None
        self.after = self.rank + 1 if self.rank + 1 < self.ranks else None

    def send(self, to: int, head: Sequence[int], tensors: Sequence[Any]) -> None:
        """Starts sending ``head`` and tensors, which `finish` waits for."""
        import torch
        import torch.distributed as dist

        flat = (x.new_empty(x.numel()).copy_(x.reshape(-1)) for x in tensors if x.numel())
        parts = [x.view(torch.uint8) for x in flat]
        body = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.uint8, device=self.device)
        first = torch.tensor([*head, body.numel()], dtype=torch.int64, device=self.device)
        for message in (first, body):
            if message.numel():
                to_all = {"group": self.group, "group_dst": to}
                self.on_the_way.append((dist.isend(message, **to_all), message))
        self.shared.sent += body.numel()

    def head(self, source: int, length: int) -> list[int]:
        """The numbers that a message begins with, the last of them its bytes."""
        import torch
        import torch.distributed as dist

        first = torch.zeros(length + 1, dtype=torch.int64, device=self.device)
        dist.recv(first, group=self.group, group_src=source)
        return [int(x) for x in first.tolist()]

    def body(self, source: int, count: int, like: Sequence[tuple[tuple[int, ...], Any]]) -> Any:
        """Tensors of the shapes and dtypes ``like`` from a message of ``count`` bytes."""
        import torch
        import torch.distributed as dist

        body = torch.zeros(count, dtype=torch.uint8, device=self.device)
        if count:
            dist.recv(body, group=self.group, group_src=source)
        found = [torch.empty(shape, dtype=dtype, device=self.device) for shape, dtype in like]
        sizes = [x.numel() * x.element_size() for x in found]
        if sum(sizes) != count:
            raise ValueError(
                f"rank {source} sent a state of {count} bytes where one of {sum(sizes)} fits here: "
                f"the ranks' dims or dtypes differ"
            )
        at = 0
        for x, size in zip(found, sizes):
            if size:
                x.copy_(body[at : at + size].clone().view(x.dtype).view(x.shape))
            at += size
        return found

    def finish(self) -> None:
        """Waits for what was sent."""
        for work, _ in self.on_the_way:
            work.wait()
        self.on_the_way.clear()


@dataclass
class _Call:
    """One call of a kernel, block by block: forward, and backward from what forward kept."""

    kernel: Kernel
    ring: _Ring
    tensors: Tensors
    start: Tensors
    valid: Any
    options: dict[str, Any]

    def __post_init__(self) -> None:
        signature = self.kernel.signature
        self.values = {v.name: v for v in (*signature.arguments, *signature.states)}
        self.outputs = signature.outputs
        self.fields = signature.states
        count = self.ring.shared.blocks or BLOCKS_A_RANK * self.ring.ranks
        self.blocks = _blocks(self.kernel.spec, self.values, self.tensors, count)
        self.starts: list[Tensors] = []
        self.ends: list[Tensors] = []

    def arguments(self, block: _Block, tensors: Tensors) -> Tensors:
        """What the kernel takes for a block."""
        return {name: x[block.of(self.values[name])] for name, x in tensors.items()}

    def keywords(self, block: _Block) -> Tensors:
        """The keywords that the kernel takes for a block."""
        valid = None if self.valid is None else self.valid[block.rows]
        return {**self.options, "valid": valid}

    def forward(self, tensors: Tensors, start: Tensors) -> Iterator[tuple[_Block, Any, Tensors]]:
        """Each block with its outputs and the state after it."""
        for i, block in enumerate(self.blocks):
            x = self.arguments(block, tensors)
            begun = self.arguments(block, start)
            if self.ring.before is not None:
                begun = self.received(i, x)
            self.starts.append(begun)
            outputs, state = self.kernel(**x, **self.keywords(block), initial_state=begun or None)
            end = dict(state._asdict())
            if self.ring.after is not None:
                lengths = [end[s.name].shape[self.growth(s)] for s in self.fields if grows(s)]
                self.ring.send(self.ring.after, [*self.place(i), *lengths], list(end.values()))
            self.ends.append(end)
            yield block, outputs if len(self.outputs) > 1 else (outputs,), end
        self.ring.finish()

    def backward(
        self, tensors: Tensors, cotangents: Sequence[Any], ends: Sequence[Any]
    ) -> Iterator[tuple[_Block, Tensors, Tensors]]:
        """Each block with the gradients of its arguments and of the state that it began with."""
        smooth = [s for s in self.fields if s.role != "position"]
        for i, block in enumerate(self.blocks):
            last = {
                s.name: ct[block.of(s)]
                for s, ct in zip(self.fields, ends)
                if ct is not None and s.role != "position"
            }
            if self.ring.after is not None:
                *place, count = self.ring.head(self.ring.after, 4)
                self.check(self.ring.after, place, i)
                like = [(self.ends[i][s.name].shape, self.ends[i][s.name].dtype) for s in smooth]
                for s, ct in zip(smooth, self.ring.body(self.ring.after, count, like)):
                    last[s.name] = ct + last[s.name] if s.name in last else ct
            pulled = {
                o.name: ct[block.of(o)] for o, ct in zip(self.outputs, cotangents) if ct is not None
            }
            found = self.kernel.vjp(
                **self.arguments(block, tensors),
                **self.keywords(block),
                cotangent=pulled,
                state_cotangent=last,
                initial_state=self.starts[i] or None,
            )
            first = found.pop("initial_state", None)
            first = {} if first is None else {s.name: getattr(first, s.name) for s in smooth}
            if self.ring.before is not None:
                sent = [first[s.name].to(self.starts[i][s.name].dtype) for s in smooth]
                self.ring.send(self.ring.before, self.place(i), sent)
            yield block, found, first
        self.ring.finish()

    def place(self, i: int) -> list[int]:
        """Which block it is, of how many, and of how many sequences and heads: what a message says
        and its receiver compares."""
        block = self.blocks[i]
        extent = (block.rows.stop - block.rows.start) << 32 | block.heads.stop - block.heads.start
        return [i, len(self.blocks), extent, self.ring.rank]

    def check(self, source: int, place: Sequence[int], i: int) -> None:
        """Raises ValueError where what a message says of itself is not what comes here."""
        if list(place[:3]) != self.place(i)[:3]:
            told = [
                f"block {p[0]} of {p[1]}, {p[2] >> 32} sequences of {p[2] & 0xFFFFFFFF} heads"
                for p in (place, self.place(i))
            ]
            raise ValueError(f"rank {source} sends {told[0]}; rank {self.ring.rank} has {told[1]}")

    def growth(self, s: Value) -> int:
        """The axis along which a field holds all tokens so far."""
        return axes_of(s).index(None)

    def received(self, i: int, x: Tensors) -> Tensors:
        """The state that the rank before has after a block."""
        assert self.ring.before is not None
        like = self.empty(i, x)
        grown = [s for s in self.fields if grows(s)]
        *told, count = self.ring.head(self.ring.before, 4 + len(grown))
        self.check(self.ring.before, told[:4], i)
        for s, length in zip(grown, told[4:]):
            shape, dtype = like[s.name]
            axis = self.growth(s)
            like[s.name] = ((*shape[:axis], length, *shape[axis + 1 :]), dtype)
        return dict(zip(like, self.ring.body(self.ring.before, count, list(like.values()))))

    def empty(self, i: int, x: Tensors) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Shapes and dtypes of the state of a block, as a call of no tokens has it."""
        none = {n: y[:, :0] if self.values[n].role == "input" else y for n, y in x.items()}
        _, state = self.kernel(**none, **self.options)
        return {name: (tuple(y.shape), y.dtype) for name, y in state._asdict().items()}


@cache
def _function() -> Any:
    """The autograd function of a `_Call`: (call, arguments, initial state) to outputs and state."""
    import torch
    from torch.autograd.function import once_differentiable

    def whole(parts: Sequence[tuple[_Block, Any]], value: Value, like: Any, total: bool) -> Any:
        """The parts of all blocks in one tensor; what several blocks share is added up."""
        where = [(block.of(value), x) for block, x in parts]
        found = torch.zeros(like, dtype=where[0][1].dtype, device=where[0][1].device)
        for place, x in where:
            if total:
                found[place] += x
            else:
                found[place] = x
        return found

    def extent(call: _Call, value: Value, parts: Sequence[tuple[_Block, Any]]) -> list[int]:
        """The shape of all parts together."""
        shape = list(parts[0][1].shape)
        for axis, name in enumerate(axes_of(value)):
            stops = {"#B": "rows", "#N": "rows", "#H": "heads", "#G": "groups"}
            if name in stops:
                shape[axis] = max(getattr(block, stops[str(name)]).stop for block, _ in parts)
        return shape

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, call: _Call, *given: Any) -> Any:
            ctx.call = call
            ctx.names = (list(call.tensors), list(call.start))
            ctx.save_for_backward(*given)
            tensors, start = _split(ctx.names, given)
            done = list(call.forward(tensors, start))
            found = []
            for n, o in enumerate(call.outputs):
                parts = [(block, outputs[n]) for block, outputs, _ in done]
                found.append(whole(parts, o, extent(call, o, parts), False))
            for s in call.fields:
                parts = [(block, end[s.name]) for block, _, end in done]
                found.append(whole(parts, s, extent(call, s, parts), False))
            exact = [x for x in found if not x.is_floating_point()]
            ctx.mark_non_differentiable(*exact)
            ctx.set_materialize_grads(False)
            return tuple(found)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *pulled: Any) -> Any:
            call = ctx.call
            tensors, start = _split(ctx.names, ctx.saved_tensors)
            count = len(call.outputs)
            done = list(call.backward(tensors, pulled[:count], pulled[count:]))
            gradients: list[Any] = []
            for name, x in (*tensors.items(), *start.items()):
                parts = [
                    (block, each[name])
                    for block, found, first in done
                    if name in (each := found if name in tensors else first)
                ]
                if not parts or not x.is_floating_point():
                    gradients.append(None)
                    continue
                value = call.values[name]
                gradients.append(whole(parts, value, x.shape, True).to(x.dtype))
            return None, *gradients

    return Function


def _split(names: tuple[list[str], list[str]], given: Sequence[Any]) -> tuple[Tensors, Tensors]:
    arguments, fields = names
    return dict(zip(arguments, given)), dict(zip(fields, given[len(arguments) :]))
