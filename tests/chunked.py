"""The chunk programs of a spec run from end to end by the interpreter, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lacc.tile.derive import Derived
from lacc.tile.interp import interpret
from lacc.tile.program import Program

Arrays = dict[str, Any]
Rewrite = Callable[[Program, str], Program]


def as_it_is(program: Program, carried: str) -> Program:
    """No rewrite."""
    return program


class Run:
    """One call: arguments [B, T, H, *axes] and params [H, *axes] by name, states [B, H, *axes]."""

    def __init__(
        self, derived: Derived, x: Arrays, state: Arrays, C: int, rewrite: Rewrite = as_it_is
    ) -> None:
        self.passes = derived.passes
        self.spec, self.C, self.rewrite = derived.spec, C, rewrite
        self.dims = {name: dim.default for name, dim in self.spec.dims.items()}
        self.inputs = {a.ascii for a in self.spec.args if a.role == "input"}
        self.T = next(x[a].shape[1] for a in x if a in self.inputs)
        self.B, self.H = next((x[a].shape[0], x[a].shape[2]) for a in x if a in self.inputs)
        self.tokens = {name: np.moveaxis(x[name], 2, 1) for name in x if name in self.inputs}
        self.params = {name: x[name][None] for name in x if name not in self.inputs}
        self.state = dict(state)
        self.outputs: Arrays = {}
        self.tiles: list[list[tuple[slice, Mapping[tuple[str, str], Any]]]] = []
        for stage in self.passes:
            self.tiles.append(list(self._forward(stage, rewrite(stage.forward, "state"))))

    def _order(self, stage: Any) -> Callable[[Any], Any]:
        return (lambda x: x[:, :, ::-1]) if stage.stage.direction == "backward" else (lambda x: x)

    def _loads(self, program: Program, order: Any, span: slice) -> dict[tuple[str, str], Any]:
        index = {
            "t": np.arange(1.0, self.T + 1)[span],
            "T": np.float64(self.T),
            "H": np.float64(self.H),
            "head": np.arange(self.H, dtype=float)[None],
        }
        found: dict[tuple[str, str], Any] = {("index", name): x for name, x in index.items()}
        for kind in ("input", "stored"):
            for name in program.loads(kind):
                of, _, by = name.partition("@")
                x = self.tokens[of]
                if by:
                    x = np.concatenate([np.zeros_like(x), x], 2)
                    x = x[:, :, self.T + int(by) :][:, :, : self.T]
                found[kind, name] = order(x)[:, :, span]
        for kind in ("param", "buffer"):
            found |= {(kind, name): self.params[name] for name in program.loads(kind)}
        return found | {("last", name): self.state[name] for name in program.loads("last")}

    def _forward(self, stage: Any, program: Program) -> Any:
        order, parts = self._order(stage), []
        for at in range(0, self.T, self.C):
            span = slice(at, min(at + self.C, self.T))
            loads = self._loads(program, order, span)
            loads |= {("state", name): x for name, x in self.state.items()}
            outs = interpret(program, loads, self.dims, span.stop - at)
            carried = {n.removeprefix("state:"): x for n, x in outs.items() if "state:" in n}
            self.state |= carried
            parts.append({n: x for n, x in outs.items() if "state:" not in n})
            yield span, loads
        for name in parts[0]:
            tiles = [np.broadcast_to(p[name], (self.B, self.H, *p[name].shape[2:])) for p in parts]
            x = order(np.concatenate(tiles, 2))
            if name.startswith("stored:"):
                self.tokens[name.removeprefix("stored:")] = x
            else:
                self.outputs[name] = np.moveaxis(x, 1, 2)

    def vjp(self, cotangents: Arrays, dstate: Arrays) -> tuple[Arrays, Arrays]:
        """Gradients by argument, and of the initial states."""
        grads = {name: np.zeros_like(x) for name, x in (*self.tokens.items(), *self.params.items())}
        dstate = dict(dstate)
        cts = {name: np.moveaxis(x, 2, 1) for name, x in cotangents.items()}
        for stage, tiles in reversed(list(zip(self.passes, self.tiles))):
            order, program = self._order(stage), self.rewrite(stage.backward, "dstate")
            carried = [n for n in stage.forward.outs if n.startswith("state:")]
            for span, loads in reversed(tiles):
                given = {("dstate", n): x for n, x in dstate.items()}
                for name in stage.forward.outs:
                    if name.startswith("stored:"):
                        ct = grads[name.removeprefix("stored:")]
                    elif name in cts:
                        ct = cts[name]
                    else:
                        continue
                    given["cotangent", name] = order(ct)[:, :, span]
                outs = interpret(program, {**loads, **given}, self.dims, span.stop - span.start)
                for name in carried:
                    dstate[name.removeprefix("state:")] = outs.get(name, 0.0)
                for key, x in outs.items():
                    self._add(grads, dstate, key, x, order, span)
        for name in grads:
            if name in self.params:
                grads[name] = grads[name].sum(0)
            elif name in self.inputs:
                grads[name] = np.moveaxis(grads[name], 1, 2)
        return grads, dstate

    def _add(
        self, grads: Arrays, dstate: Arrays, key: str, x: Any, order: Any, span: slice
    ) -> None:
        kind, _, name = key.partition(":")
        if kind in ("input", "stored"):
            of, _, by = name.partition("@")
            if not by:
                order(grads[of])[:, :, span] += x
                return
            moved = np.zeros_like(grads[of])
            moved[:, :, span] = x
            grads[of][:, :, : self.T + int(by)] += moved[:, :, -int(by) :]
        elif kind == "param":
            grads[name] = grads[name] + x
        elif kind == "last":
            dstate[name] = dstate[name] + x
