"""One token of tensors like those of an earlier call in, its outputs and state out, with as little
as possible in between: no dispatcher, no check that the earlier call has passed.

This module stands alone (torch only): its text is pasted into emitted files of torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from lacc.runtime.contract import Signature
from lacc.runtime.torch_run import MOST, Program, Run


class Direct:
    """The program of a token on the tensors themselves, for specs whose state is plain: declared
    states per head that start at 0. It reads states where they lie and writes them into ``out``."""

    def __init__(self, signature: Signature, program: Program) -> None:
        self.program = program
        plain = [s.role == "state" and s.level == "head" for s in signature.states]
        plain += [o.level == "head" for o in signature.outputs]
        plain += [not (a.draw or a.level == "position") for a in signature.arguments]
        special = program.exponents or program.pasts or program.kept or program.initial
        self.possible = program.token is not None and all(plain) and not special
        self.inputs = [a.name for a in signature.arguments if a.role == "input"]
        self.fixed = [a.name for a in signature.arguments if a.role != "input"]
        self.states = [s.name for s in signature.states]
        self.outputs = [o.name for o in signature.outputs]
        self.seen: dict[Any, Run] = {}

    def key(self, tensors: Iterable[Any], states: Iterable[Any], rows: Any) -> Any:
        """What decides whether a call of these tensors is right; None where it must go the long
        way, as gradients are asked for or a state is not contiguous. ``states`` are those read,
        then those written."""
        grads = torch.is_grad_enabled()
        key: list[Any] = []
        for x in tensors:
            if x is None:
                key.append(None)
            elif not isinstance(x, torch.Tensor) or (grads and x.requires_grad):
                return None
            else:
                key += (x.shape, x.dtype, x.get_device())
        for x in states:
            if x is None:
                key.append(None)
            elif (grads and x.requires_grad) or not x.is_contiguous():
                return None
            else:
                key += (x.shape, x.dtype, x.get_device())
        if rows is not None:
            if not isinstance(rows, torch.Tensor):
                return None
            key += (rows.shape, rows.dtype, rows.get_device())
        return tuple(key)

    def remember(self, key: Any, run: Run) -> None:
        """Keeps that a call is right, and its sizes."""
        if len(self.seen) < MOST:
            self.seen[key] = replace(run, dry=False)

    def run(
        self,
        run: Run,
        x: Mapping[str, Any],
        states: Iterable[Any],
        into: Iterable[Any] | None,
        rows: Any,
    ) -> tuple[list[Any], Any]:
        """Outputs [B, H, *axes], and the new states by name (those of ``into``)."""
        token = self.program.token
        assert token is not None
        taken = {name: x[name] for name in self.fixed}
        for name in self.inputs:
            y = x[name]
            taken[name] = None if y is None else y.unsqueeze(1)
        if rows is not None or into is not None:
            target = None if into is None else dict(zip(self.states, into))
            run = run.placed(rows, target)
        values, finals, _ = token.forward(taken, dict(zip(self.states, states)), {}, run, False)
        return [values[name].select(1, 0) for name in self.outputs], finals
