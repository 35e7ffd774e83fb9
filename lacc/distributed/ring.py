"""One call of a kernel goes in, with this rank's tokens; its outputs and gradients come out, states
going from rank to rank.

Sequences and heads are independent: a call is cut into blocks of them that go through the ranks as
through a pipeline (while rank 1 has the first block, rank 0 has the second). Nothing is computed
twice, and whatever has a step can be run so, linear in its state or not. With n blocks on R ranks,
n of n + R - 1 turns are busy.

Handing states from rank to rank is LASP's way (Sun et al. 2024, arXiv:2404.02882), the pipeline
GPipe's (Huang et al. 2019, arXiv:1811.06965).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lacc.distributed.ran import Ran, Tensors, ran
from lacc.distributed.ranks import Like, Ranks, Trouble
from lacc.ir.graph import nodes
from lacc.runtime.contract import Value, axes_of, grows
from lacc.runtime.kernel import Kernel
from lacc.spec.model import Spec

BLOCKS_A_RANK = 8
"""Blocks that a call is cut into for each rank, where it has as many sequences and heads."""


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


@dataclass
class Ring:
    """One call of a kernel, block by block: forward, and backward from what forward kept.

    ``values`` are those of the kernel's signature by name, ``options`` keywords of it that hold for
    every block; ``valid`` is cut into blocks as inputs are; ``wanted`` arguments have gradients.
    """

    kernel: Kernel
    ranks: Ranks
    values: Mapping[str, Value]
    blocks: Sequence[Block]
    valid: Any
    options: Mapping[str, Any]
    wanted: frozenset[str]

    def __post_init__(self) -> None:
        self.outputs = self.kernel.signature.outputs
        self.fields = self.kernel.signature.states
        self.ran: list[Ran] = []
        self.back = f"the gradients of {self.ranks.doing}"

    def forward(self, tensors: Tensors, start: Tensors) -> tuple[Tensors, Tensors]:
        """Outputs of this rank's tokens and the state after them, by name."""
        trouble, outputs, ends = Trouble(), [], []
        grown = [s for s in self.fields if grows(s)]
        for block in self.blocks:
            told: list[int] = [0]
            if self.ranks.before is not None:
                told, body = self.ranks.received(self.ranks.before, 1 + len(grown))
            end: Tensors | None = None
            with trouble:
                x = self._of(block, tensors)
                if self.ranks.before is None:
                    begun = self._of(block, start)
                elif not told[0]:
                    device = next(iter(x.values())).device
                    like = self._like(x, dict(zip((s.name for s in grown), told[1:])))
                    begun = dict(zip(like, self.ranks.unpacked(body, list(like.values()), device)))
                if not told[0] and trouble.problem is None:
                    done = ran(self.kernel, x, begun, self._keywords(block), self.wanted)
                    found, end = done.given
                    self.ran.append(done)
                    outputs.append((block, found))
                    ends.append((block, end))
            if self.ranks.after is not None:
                lengths = [end[s.name].shape[self._growth(s)] if end else 0 for s in grown]
                self.ranks.send(
                    self.ranks.after, [int(end is None), *lengths], list((end or {}).values())
                )
        self.ranks.finish()
        self.ranks.agree("context_parallel", trouble.problem)
        return self._whole(self.outputs, outputs, False), self._whole(self.fields, ends, False)

    def backward(
        self, tensors: Tensors, cotangents: Tensors, ends: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Gradients of arguments and of the state that the call began with."""
        import torch

        self.ranks.doing = self.back
        if self.ranks.meetings.together:  # before any rank waits for another's cotangents
            self.ranks.agree("context_parallel")
        trouble, gradients, firsts = Trouble(), [], []
        smooth = [s for s in self.fields if s.role != "position"]
        for i, block in enumerate(self.blocks):
            told: list[int] = [0]
            if self.ranks.after is not None:
                told, body = self.ranks.received(self.ranks.after, 1)
            sent: list[Any] | None = None
            with trouble:
                first_heads = not block.heads.start  # what all heads share is pulled on once
                own = [s for s in smooth if s.name in ends and (s.level != "layer" or first_heads)]
                last = {s.name: self._newest(s, ends[s.name][block.of(s)], i) for s in own}
                if self.ranks.after is not None and not told[0]:
                    here = self.ran[i].state
                    like = [(tuple(here[s.name].shape), here[s.name].dtype) for s in smooth]
                    device = next(iter(tensors.values())).device
                    for s, ct in zip(smooth, self.ranks.unpacked(body, like, device)):
                        last[s.name] = ct + last[s.name] if s.name in last else ct
                if not told[0] and trouble.problem is None:
                    pulled = {
                        o.name: cotangents[o.name][block.of(o)]
                        for o in self.outputs
                        if o.name in cotangents
                    }
                    found, first = self.ran[i].pull(pulled, last)
                    gradients.append((block, found))
                    firsts.append((block, first))
                    if self.ranks.before is not None:
                        begun = self.ran[i].begun
                        sent = [first.get(s.name, torch.zeros_like(begun[s.name])) for s in smooth]
            if self.ranks.before is not None:
                self.ranks.send(self.ranks.before, [int(sent is None)], sent or [])
        self.ranks.finish()
        self.ranks.agree("context_parallel", trouble.problem)
        arguments = self.kernel.signature.arguments
        return self._whole(arguments, gradients, True), self._whole(smooth, firsts, True)

    def _of(self, block: Block, tensors: Tensors) -> Tensors:
        """What the kernel takes for a block."""
        return {name: x[block.of(self.values[name])] for name, x in tensors.items()}

    def _keywords(self, block: Block) -> Tensors:
        valid = None if self.valid is None else self.valid[block.rows]
        return {**self.options, "valid": valid}

    def _growth(self, s: Value) -> int:
        """The axis along which a field holds all tokens so far."""
        return axes_of(s).index(None)

    def _newest(self, s: Value, ct: Any, i: int) -> Any:
        """The part of a cotangent that is of the tokens a block has."""
        if not grows(s):
            return ct
        axis = self._growth(s)
        kept = self.ran[i].state[s.name].shape[axis]
        return ct.narrow(axis, ct.shape[axis] - kept, kept)

    def _like(self, x: Tensors, lengths: Mapping[str, int]) -> dict[str, Like]:
        """Shapes and dtypes of the state of a block, as a call of no tokens has it; ``lengths`` of
        the fields that hold all tokens so far."""
        none = {n: y[:, :0] if self.values[n].role == "input" else y for n, y in x.items()}
        _, state = self.kernel(**none, **self.options)
        found: dict[str, Like] = {n: (tuple(y.shape), y.dtype) for n, y in state._asdict().items()}
        for s in self.fields:
            if s.name in lengths:
                shape, dtype = found[s.name]
                axis = self._growth(s)
                found[s.name] = ((*shape[:axis], lengths[s.name], *shape[axis + 1 :]), dtype)
        return found

    def _whole(
        self, values: Sequence[Value], parts: Sequence[tuple[Block, Tensors]], add: bool
    ) -> Tensors:
        """The parts of all blocks in one tensor; with ``add`` the sum of what they share."""
        import torch

        found = {}
        for value in values:
            own = [(block, x[value.name]) for block, x in parts if x.get(value.name) is not None]
            if not own:
                continue
            shape = list(own[0][1].shape)
            for axis, name in enumerate(axes_of(value)):
                if (stop := _STOPS.get(str(name))) is not None:
                    shape[axis] = max(getattr(block, stop).stop for block, _ in own)
                elif name is None:  # of all tokens so far, of which rows may have fewer
                    shape[axis] = max(x.shape[axis] for _, x in own)
            whole = torch.zeros(shape, dtype=own[0][1].dtype, device=own[0][1].device)
            for block, x in own:
                place = list(block.of(value))
                if None in axes_of(value):
                    axis = axes_of(value).index(None)
                    place[axis] = slice(shape[axis] - x.shape[axis], None)
                at = tuple(place)
                whole[at] = whole[at] + x if add else x
            found[value.name] = whole
        return found


_STOPS = {"#B": "rows", "#N": "rows", "#H": "heads", "#G": "groups"}
