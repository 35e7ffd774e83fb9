"""Tensors of a call in their public order in, outputs, final states and gradients out: what the
custom operators of an emitted file compute.

This module stands alone (torch only): its text is pasted into emitted files of torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch

from lacc.runtime.contract import Signature, Value, axes_of, size_of
from lacc.runtime.exponents import state_fields
from lacc.runtime.torch_arguments import Arguments
from lacc.runtime.torch_pull import Pull
from lacc.runtime.torch_run import MOST, Program, Tensors
from lacc.runtime.torch_sequences import Sequences, check_sequences
from lacc.runtime.torch_walk import Walk, without

# Buffers that were drawn, by sampler, shape, seed, dtype and device.
DRAWN: Tensors = {}


@dataclass(frozen=True)
class Asked:
    """What a call asks for beside its tensors; ``chunk`` 0: not given, mode step: one token."""

    mode: str
    chunk: int
    dry: bool


class Core:
    """A signature and its program, on tensors in the order of arguments and fields."""

    def __init__(self, signature: Signature, program: Program) -> None:
        self.signature, self.program = signature, program
        self.count = len(signature.arguments)
        self.slots = max(len(program.passes), 1)
        self.passed: dict[Any, Arguments] = {}

    def walk(self, tensors: Sequence[Any], cu: Any, valid: Any, asked: Asked) -> Walk:
        """The call of ``tensors``: arguments, then the fields of the initial state."""
        args = self._checked(tensors, cu, asked)
        for seed, a in enumerate(self.signature.arguments):
            if a.draw and args.x[a.name] is None:
                args.x[a.name] = self._drawn(args, a, seed, asked.dry)
        sizes = args.sizes["#B"], args.sizes["#T"]
        sequences = Sequences(*sizes, cu, valid, args.device, asked.dry)
        fields = zip(self.signature.states, tensors[self.count :])
        given = {s.name: x for s, x in fields if x is not None}
        return Walk(args, self.program, sequences, given, asked.mode, asked.chunk)

    def _checked(self, tensors: Sequence[Any], cu: Any, asked: Asked) -> Arguments:
        """The arguments, and the fields of the initial state, checked. Shapes, dtypes and devices
        that passed are not looked at again."""
        signature, step = self.signature, asked.mode == "step"
        x = dict(zip((a.name for a in signature.arguments), tensors))
        key = None
        if not asked.dry:
            each = [y if y is None else (y.shape, y.dtype, y.get_device()) for y in tensors]
            key = (step, None if cu is None else cu.shape, *each)
            if key in self.passed:
                args = copy(self.passed[key])
                args.x = x
                return args
        args = Arguments(signature, self.program.support, x, step)
        if cu is not None:
            check_sequences(args.sizes["#B"], args.sizes["#T"], cu, None, args.device)
            args.sizes["#N"] = cu.shape[0] - 1
        fields = dict(zip((s.name for s in signature.states), tensors[self.count :]))
        args.fields("state" if step else "initial_state", fields)
        if key is not None and len(self.passed) < MOST:
            self.passed[key] = kept = copy(args)
            kept.x = {}
        return args

    def _drawn(self, args: Arguments, a: Value, seed: int, dry: bool) -> Any:
        shape = tuple(size_of(axis, args.sizes) for axis in axes_of(a))
        if dry:
            return torch.empty(shape, dtype=args.dtype, device=args.device)
        key = repr((a.draw, shape, seed, args.dtype, args.device))
        if key not in DRAWN:
            drawn = self.program.draws[a.draw](shape, seed)
            DRAWN[key] = drawn.to(args.device, args.dtype)
        return DRAWN[key]

    def forward(
        self,
        tensors: Sequence[Any],
        cu: Any,
        valid: Any,
        asked: Asked,
        keep: bool,
        state_dtype: Any,
        debug: bool,
    ) -> tuple[list[Any], list[Any], list[Any], list[list[Any]]]:
        """Outputs, fields of the final state, and with ``keep`` what `backward` takes: what crosses
        from pass to pass and what each pass kept."""
        walk = self.walk(tensors, cu, valid, asked)
        if debug and not asked.dry:
            check_promises(walk)
        found, crossed, kept = walk.forward(keep)
        outputs = []
        for o in self.signature.outputs:
            y = walk.sequences.unpack(walk.args.firsts(o, found[o.name], 2))
            outputs.append(y.squeeze(1) if walk.args.step else y)
        fields = self._finals(walk, state_dtype)
        kept += [[] for _ in range(self.slots - len(kept))]
        return outputs, fields, crossed, kept

    def _finals(self, walk: Walk, state_dtype: Any) -> list[Any]:
        """The fields of the state after the last token, as a caller sees them."""
        args, program, found = walk.args, self.program, []
        states = {
            name: walk._zero_state(name) if walk.state[name] is None else walk.state[name]
            for name in program.states
        }
        fields = state_fields(torch, program.exponents, states)
        windows = walk.windows()
        for s in self.signature.states:
            if s.role == "position":
                seen = walk.sequences.lengths()
                found.append(seen if walk.position is None else seen + walk.position)
                continue
            if s.name in windows:
                y = windows[s.name]
            elif s.name in program.pasts:
                past = torch.stack([fields[name] for name in program.pasts[s.name]], 2)
                y = args.firsts(s, past, 1)
            else:
                y = args.firsts(s, fields[s.name], 1)
            # an exponent's rounding would be a factor of the value
            y = y.to(args.dtype if s.role == "log" else state_dtype or args.dtype)
            shared = s.role == "log" or not walk.passes  # by two fields, or with the call's own
            found.append(y.clone(memory_format=DENSE) if shared else y.contiguous())
        return found

    def backward(
        self,
        tensors: Sequence[Any],
        cu: Any,
        valid: Any,
        asked: Asked,
        crossed: list[Any],
        kept: list[list[Any]],
        cotangents: Sequence[Any],
        ends: Sequence[Any],
    ) -> list[Any]:
        """Gradients of the arguments that are given, buffers aside, and of the given fields of the
        initial state, position aside."""
        walk = self.walk(tensors, cu, valid, asked)
        args, signature = walk.args, self.signature
        pulled: Tensors = {}
        for o, ct in zip(signature.outputs, cotangents):
            if ct is not None:
                ct = ct.unsqueeze(1) if args.step else ct
                pulled[o.name] = args.first(o, walk.sequences.pack(ct), 2)
        given = {s.name: d for s, d in zip(signature.states, ends) if s.role != "position"}
        gradients, initial = Pull(walk, crossed, kept).gradients(pulled, given)
        found = [gradients[a.name] for a in self.wanted(tensors)]
        found += [initial[s.name].to(walk.given[s.name].dtype) for s in self.begun(tensors)]
        return found if walk.passes else [d.clone(memory_format=DENSE) for d in found]

    def wanted(self, tensors: Sequence[Any]) -> list[Value]:
        """The arguments that have gradients."""
        given = zip(self.signature.arguments, tensors)
        return [a for a, x in given if a.role != "buffer" and x is not None]

    def begun(self, tensors: Sequence[Any]) -> list[Value]:
        """The fields that have gradients."""
        given = zip(self.signature.states, tensors[self.count :])
        return [s for s, x in given if s.role != "position" and x is not None]


DENSE = torch.contiguous_format


class _Tiles(dict[str, Any]):
    """Arguments as `Program.promised` takes them, [B, H, T, *axes]; delays are made when asked."""

    def __init__(self, walk: Walk) -> None:
        super().__init__()
        self.walk = walk

    def __missing__(self, label: str) -> Any:
        walk = self.walk
        name, _, offset = label.partition("@")
        if name == "t":
            tile = (walk.sequences.positions(None) + 1).to(walk.dtype)[:, None]
        else:
            x, value = walk.x[name], walk.values[name]
            if x is not None and offset:
                x = walk.sequences.delayed(x, None, -int(offset))
            tile = None if x is None else walk.args.spread(value, x, 2).movedim(2, 1)
            units = walk.program.units.get(name, ())
            tile = None if tile is None else without(tile.to(walk.dtype), units)
        self[label] = tile
        return tile


def check_promises(walk: Walk) -> None:
    """Raises where a `where` of the spec does not hold."""
    program, sequences = walk.program, walk.sequences
    if program.promised is None:
        return
    fixed = walk.tables()
    eps = [torch.finfo(x.dtype).eps for x in walk.args.x.values() if x is not None]
    slack = float(max(eps) ** 0.5)
    fixed["slack"] = torch.full((1, 1), slack, dtype=walk.dtype, device=walk.args.device)
    holds = program.promised(_Tiles(walk), fixed, walk.run.T, walk.run.dims, walk.dtype)
    for name, argument, text in program.said:
        broken = ~torch.as_tensor(holds[name], dtype=torch.bool)
        if broken.ndim > 2:
            broken = broken.movedim(2, 1)  # [B, T, H, *axes]
            if sequences.cu is not None and broken.shape[1] > 1:
                live = torch.arange(broken.shape[1], device=broken.device) < sequences.cu[-1]
                broken = broken & live.reshape(1, -1, *[1] * (broken.ndim - 2))
        if broken.any():
            at = broken.nonzero()[0].tolist()
            if sequences.order is not None and broken.shape[1] > 1:
                at[:2] = divmod(int(sequences.order[at[1]]), sequences.tokens)
            raise ValueError(f"{argument}: expected {text}, broken at index {at}")
