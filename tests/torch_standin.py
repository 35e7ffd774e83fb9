"""Derived tile programs in, the pass functions of an emitted Triton file out, by the interpreter of
tile programs: the host part can run with them where there is no kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lacc.backends.base import call_code, tuple_text
from lacc.backends.tables import attention_entry
from lacc.backends.to_triton import ATTEND
from lacc.backends.torch_api import (
    api_text,
    host_functions,
    host_imports,
    host_text,
)
from lacc.driver import analyse
from lacc.runtime import torch_calls
from lacc.runtime.contract import Signature
from lacc.spec.model import Spec
from lacc.spec.shapes import ONE
from lacc.tile.attention_pass import AttentionPass
from lacc.tile.derive import Derived, Pair
from lacc.tile.interp import interpret
from lacc.tile.program import Program

FILL = float("nan")
"""What stands where a pass writes nothing."""


def emitted(derived: Derived, signature: Signature, chunk: int = 16) -> tuple[str, dict[str, Any]]:
    """The text of the host part, and what it needs beside it."""
    spec, given, passes = derived.spec, {}, []
    for n, p in enumerate(derived.passes):
        if isinstance(p, AttentionPass):
            passes.append(attention_entry(p, **ATTEND))
            continue
        alone = StandIn(spec, p, p.stage.direction == "backward")
        given |= {f"forward_{n}": alone.forward, f"backward_{n}": alone.backward}
        passes.append(alone.entry(str(n)))
    token = None
    attends = any(isinstance(p, AttentionPass) for p in derived.passes)
    if derived.token is not None and not attends:
        alone = StandIn(spec, derived.token, token=True)
        given |= {"forward_token": alone.forward, "backward_token": alone.backward}
        token = alone.entry("token")
    given |= {"attend_forward": attend_forward, "attend_backward": attend_backward}
    functions = [
        "\n".join([f.head, f'    """{f.doc}"""', *(f"    {line}" for line in f.lines)])
        for f in host_functions(derived)
    ]
    api = api_text(
        derived, signature, passes, token, f"lambda *_: {chunk}", "lambda *_: False", 128
    )
    head = ["from __future__ import annotations", *host_imports()]
    support = 'SUPPORT = Support({torch.float32: "", torch.float64: ""}, "--target numpy", '
    support += f"{torch_calls.interpreted()})"
    text = "\n\n".join(["\n".join(head), *functions, host_text(derived), support, api])
    assert "lacc." not in text.replace("lacc.la", "") and "numpy" not in "\n".join(head)
    return text, given


def by_heads(program: Program, loads: Any, run: Any, tokens: int) -> dict[str, Any]:
    """The outputs of a program [1, H, *axes], a head at a time."""
    dtype = np.float64 if run.dtype == torch.float64 else np.float32
    sizes = {axis: size.evaluate(run.dims) for axis, size in program.sizes.items()}
    sizes |= {"t": tokens, "s": tokens}
    parts = []
    for h in range(run.H):
        one = {
            key: x if x is None or np.ndim(x) < 2 else np.asarray(x)[0, h % np.shape(x)[1]]
            for key, x in loads.items()
        }
        outs = interpret(program, one, run.dims, tokens, dtype)
        shapes = {n: tuple(sizes[a] for a in program.body[i].axes) for n, i in program.outs.items()}
        parts.append({n: np.broadcast_to(y, shapes[n]).astype(dtype) for n, y in outs.items()})
    return {name: np.stack([part[name] for part in parts])[None] for name in program.outs}


class StandIn:
    """One pass over time (or of one token)."""

    def __init__(self, spec: Spec, pair: Pair, reverse: bool = False, token: bool = False) -> None:
        self.spec, self.pair, self.reverse, self.token = spec, pair, reverse, token
        both = (pair.forward, pair.backward)

        def loaded(*kinds: str) -> tuple[str, ...]:
            names = [n for p in both for kind in kinds for n in p.loads(kind)]
            return tuple(dict.fromkeys(names))

        self.inputs, self.fixed = loaded("input", "stored"), loaded("param", "buffer")
        self.last, outs = loaded("last"), pair.forward.outs
        self.states = tuple(n[6:] for n in outs if n.startswith("state:"))
        self.outputs = tuple(n for n in outs if not n.startswith("state:"))
        shapes = {a.ascii: a.shape for a in spec.args}
        shapes |= {o.ascii: o.shape for o in spec.outputs}
        shapes |= {s.ascii: s.shape for s in spec.states}
        self.units = {
            name: tuple(n - len(shape) for n, size in enumerate(shape) if size == ONE)
            for name, shape in shapes.items()
        }
        self.level = {a.ascii: "layer" if a.per == "position" else a.per for a in spec.args}

    def entry(self, number: str) -> str:
        return call_code(
            "Pass",
            {
                "reverse": self.reverse,
                "inputs": tuple_text(self.inputs),
                "fixed": tuple_text(self.fixed),
                "last": tuple_text(self.last),
                "states": tuple_text(self.states),
                "outputs": tuple_text(n.removeprefix("stored:") for n in self.outputs),
                "forward": f"forward_{number}",
                "backward": f"backward_{number}",
            },
        )

    # ---- arrays

    def array(self, name: str, x: Any, axis: int, run: Any) -> Any:
        """A tensor without units, at the heads, which are its ``axis``."""
        if x is None:
            return None
        base = name.partition("@")[0]
        if self.level.get(base) == "layer":
            x = x.unsqueeze(axis)
        if x.shape[axis] != run.H:
            x = x.repeat_interleave(run.H // x.shape[axis], axis)
        units = self.units.get(base, ())
        x = x.squeeze(units) if units else x
        return x.to(run.dtype).contiguous().numpy()

    def tensor(self, name: str, x: Any) -> Any:
        return torch.from_numpy(np.expand_dims(x, self.units.get(name.partition("@")[0], ())))

    def shape(self, program: Program, out: str, run: Any) -> tuple[int, ...]:
        axes = [a for a in program.body[program.outs[out]].axes if a != "t"]
        return tuple(program.sizes[a].evaluate(run.dims) for a in axes)

    def chunks(self, run: Any) -> Any:
        """(sequence, chunk, row, tokens, positions) in the order of time of the pass."""
        C = 1 if self.token else run.C
        number = 0
        for n in range(run.N):
            row, begin, end = n, 0, run.T
            if run.cu is not None:
                row, begin, end = 0, int(run.cu[n]), int(run.cu[n + 1])
            tokens = np.arange(begin, end)[:: -1 if self.reverse else 1]
            seen = 0 if run.position is None else int(run.position[n])
            if run.table is not None and not self.token:
                assert run.table.shape == (run.chunks, 2)
                first = int(run.firsts[n])
                count = int(run.firsts[n + 1]) - first
                assert count == -(-(end - begin) // C)
                rows = run.table[first : first + count].tolist()
                assert rows == [[n, i] for i in range(count)]
            for at in range(0, end - begin, C):
                part = tokens[at : at + C]
                yield number, n, row, part, part - begin + 1 + seen
                number += 1

    def loads(self, x: Any, states: Any, last: Any, n: int, row: int, at: Any, t: Any, run: Any):
        found: dict[tuple[str, str], Any] = {}
        for program in (self.pair.forward, self.pair.backward):
            for name in (*program.loads("input"), *program.loads("stored")):
                y = x[name]
                y = None if y is None else np.moveaxis(y[row : row + 1, at], 2, 1)
                y = y[:, :, 0] if self.token and y is not None else y
                found["input", name] = found["stored", name] = y
            for kind in ("param", "buffer"):
                found |= {(kind, name): x[name] for name in program.loads(kind)}
            found |= {("last", name): last[name][n : n + 1] for name in program.loads("last")}
        found |= {("state", name): y for name, y in states.items()}
        time = (t[0] if self.token else t)[None, None].astype(float)
        index = {"t": time, "T": float(run.T), "H": float(run.H), "head": np.arange(run.H)[None]}
        return found | {("index", name): y for name, y in index.items()}

    def prepared(self, x: Any, run: Any) -> Any:
        found = {name: self.array(name, x[name], 2, run) for name in self.inputs}
        for name in self.fixed:
            y = self.array(name, x[name], 0, run)
            found[name] = None if y is None else y[None]
        return found

    # ---- the contract

    def forward(self, x: Any, states: Any, last: Any, run: Any, keep: bool) -> Any:
        program, dt = self.pair.forward, torch.empty(0, dtype=run.dtype)
        values, sizes = {}, {n: self.shape(program, f"state:{n}", run) for n in self.states}
        for out in self.outputs:
            name = out.removeprefix("stored:")
            shape = (run.B, run.T, run.H, *self.shape(program, out, run))
            values[name] = torch.full(shape, FILL, dtype=run.dtype, device=run.device)
        shapes = {n: (run.N, run.H, *s) for n, s in sizes.items()}
        finals = {n: dt.new_zeros(shape, device=run.device) for n, shape in shapes.items()}
        kept = []
        if keep:
            count = run.chunks * (run.C if self.token else 1)
            kept = [dt.new_zeros(count, run.H, *s, device=run.device) for s in sizes.values()]
        if not run.dry:
            arrays = self.prepared(x, run)
            last = {name: self.array(name, y, 1, run) for name, y in last.items()}
            for name in self.states:
                if states[name] is not None:
                    y = states[name] if run.rows is None else states[name][run.rows]
                    assert y.shape[:2] == (run.N, run.H) and states[name].is_contiguous()
                    finals[name][:] = torch.from_numpy(self.array(name, y, 1, run))
            for number, n, row, at, t in self.chunks(run):
                before = {name: finals[name][n : n + 1].numpy() for name in self.states}
                for i, name in enumerate(self.states if keep else ()):
                    kept[i][number] = finals[name][n]
                loads = self.loads(arrays, before, last, n, row, at, t, run)
                outs = by_heads(program, loads, run, len(at))
                for out in self.outputs:
                    y = outs[out] if not self.token else np.asarray(outs[out])[:, :, None]
                    into = values[out.removeprefix("stored:")]
                    into[row, at.copy()] = torch.from_numpy(
                        np.moveaxis(
                            np.broadcast_to(y, (1, run.H, len(at), *into.shape[3:]))[0], 0, 1
                        ).copy()
                    )
                for name in self.states:
                    finals[name][n] = torch.from_numpy(
                        np.broadcast_to(outs[f"state:{name}"], (1, *finals[name].shape[1:]))[
                            0
                        ].copy()
                    )
        values = {n: self.restore(n, y) for n, y in values.items()}
        values = {
            n: y.to(run.out_dtype) if n in {o.ascii for o in self.spec.outputs} else y
            for n, y in values.items()
        }
        finals = {n: self.restore(n, y) for n, y in finals.items()}
        if run.into is not None:
            for name, y in finals.items():
                rows = slice(None) if run.rows is None else run.rows
                run.into[name][rows] = y.to(run.into[name].dtype)
        return values, finals, tuple(kept)

    def restore(self, name: str, y: Any) -> Any:
        rank = y.ndim + len(self.units.get(name, ()))
        for axis in sorted(rank + unit for unit in self.units.get(name, ())):
            y = y.unsqueeze(axis)
        return y

    def backward(self, x: Any, last: Any, kept: Any, run: Any, dvalues: Any, dfinals: Any) -> Any:
        program, dt = self.pair.backward, torch.empty(0, dtype=run.dtype, device=run.device)
        given_last, zeros = last, {}
        for name in self.inputs:
            if x[name] is not None:
                base = name.partition("@")[0]
                y = x[name].unsqueeze(2) if self.level.get(base) == "layer" else x[name]
                zeros[name] = dt.new_zeros(*y.shape[:2], run.H, *y.shape[3:])
        params = [a.ascii for a in self.spec.args if a.role == "param"]
        dfixed = {}
        for name in self.fixed:
            if x[name] is not None and name in params:
                y = x[name].unsqueeze(0) if self.level[name] == "layer" else x[name]
                dfixed[name] = dt.new_zeros(max(run.N, 1), run.H, *y.shape[1:])
        dlast = {name: dt.new_zeros(y.shape) for name, y in given_last.items()}
        shapes = {n: self.shape(self.pair.forward, f"state:{n}", run) for n in self.states}
        dstates = {n: dt.new_zeros(run.N, run.H, *s) for n, s in shapes.items()}
        if not run.dry:
            squeezed = {n: self.flat(n, y) for n, y in zeros.items()}
            flat_fixed = {n: self.flat(n, y) for n, y in dfixed.items()}
            flat_last = {n: self.flat(n, y) for n, y in dlast.items()}
            arrays = self.prepared(x, run)
            last = {name: self.array(name, y, 1, run) for name, y in last.items()}
            for name in self.states:
                if dfinals[name] is not None:
                    dstates[name][:] = torch.from_numpy(self.array(name, dfinals[name], 1, run))
            cts = {n: None if d is None else self.array(n, d, 2, run) for n, d in dvalues.items()}
            for number, n, row, at, t in reversed(list(self.chunks(run))):
                before = {m: kept[i][number][None].numpy() for i, m in enumerate(self.states)}
                loads = self.loads(arrays, before, last, n, row, at, t, run)
                for name in self.states:
                    loads["dstate", name] = dstates[name][n : n + 1].numpy().copy()
                for out in self.outputs:
                    ct = cts[out.removeprefix("stored:")]
                    if ct is None:
                        shape = self.shape(self.pair.forward, out, run)
                        ct = np.zeros((run.B, run.T, run.H, *shape))
                    ct = np.moveaxis(ct[row : row + 1, at], 2, 1)
                    loads["cotangent", out] = ct[:, :, 0] if self.token else ct
                outs = by_heads(program, loads, run, len(at))
                for key, y in outs.items():
                    kind, _, name = key.partition(":")
                    y = np.asarray(y)
                    if kind == "state":
                        continue
                    if kind in ("input", "stored") and name in squeezed:
                        into = squeezed[name]
                        y = y[:, :, None] if self.token else y
                        y = np.broadcast_to(y, (1, run.H, len(at), *into.shape[3:]))
                        into[row, at.copy()] += torch.from_numpy(np.moveaxis(y[0], 0, 1).copy())
                    elif kind == "param" and name in flat_fixed:
                        into = flat_fixed[name]
                        into[n] += torch.from_numpy(
                            np.broadcast_to(y, (1, *into.shape[1:]))[0].copy()
                        )
                    elif kind == "last":
                        into = flat_last[name]
                        into[n] += torch.from_numpy(
                            np.broadcast_to(y, (1, *into.shape[1:]))[0].copy()
                        )
                for name in self.states:
                    y = np.broadcast_to(
                        outs.get(f"state:{name}", 0.0), (1, *dstates[name].shape[1:])
                    )
                    dstates[name][n] = torch.from_numpy(y[0].copy())
        dx = {}
        for name, y in zeros.items():
            whole = "@" not in name and self.level.get(name) == "head"
            dx[name] = y.to(x[name].dtype) if whole else y
        dstates = {n: self.restore(n, y) for n, y in dstates.items()}
        return dx, dfixed, dlast, dstates

    def flat(self, name: str, y: Any) -> Any:
        units = self.units.get(name.partition("@")[0], ())
        return y.squeeze(units) if units else y


# ---- attention by torch


def attend(given: Any, window: Any, run: Any, ct: Any = None) -> Any:
    """The plain formula, a sequence at a time; with ``ct`` the gradients."""
    *tokens, sink, pk, pv = given
    values = tokens[2]
    o = torch.zeros(run.B, run.T, run.H, values.shape[3], dtype=run.dtype)
    grads = [None if x is None else torch.zeros_like(x, dtype=run.dtype) for x in given]
    for n in range(run.N):
        row, begin, end = n, 0, run.T
        if run.cu is not None:
            row, begin, end = 0, int(run.cu[n]), int(run.cu[n + 1])
        q, k, v = (at_heads(x, run)[row, begin:end] for x in tokens)
        seen = 0 if run.position is None else int(run.position[n])
        P = 0 if pk is None else min(pk.shape[2], pv.shape[2], seen)
        if P:
            old = [at_heads(x.movedim(2, 1), run)[n, x.shape[2] - P :] for x in (pk, pv)]
            k, v = torch.cat([old[0], k]), torch.cat([old[1], v])
        logits = torch.einsum("thk,shk->hts", q, k)
        t, s = torch.arange(end - begin)[:, None] + P, torch.arange(k.shape[0])[None]
        live = (s <= t) if window is None else (s <= t) & (s > t - window)
        logits = torch.where(live, logits, float("-inf"))
        more = logits.new_full((*logits.shape[:2], 1), float("-inf"))
        if sink is not None:
            more = at_heads(sink, run)[row, begin:end].T[..., None]
        shares = torch.softmax(torch.cat([logits, more], -1), -1)
        p = shares[..., :-1]
        o[row, begin:end] = torch.einsum("hts,shv->thv", p, v)
        if ct is None:
            continue
        d = ct[row, begin:end].to(run.dtype)
        mean = (d * o[row, begin:end]).sum(-1).T[..., None]
        dlogits = p * (torch.einsum("thv,shv->hts", d, v) - mean)
        dk, dv = torch.einsum("hts,thk->shk", dlogits, q), torch.einsum("hts,thv->shv", p, d)
        entries(grads[0][row, begin:end], torch.einsum("hts,shk->thk", dlogits, k))
        entries(grads[1][row, begin:end], dk[P:])
        entries(grads[2][row, begin:end], dv[P:])
        if sink is not None:
            entries(grads[3][row, begin:end], (-shares[..., -1:] * mean)[..., 0].T)
        for i, y in ((4, dk), (5, dv)) if P else ():
            rows = grads[i].movedim(2, 1)[n]
            entries(rows[rows.shape[0] - P :], y[:P])
    return o if ct is None else grads


def entries(into: Any, d: Any) -> None:
    """Adds what heads that share an entry give, [T, H, ...]."""
    into += d.unflatten(1, (into.shape[1], -1)).sum(2)


def at_heads(x: Any, run: Any) -> Any:
    """[B, T, H, ...] of entries that heads share."""
    return x.to(run.dtype).repeat_interleave(run.H // x.shape[2], 2)


def attend_forward(query, keys, values, sink, pk, pv, window, run, keep, dtype=None):
    shape = (run.B, run.T, run.H, values.shape[3])
    if run.dry:
        return query.new_empty(shape, dtype=run.dtype), ()
    return attend((query, keys, values, sink, pk, pv), window, run), ()


def attend_backward(query, keys, values, sink, pk, pv, window, output, kept, ct, run):
    given = (query, keys, values, sink, pk, pv)
    if run.dry:
        return tuple(None if x is None else torch.empty_like(x) for x in given)
    found = attend(given, window, run, ct)
    return tuple(None if d is None else d.to(x.dtype) for d, x in zip(found, given))


def loaded(spec: Spec, signature: Signature, chunk: int = 16) -> dict[str, Any]:
    """The module of a spec's host part."""
    import sys
    import types

    derived = analyse(spec)
    text, given = emitted(derived, signature, chunk)
    module = types.ModuleType(f"standin_{spec.ascii}")
    sys.modules[module.__name__] = module
    module.__dict__.update(given)
    exec(compile(text, f"<{spec.ascii}>", "exec"), module.__dict__)
    return module.__dict__
