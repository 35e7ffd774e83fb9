"""A caller's tensors in, outputs, states and gradients out: what the public functions of an emitted
file do.

This module stands alone (torch only): its text is pasted into emitted files of torch.
Every function raises ValueError or TypeError that names the argument, what was expected and what
came, before a kernel runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lacc.runtime.contract import MODES, Signature, axes_of, axes_text, grows, record
from lacc.runtime.torch_arguments import WHOLE, name_of, tensor_of
from lacc.runtime.torch_core import Asked
from lacc.runtime.torch_direct import Direct
from lacc.runtime.torch_operators import Operators
from lacc.runtime.torch_run import Program, Tensors
from lacc.runtime.torch_walk import Walk


def check_positions(name: str, x: Any, rows: Any = None) -> None:
    """Raises where positions, in some ``rows`` or in all, are negative, if that can be seen without
    waiting for a device."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return
    mine = x if rows is None else x[rows]
    if (mine < 0).any():
        raise TypeError(f"{name}: expected integers [N] of at least 0, got {mine.tolist()}")


def check_rows(rows: Any, size: int, pools: list[Any]) -> None:
    """Raises where ``state_indices`` are not different rows of the pools."""
    some = rows.tolist()
    if len({*some}) < size or min(some, default=0) < 0:
        raise ValueError(f"state_indices: expected different rows, got {some}")
    for x in pools:
        if x is not None and max(some, default=-1) >= x.shape[0]:
            raise ValueError(f"state_indices: expected below {x.shape[0]}, got {max(some)}")


class Host:
    """The functions of one spec: its signature, its program and its operators."""

    def __init__(self, signature: Signature, program: Program, digest: str) -> None:
        self.signature, self.program = signature, program
        self.operators = Operators(signature, program, digest)
        self.core = self.operators.core
        self.fields = tuple(s.name for s in signature.states)
        self.declared = [s.name for s in signature.states if s.role == "state"]
        self.State = record(f"{signature.name}_state", self.fields)
        self.Outputs = record(f"{signature.name}_outputs", tuple(o.name for o in signature.outputs))
        self.direct, self.counts = Direct(signature, program), program.counts

    # ---- what a caller gives

    def arguments(self, given: Tensors, step: bool = False) -> list[Any]:
        """The arguments in order, each a tensor or omitted."""
        found = []
        for a in self.signature.arguments:
            x = given[a.name]
            if x is None and not (a.optional or a.draw):
                axes = axes_text(*axes_of(a, step))
                raise TypeError(f"{a.name}: {a.role} {axes} of {self.signature.name} is missing")
            found.append(None if x is None else tensor_of(a.name, x))
        return found

    def state(self, what: str, state: Any, pool: bool = False) -> list[Any]:
        """The fields of a state in any of its forms, in order, None where missing; of a ``pool``
        not all rows need be states."""
        names = self.fields
        if state is None:
            return [None] * len(names)
        if type(state) is self.State and not self.counts:
            named = zip(names, state)
            return [None if x is None else tensor_of(f"{what}.{name}", x) for name, x in named]
        if hasattr(state, "__dlpack__"):
            state = tensor_of(what, state)
        if isinstance(state, torch.Tensor) and len(self.declared) == 1:
            state = {self.declared[0]: state}
        elif isinstance(state, tuple):
            if len(state) != len(names) or getattr(state, "_fields", names) != names:
                got = ", ".join(getattr(state, "_fields", (f"{len(state)} entries",)))
                raise ValueError(f"{what}: expected ({', '.join(names)}), got ({got})")
            state = dict(zip(names, state))
        elif not isinstance(state, Mapping):
            some = f"a tuple or dict of {', '.join(names)}"
            raise TypeError(f"{what}: expected {some}, got {type(state)}")
        if unknown := [name for name in state if name not in names]:
            raise ValueError(f"{what}: expected {', '.join(names) or 'none'}, got {unknown[0]!r}")
        found = []
        for s in self.signature.states:
            x = state.get(s.name)
            x = None if x is None else tensor_of(f"{what}.{s.name}", x)
            if s.role == "position" and what == "state_cotangent":
                x = None
            if s.role == "position" and x is not None and what != "out" and not pool:
                check_positions(f"{what}.{s.name}", x)
            found.append(x)
        return found

    def check_begun(self, fields: list[Any], rows: Any) -> None:
        """Raises where the positions of a pool are negative in rows that belong to the batch."""
        for s, x in zip(self.signature.states, fields):
            if s.role == "position" and x is not None and rows is not None:
                check_positions(f"state.{s.name}", x, rows)

    def asked(
        self, initial_state: Any, mode: str, chunk: int | None, cu: Any, valid: Any
    ) -> tuple[list[Any], Any, Any, str, int]:
        """The call's fields, sequences, mode and chunk."""
        signature = self.signature
        if mode not in MODES:
            raise ValueError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
        if chunk is not None:
            if not isinstance(chunk, int) or isinstance(chunk, bool) or chunk < 1:
                raise ValueError(f"chunk: expected a positive integer, got {chunk!r}")
            if mode not in ("auto", "chunk"):
                raise ValueError(f"chunk: expected None in mode {mode}, got {chunk}")
            mode = "chunk"
        if reason := signature.modes.get(mode, ""):
            raise ValueError(f"mode: {signature.name} has no mode {mode}: {reason}")
        longest = signature.longest
        if chunk is not None and longest is not None and chunk > longest:
            raise ValueError(f"chunk: expected at most {longest} tokens, got {chunk}")
        if initial_state is not None and signature.no_initial:
            raise ValueError(f"initial_state: {signature.no_initial}")
        if cu is not None and not isinstance(cu, torch.Tensor):
            raise TypeError(f"cu_seqlens: expected integers [N + 1], got {type(cu)}")
        if valid is not None and not isinstance(valid, torch.Tensor):
            raise TypeError(f"valid: expected a bool array [B, T], got {type(valid)}")
        return self.state("initial_state", initial_state), cu, valid, mode, chunk or 0

    def check_dtype(self, state_dtype: Any) -> None:
        """Raises where a state cannot have that dtype."""
        known = self.program.support.dtypes
        if state_dtype is not None and state_dtype not in known:
            floats = ", ".join(map(name_of, known))
            raise TypeError(f"state_dtype: expected {floats}, got {state_dtype}")

    # ---- what it gets

    def called(
        self, tensors: list[Any], rest: tuple[Any, ...], state_dtype: Any, debug: bool
    ) -> Any:
        """Outputs and state of a call of the operator, which keeps nothing unless gradients are
        asked for."""
        keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
        found = self.operators.call(*tensors, *rest, keep, state_dtype, debug)
        count = len(self.signature.outputs)
        return self.outputs(found[:count]), self.State(*found[count : self.operators.results])

    def outputs(self, found: Any) -> Any:
        """One output, or the tuple of several."""
        return found[0] if len(found) == 1 else self.Outputs(*found)

    def forward(
        self,
        arguments: Tensors,
        *,
        initial_state: Any,
        cu_seqlens: Any,
        valid: Any,
        mode: str,
        chunk: int | None,
        debug: bool,
        state_dtype: Any,
    ) -> Any:
        """(outputs, state) of whole sequences."""
        tensors = self.arguments(arguments)
        fields, *rest = self.asked(initial_state, mode, chunk, cu_seqlens, valid)
        self.check_dtype(state_dtype)
        return self.called([*tensors, *fields], tuple(rest), state_dtype, debug)

    def step(
        self,
        arguments: Tensors,
        state: Any,
        *,
        out: Any,
        state_indices: Any,
        debug: bool,
        state_dtype: Any,
    ) -> Any:
        """(outputs, state) of one token [B, H, *axes]. With ``out``, a state whose tensors are to
        be overwritten (often ``state`` itself), that is what comes back. ``state_indices`` [B]
        names the rows of ``state`` and ``out``, then pools of any length, that belong to the
        batch; they must be different rows of the pool, which is checked on the CPU or with
        ``debug``."""
        key, direct, pool = None, self.direct, state_indices is not None
        if direct.possible and not (debug or state_dtype or torch.compiler.is_compiling()):
            given, target = self.state("state", state, pool), self.state("out", out)
            key = direct.key(arguments.values(), (*given, *target), state_indices)
            run = direct.seen.get(key)
            if run is not None:
                if pool and state_indices.device.type == "cpu":
                    check_rows(state_indices, run.B, [*given, *target])
                    self.check_begun(given, state_indices)
                into = None if out is None else target
                found, new = direct.run(run, arguments, given, into, state_indices)
                state = self.State(*map(new.get, self.fields)) if out is None else out
                return self.outputs(found), state
        signature = self.signature
        if signature.no_step:
            raise ValueError(f"step: {signature.no_step}")
        if out is not None and state_dtype is not None:
            raise ValueError(f"state_dtype: expected None with out, got {state_dtype}")
        self.check_dtype(state_dtype)
        tensors = self.arguments(arguments, step=True)
        given, target = self.state("state", state, pool), self.state("out", out)
        walk = self.core.walk([*tensors, *[None] * len(given)], None, None, Asked("step", 0, True))
        rows = self._rows(walk, state_indices, [*given, *target], debug)
        self.check_begun(given, rows)
        for what, fields in (("state", given), ("out", target)):
            walk.args.fields(what, dict(zip(self.fields, fields)), pool=rows is not None)
        for s, x in zip(signature.states, target) if out is not None else ():
            if grows(s):
                raise ValueError(f"out: {s.name} grows with every token, so it has no place to go")
            if x is None:
                wish = f"a tensor {axes_text(*axes_of(s))}"
                raise ValueError(f"out.{s.name}: expected {wish}, got None")
        begun = [x if x is None or rows is None else x[rows] for x in given]
        rest = (None, None, "step", 0)
        outputs, new = self.called([*tensors, *begun], rest, state_dtype, debug)
        if key is not None and walk.run.B and (rows is None or rows is state_indices):
            direct.remember(key, walk.run)
        if out is None:
            return outputs, new
        for x, y in zip(target, new):
            if rows is None:
                x.copy_(y)
            else:
                x[rows] = y.to(x.dtype)
        return outputs, out

    def _rows(self, walk: Walk, rows: Any, pools: list[Any], debug: bool) -> Any:
        """``state_indices``, checked."""
        if rows is None:
            return None
        size = walk.args.sizes["#B"]
        if not isinstance(rows, torch.Tensor) or rows.dtype not in WHOLE or rows.shape != (size,):
            tensor = isinstance(rows, torch.Tensor)
            got = f"{name_of(rows.dtype)} {tuple(rows.shape)}" if tensor else type(rows)
            raise TypeError(f"state_indices: expected integers [B] = [{size}], got {got}")
        walk.args.placed("state_indices", rows)
        if rows.device.type == "cpu" or debug:
            check_rows(rows, size, pools)
        return rows.to(torch.int64)

    def vjp(
        self,
        arguments: Tensors,
        *,
        cotangent: Any,
        state_cotangent: Any,
        initial_state: Any,
        cu_seqlens: Any,
        valid: Any,
        mode: str,
        chunk: int | None,
    ) -> Tensors:
        """Gradients by name, in their arguments' shapes and dtypes, from the cotangents of the
        outputs (a tensor; a tuple or dict where there are several) and of the final state (in any
        form of a state). None is zero. "initial_state" is there, a tuple like the state, when one
        was passed."""
        tensors = self.arguments(arguments)
        fields, cu, masked, asked, C = self.asked(initial_state, mode, chunk, cu_seqlens, valid)
        given = [*tensors, *fields]
        pulled = self.cotangents(cotangent)
        ends = self.state("state_cotangent", state_cotangent)
        count = self.core.count
        with torch.no_grad():
            walk = self.core.walk(given, cu, masked, Asked(asked, C, False))
            self._check_cotangents(walk, pulled, ends)
            rest = (cu, masked, asked, C)
            found = self.operators.run(*given, *rest, True, None, False)
            kept = found[self.operators.results :]
            gradients = self.operators.run_back(*given, *rest, *kept, *pulled, *ends)
        placed = self.operators.placed(given, gradients)
        result = {
            a.name: d for a, d in zip(self.signature.arguments, placed[:count]) if d is not None
        }
        if initial_state is not None:
            each = zip(self.signature.states, placed[count:])
            result["initial_state"] = self.State(
                *(
                    torch.zeros(
                        walk.args.shape(s),
                        dtype=torch.int64 if s.role == "position" else walk.dtype,
                        device=walk.args.device,
                    )
                    if d is None
                    else d
                    for s, d in each
                )
            )
        return result

    def cotangents(self, cotangent: Any) -> list[Any]:
        """The cotangent of each output, in order, None for zero."""
        names = [o.name for o in self.signature.outputs]
        if isinstance(cotangent, torch.Tensor) and len(names) == 1:
            cotangent = {names[0]: cotangent}
        elif isinstance(cotangent, tuple) and len(cotangent) == len(names):
            cotangent = dict(zip(names, cotangent))
        elif cotangent is None:
            cotangent = {}
        elif not isinstance(cotangent, Mapping) or {*cotangent} - {*names}:
            each = ", ".join(names)
            raise TypeError(
                f"cotangent: expected a tensor for each of {each}, got {type(cotangent)}"
            )
        found = []
        for name in names:
            ct = cotangent.get(name)
            label = "cotangent" if len(names) == 1 else f"cotangent.{name}"
            found.append(None if ct is None else tensor_of(label, ct))
        return found

    def _check_cotangents(self, walk: Walk, pulled: list[Any], ends: list[Any]) -> None:
        args, several = walk.args, len(pulled) > 1
        for o, ct in zip(self.signature.outputs, pulled):
            if ct is not None:
                label = f"cotangent.{o.name}" if several else "cotangent"
                args.fit(label, axes_of(o), args.floats(label, ct))
        given = {s.name: x for s, x in zip(self.signature.states, ends) if s.role != "position"}
        args.fields("state_cotangent", given)
        for rows in self.program.kept:
            ct = given.get(rows.field)
            if rows.length is None and ct is not None:
                past = walk.past[rows.field]
                want = walk.sequences.longest() + (0 if past is None else past.shape[1])
                axis = 1 if walk.fields[rows.field].level == "layer" else 2
                if ct.shape[axis] != want:
                    name, got = f"state_cotangent.{rows.field}", tuple(ct.shape)
                    raise ValueError(f"{name}: expected the final shape, got {got}")
