"""One call of a kernel goes in, with this rank's tokens; its outputs and gradients come out, states
going from rank to rank.

Sequences and heads are independent: a call is cut into blocks of them that go through the ranks as
through a pipeline (while rank 1 has the first block, rank 0 has the second). Whatever has a step
can be run so, linear in its state or not. With n blocks on R ranks, n of n + R - 1 turns are busy,
of which another is saved where the first block's state, and its cotangent on the way back, are
found alone. Blocks write into views of the whole. For backward each keeps the state that it began
with, and on the target c those that its chunks did, so that no rank makes them twice.

Handing states from rank to rank is LASP's way (Sun et al. 2024, arXiv:2404.02882), the pipeline
GPipe's (Huang et al. 2019, arXiv:1811.06965).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from lacc.distributed.ran import Tensors
from lacc.distributed.ranks import Like, Ranks, Trouble
from lacc.ir.graph import nodes
from lacc.runtime.contract import Value, axes_of, grows
from lacc.runtime.kernel import Kernel
from lacc.spec.model import Spec

BLOCKS_A_RANK = 8
"""Blocks that a call is cut into for each rank, at most."""

ALONE = 0.4
"""What of a block a rank is at before the next can begin, where states are found alone."""

NARROW = 0.5
"""What a block of one head among others takes more than with all of them, whose rows lie side by
side; of several heads as many times less."""

CALLED = 0.003
"""What of a call each block takes beside its work."""


@dataclass(frozen=True)
class Block:
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


def blocks_of(spec: Spec, sizes: Mapping[str, int], count: int) -> list[Block]:
    """About ``count`` blocks of a call of ``sizes``: sequences apart first, then heads by whole
    groups."""
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
            found.append(Block(row, slice(a * each, b * each), slice(a * per, b * per)))
    return found


def stretch(blocks: Sequence[Block], heads: int, ranks: int, alone: bool) -> float:
    """How many times as long as its own part of the work a rank is at a call: it waits for others,
    and works on few of the ``heads`` at a time. ``alone``: states are found alone."""
    count, each = len(blocks), blocks[0].heads.stop - blocks[0].heads.start
    waits = ranks - 1 - (1 - ALONE) * (alone and count > 1 and ranks > 1)
    narrow = NARROW * (1 / each - 1 / heads) if each < heads else 0.0
    return (1 + waits / count) * (1 + narrow) + CALLED * count


def best_blocks(spec: Spec, sizes: Mapping[str, int], ranks: int, alone: bool) -> list[Block]:
    """The blocks of a call of ``sizes`` with which ``ranks`` are expected to be done soonest."""
    heads = sizes.get("#H") or sizes.get("#G") or 1
    every = [blocks_of(spec, sizes, n) for n in range(1, BLOCKS_A_RANK * ranks + 1)]
    return min(every, key=lambda blocks: stretch(blocks, heads, ranks, alone))


@dataclass
class Ring:
    """One call of a kernel, block by block: forward, and backward from what forward kept, the
    states that blocks began with.

    ``values`` are those of the kernel's signature by name, ``options`` keywords of it that hold for
    every block; ``valid`` is cut into blocks as inputs are. ``like`` has the outputs and the state
    of the whole call as it is without tokens; ``learns``: backward comes next. The first block's
    state, and its cotangent, are found alone where the kernel can do that, so that other ranks wait
    for less; the block itself comes last.
    """

    kernel: Kernel
    ranks: Ranks
    values: Mapping[str, Value]
    blocks: Sequence[Block]
    valid: Any
    options: Mapping[str, Any]
    like: Tensors
    learns: bool

    def __post_init__(self) -> None:
        self.outputs = self.kernel.signature.outputs
        self.fields = self.kernel.signature.states
        self.begun: list[Tensors] = [{} for _ in self.blocks]
        self.ended: list[Tensors] = [{} for _ in self.blocks]
        self.kept: list[list[Any]] = [[] for _ in self.blocks]
        self.back = f"the gradients of {self.ranks.doing}"

    def forward(self, tensors: Tensors, start: Tensors) -> tuple[Tensors, Tensors]:
        """Outputs of this rank's tokens and the state after them, by name."""
        trouble, grown = Trouble(), [s for s in self.fields if grows(s)]
        outputs = {o.name: self._room(o, self.like[o.name], tensors) for o in self.outputs}
        alone = None
        for i in range(len(self.blocks)):
            failed = self._receive(i, tensors, start, trouble)
            end: Tensors | None = None
            with trouble:
                if not failed and trouble.problem is None:
                    if self._first(i, self.ranks.after):
                        alone = end = self._end(i, tensors)
                    end = end or self._run(i, tensors, outputs)
            if self.ranks.after is not None:
                lengths = [end[s.name].shape[self._growth(s)] if end else 0 for s in grown]
                told = [int(end is None), *lengths]
                sent = [] if end is None else [*end.values()]
                self.ranks.send(self.ranks.after, told, sent, self._bytes(i, self.fields))
        with trouble:
            if alone and trouble.problem is None:
                self._run(0, tensors, outputs)
        self.ranks.finish()
        self.ranks.agree("context_parallel", trouble.problem)
        return outputs, self._whole(self.fields, self.ended)

    def backward(
        self, tensors: Tensors, cotangents: Tensors, ends: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Gradients of arguments and of the state that the call began with."""
        self.ranks.doing = self.back
        if self.ranks.meetings.together:  # before any rank waits for another's cotangents
            self.ranks.agree("context_parallel")
        trouble, smooth = Trouble(), [s for s in self.fields if s.role != "position"]
        learnt = [a for a in self.kernel.signature.arguments if a.role != "buffer"]
        learnt = [a for a in learnt if a.name in tensors]
        gradients = {a.name: self._room(a, tensors[a.name], tensors) for a in learnt}
        firsts: list[Tensors] = [{} for _ in self.blocks]
        alone: Tensors | None = None
        for i in range(len(self.blocks)):
            told: list[int] = [0]
            if self.ranks.after is not None:
                told, body = self.ranks.received(self.ranks.after, 1, self._bytes(i, smooth))
            sent: list[Any] | None = None
            with trouble:
                last = self._last(i, ends)
                if self.ranks.after is not None and not told[0]:
                    here = self.ended[i]
                    like = [(tuple(here[s.name].shape), here[s.name].dtype) for s in smooth]
                    device = next(iter(tensors.values())).device
                    for s, ct in zip(smooth, self.ranks.unpacked(body, like, device)):
                        last[s.name] = ct + last[s.name] if s.name in last else ct
                if not told[0] and trouble.problem is None:
                    pulled = self._pulled(i, cotangents, last)
                    if self._first(i, self.ranks.before):
                        alone = self._begin(i, tensors, pulled)
                    if alone is None or i:
                        firsts[i] = self._pull(i, tensors, pulled, gradients)
                    else:
                        firsts[i], late = alone, pulled
                    if self.ranks.before is not None:
                        sent = [firsts[i][s.name] for s in smooth]
            if self.ranks.before is not None:
                size = self._bytes(i, smooth)
                self.ranks.send(self.ranks.before, [int(sent is None)], sent or [], size)
        with trouble:
            if alone and trouble.problem is None:
                self._pull(0, tensors, late, gradients)
        self.ranks.finish()
        self.ranks.agree("context_parallel", trouble.problem)
        return gradients, self._whole(smooth, firsts, add=True)

    # ---- a block --------------------------------------------------------------------------------

    def _receive(self, i: int, tensors: Tensors, start: Tensors, trouble: Trouble) -> bool:
        """Takes up the state that a block begins with; whether it failed on a rank before."""
        grown, told = [s for s in self.fields if grows(s)], [0]
        if self.ranks.before is not None:
            size = self._bytes(i, self.fields)
            told, body = self.ranks.received(self.ranks.before, 1 + len(grown), size)
        with trouble:
            block = self.blocks[i]
            if self.ranks.before is None:
                self.begun[i] = self._of(block, start)
            elif not told[0]:
                lengths = dict(zip((s.name for s in grown), told[1:]))
                like = [self._shape(s, block, lengths) for s in self.fields]
                device = next(iter(tensors.values())).device
                names = (s.name for s in self.fields)
                self.begun[i] = dict(zip(names, self.ranks.unpacked(body, like, device)))
        return bool(told[0])

    def _first(self, i: int, waiting: int | None) -> bool:
        """Whether another rank waits for what this is the first block of several."""
        return not i and len(self.blocks) > 1 and waiting is not None and self.valid is None

    def _run(self, i: int, tensors: Tensors, outputs: Tensors) -> Tensors:
        """The state behind a block, whose outputs are put in their places."""
        block = self.blocks[i]
        places = {o.name: outputs[o.name][block.of(o)] for o in self.outputs}
        keep = self.kept[i] if self.learns else None
        given = self._of(block, tensors)
        state = self.kernel.fill(places, given, keep=keep, **self._keywords(i))
        self.ended[i] = dict(state._asdict())
        return self.ended[i]

    def _end(self, i: int, tensors: Tensors) -> Tensors | None:
        """The state behind a block alone, where that can be had."""
        options = {n: x for n, x in self._keywords(i).items() if n != "valid"}
        state = self.kernel.end(self._of(self.blocks[i], tensors), **options)
        return None if state is None else dict(state._asdict())

    def _pulled(self, i: int, cotangents: Tensors, last: Tensors) -> Tensors:
        """What comes to the gradients of a block."""
        block = self.blocks[i]
        there = [o for o in self.outputs if o.name in cotangents]
        pulled = {o.name: packed(cotangents[o.name][block.of(o)]) for o in there}
        return {"cotangent": pulled or None, "state_cotangent": last or None}

    def _begin(self, i: int, tensors: Tensors, pulled: Tensors) -> Tensors | None:
        """The gradient of the state before a block alone, where that can be had."""
        options = {n: x for n, x in self._keywords(i).items() if n != "valid"}
        first = self.kernel.begin(self._of(self.blocks[i], tensors), **pulled, **options)
        return None if first is None else dict(first._asdict())

    def _pull(self, i: int, tensors: Tensors, pulled: Tensors, gradients: Tensors) -> Tensors:
        """Adds a block's gradients to all; gives those of the state that it began with."""
        block, places = self.blocks[i], {}
        shared = {name for name in gradients if not self._parted(self.values[name])}
        for name, x in gradients.items():
            place = x[block.of(self.values[name])]
            places[name] = place.new_empty(place.shape) if name in shared else place
        given = self._of(block, tensors)
        options = {**pulled, **self._keywords(i)}
        first = self.kernel.fill_gradients(places, given, kept=self.kept[i], **options)
        for name in shared:
            gradients[name][block.of(self.values[name])] += places[name]
        return {} if first is None else dict(first._asdict())

    # ---- parts and wholes -----------------------------------------------------------------------

    def _of(self, block: Block, tensors: Tensors) -> Tensors:
        """What the kernel takes for a block."""
        return {name: x[block.of(self.values[name])] for name, x in tensors.items()}

    def _keywords(self, i: int) -> Tensors:
        valid = None if self.valid is None else self.valid[self.blocks[i].rows]
        return {**self.options, "valid": valid, "initial_state": self.begun[i] or None}

    def _last(self, i: int, ends: Tensors) -> Tensors:
        """The cotangents of the state behind a block that a caller gives."""
        block = self.blocks[i]
        first_heads = not block.heads.start  # what all heads share is pulled on once
        own = [s for s in self.fields if s.name in ends and s.role != "position"]
        own = [s for s in own if s.level != "layer" or first_heads]
        return {s.name: self._newest(s, ends[s.name][block.of(s)], i) for s in own}

    def _parted(self, value: Value) -> bool:
        """Whether no two blocks have the same part of a value."""
        return len({str(block.of(value)) for block in self.blocks}) == len(self.blocks)

    def _room(self, value: Value, like: Any, tensors: Tensors) -> Any:
        """Where blocks put a value of this rank's tokens; zeros where they add to one another."""
        tokens = next(x.shape[1] for n, x in tensors.items() if self.values[n].role == "input")
        shape = [tokens if a == "#T" else n for a, n in zip(axes_of(value), like.shape)]
        if not self._parted(value):
            return like.new_zeros(shape)
        return room(shape, like)

    def _growth(self, s: Value) -> int:
        """The axis along which a field holds all tokens so far."""
        return axes_of(s).index(None)

    def _newest(self, s: Value, ct: Any, i: int) -> Any:
        """The part of a cotangent that is of the tokens a block has."""
        if not grows(s):
            return ct
        axis = self._growth(s)
        kept = self.ended[i][s.name].shape[axis]
        return ct.narrow(axis, ct.shape[axis] - kept, kept)

    def _shape(self, s: Value, block: Block, lengths: Mapping[str, int]) -> Like:
        """Shape and dtype of a field of a block's state; ``lengths`` are of those fields that hold
        all tokens so far."""
        x = self.like[s.name][block.of(s)]
        shape = list(x.shape)
        if s.name in lengths:
            shape[self._growth(s)] = lengths[s.name]
        return tuple(shape), x.dtype

    def _bytes(self, i: int, fields: Sequence[Value]) -> int | None:
        """Bytes of a block's ``fields``, None where these grow."""
        if any(map(grows, fields)):
            return None
        every = (self.like[s.name][self.blocks[i].of(s)] for s in fields)
        return sum(int(x.numel() * x.element_size()) for x in every)

    def _whole(
        self, values: Sequence[Value], parts: Sequence[Tensors], add: bool = False
    ) -> Tensors:
        """The fields of all blocks in one; with ``add`` the sum of what they share."""
        found = {}
        for value in values:
            own = [(b, x[value.name]) for b, x in zip(self.blocks, parts) if value.name in x]
            if not own:
                continue
            shape = list(self.like[value.name].shape)
            if grows(value):  # of all tokens so far, of which rows may have fewer
                axis = self._growth(value)
                shape[axis] = max(x.shape[axis] for _, x in own)
            whole = own[0][1].new_zeros(shape)
            for block, x in own:
                place = list(block.of(value))
                if grows(value):
                    place[axis] = slice(shape[axis] - x.shape[axis], None)
                at = tuple(place)
                whole[at] = whole[at] + x if add else x
            found[value.name] = whole
        return found


def room(shape: Sequence[int], like: Any) -> Any:
    """A tensor of that shape, to be filled. On a CPU NumPy's memory, whose pages are large."""
    import torch

    if like.device.type != "cpu":
        return like.new_empty(shape)
    size = math.prod(shape) * like.element_size()
    return torch.from_numpy(np.empty(size, np.uint8)).view(like.dtype).view(*shape)


def packed(x: Any) -> Any:
    """A cotangent whose rows lie in memory; that of a sum, say, is one number for all."""
    return x if x.stride()[-1:] in ((), (1,)) else x.contiguous()
