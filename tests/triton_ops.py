"""Run as a script, in a process of its own: every tile op as a Triton kernel of one instruction.

    TRITON_INTERPRET=1 python triton_ops.py numbers    {op: largest error, by dtype}
    python triton_ops.py binaries 90                   {op: registers and bytes of stack}

The instructions are those of the programs of `test_tile` and of their gradients, without axes of
ranks and of coupled states, and some of their own. Operands are what the program's values are, in
tiles whose padding holds what a kernel may meet there: NaN where an op asks for nothing.
"""

from __future__ import annotations

import importlib.util
import json
import math
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import test_tile
from programs import SIZES, gradient

from lacc.backends import triton_device
from lacc.backends.text import Text, size_text
from lacc.backends.triton_layout import Index
from lacc.backends.triton_text import DOTTED, MASKED, WRITTEN_BY_KERNEL, Formats, results
from lacc.ir.ops import OPS
from lacc.spec.shapes import Size
from lacc.tile.interp import interpret
from lacc.tile.pad import KNOWN
from lacc.tile.program import TIME, Axes, Program, Tiles, verify
from lacc.tile.rewrite import meet_once, solve_by_inverse
from lacc.tile.unroll import unroll

ENTRYWISE = sorted(name for name, op in OPS.items() if op.entrywise)
COMPARED = {name for name, op in OPS.items() if op.kind == "compare"}

SETTINGS = (
    ({"K": 4, "V": 3}, 1, 16),
    ({"K": 4, "V": 3}, 9, 16),
    ({"K": 20, "V": 17}, 41, 64),
)
"""Sizes, tokens that are there, tokens of a tile; the last for what works on matrices and runs."""

LARGE = {op for op in KNOWN if op in DOTTED or op.endswith("_pull")} | {
    *("contract", "inverse", "matrix", "prefix", "suffix", "whole", "scan", "scan_back"),
    *("tropical", "chain_parts", "dense_solve", "fold", "concat"),
}

POISON: dict[str, tuple[float, ...]] = {
    **{"sum": (0.0,), "contract": (0.0, 1.0), "largest": (-math.inf,), "smallest": (math.inf,)},
    **{"gram": (0.0, 1.0), "meet": (0.0, 1.0), "decayed": (0.0, 1.0)},
    **{"meet_pull": (0.0, 1.0, 1.0), "decayed_pull": (0.0, 1.0, 1.0)},
    **{"prefix_pull": (0.0,), "suffix_pull": (0.0,), "matrix_pull": (0.0,), "inverse": (1.0,)},
    **{"solve": (1.0, 0.0), "solve_parts": (1.0, 1.0, 1.0, 1.0, 0.0, 0.0)},
}
"""What the padding of operands holds where it matters; that of decays is none."""


def programs() -> Iterator[Program]:
    """Programs that have every op, with their gradients."""
    for cases in test_tile.CASES.values():
        for case in cases:
            program = closed(test_tile.build(case))
            yield from (program, gradient(program))
            yield from (meet_once(gradient(program), "state"), solve_by_inverse(program, "state"))
    for axes in (("t K", "t K", "t K"), ("t", "K", "t V")):
        f = Tiles(SIZES)
        a, b, c = (f.load("input", f"x{n}", tuple(x.split())) for n, x in enumerate(axes))
        for op in ENTRYWISE:
            given = [f.exp(a), b, c][: OPS[op].arity[0]] if op != "where" else [f.gt(a, b), b, c]
            value = f.ew(op, *given)
            yield f.finish({"y": f.where(value, b, c) if OPS[op].kind == "compare" else value})
    yield from _others()


def closed(program: Program) -> Program:
    """The program without ranks and coupled states in its outputs."""
    f = Tiles(program.sizes, program.body)
    few = {v: [a for a in f.axes(v) if a[0] in "#@"] for v in program.outs.values()}
    return f.finish({name: f.sum(v, few[v]) for name, v in program.outs.items()})


def _others() -> Iterator[Program]:
    """What test programs have not: other orders and numbers of axes, ranks, hard decays."""
    f = Tiles(SIZES)
    x, y = f.load("input", "x", ("t", "K", "V")), f.load("input", "y", ("t", "V", "K'"))
    yield f.finish({"y": f.contract(x, y, ("V",))})
    yield f.finish({"y": f.contract(x, f.load("input", "z", ("t", "K'")), ("t",))})
    yield f.finish({"y": f.contract(x, f.load("input", "z", ("V", "P")), ("V",))})
    yield f.finish({"y": f.op("age", (x,), "K")})
    yield f.finish({"y": f.op("before", (x, f.load("state", "s", ("V", "K"))))})
    yield f.finish({"y": f.op("roll", (x,), ("K", -2)), "z": f.op("pooled", (x,))})
    yield f.finish({"y": f.pow(f.abs(x), x), "z": f.pow(2.0, x), "p": f.pow(x, 3.0)})
    yield f.finish({"y": f.exp(f.sqrt(f.size(Size.of("K"))))})
    for space in ((log, strict) for log in (True, False) for strict in (True, False)):
        g = f.neg(f.exp(x)) if space[0] else f.tanh(x)
        d = f.op("levels", (f.sum(g, "V"),), space)
        k, q = f.sum(x, "V"), f.exp(f.sum(x, "V"))
        every = f.op("meet", (q, k, d))
        likes = f.load("input", "a", ("t", "s")), q, k
        yield f.finish({f"y{n}": f.op("pick", (every, i), n) for n, i in enumerate(likes)})
    for op in ("max", "min", "logaddexp"):
        yield f.finish({"y": f.op("tropical", (f.load("input", "w", ("t",)), x), op)})
    for transposed in (True, False):
        pairs = tuple(f.mul(0.3, f.load("input", f"a{n}", ("t", "s"))) for n in range(4))
        sides = tuple(f.load("input", f"b{n}", ("t", "V")) for n in range(2))
        every = f.op("solve_parts", (*pairs, *sides), (2, transposed))
        yield f.finish({f"y{n}": f.op("pick", (every, side), n) for n, side in enumerate(sides)})


@dataclass(frozen=True, slots=True)
class Kernel:
    """An instruction as a kernel: its text, and the values of its program that go in and out."""

    name: str
    program: Program
    at: int
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    axes: tuple[str, ...]
    text: str


def kernels() -> list[Kernel]:
    """One for every instruction, those alike left out."""
    found: dict[object, Kernel] = {}
    for given in programs():
        program = verify(unroll(given))
        for n, inst in enumerate(program.body):
            if inst.op in WRITTEN_BY_KERNEL:
                continue
            operands = [program.body[i] for i in inst.ins]
            plain = [(x.axes, x.value if x.op in ("const", "levels") else None) for x in operands]
            key = (inst.op, inst.value, inst.axes, *plain)
            if key not in found:
                found[key] = written(program, n, f"kernel_{len(found)}")
    return list(found.values())


def block(axis: str) -> str:
    return "BT" if axis in TIME else f"B{letters(axis)}"


def letters(axis: str) -> str:
    return re.sub(r"\W", "", axis.replace("'", "1").replace("+", "and"))


def written(program: Program, n: int, name: str) -> Kernel:
    """The kernel of instruction ``n``."""
    inst = program.body[n]
    index = {"t": Index("t", "live", "BT"), "s": Index("t", "live", "BT")}
    for axis in program.sizes:
        length = size_text(program.sizes[axis])
        index[axis] = Index(f"i{letters(axis)}", f"(i{letters(axis)} < {length})", block(axis))
    f = Formats(program, index, size_text)
    ins = tuple(dict.fromkeys(i for i in inst.ins if program.body[i].op not in ("const", "size")))
    several = results(inst) > 1
    outs = (n,)
    if several:
        outs = tuple(k for k, x in enumerate(program.body) if x.op == "pick" and x.ins[0] == n)
    axes = [a for k in (*ins, *outs) for a in program.body[k].axes]
    axes = [a for a in dict.fromkeys((*axes, *inst.axes)) if a not in TIME]
    lines = ["t = tl.arange(0, BT)", "live = t < count"]
    lines += [f"{index[a].at} = tl.arange(0, {index[a].block})" for a in axes]
    for i in ins:
        chosen = " != 0.0" if program.body[i].op in COMPARED else ""
        lines.append(f"x{i} = tl.load(p{i}{place(f, program.body[i].axes)}){chosen}")
    texts = [Text(f"x{i}") if i in ins else f.text(program.body[i], []) for i in inst.ins]
    text = f.text(inst, texts)
    if not text.number:
        lines.append(f"y = {text.code}")
        text = Text("y")
    for k in outs:
        value = f"y[{program.body[k].value}]" if several else f.tensor(text).code
        lines.append(f"tl.store(o{k}{place(f, program.body[k].axes)}, {value})")
    sizes = ["BT: tl.constexpr", *(f"{index[a].block}: tl.constexpr" for a in axes)]
    masks = ["masks"] if inst.op in MASKED else []
    given = [*(f"p{i}" for i in ins), *(f"o{k}" for k in outs), *masks, "count", *sizes]
    given += [f"{c}: tl.constexpr" for c in ("K", "V", "FLOAT", "PRECISION")]
    body = "".join(f"    {line}\n" for line in lines)
    head = f"@triton.jit\ndef {name}({', '.join(given)}):\n"
    return Kernel(name, program, n, ins, outs, tuple(axes), head + body)


def place(f: Formats, axes: Axes) -> str:
    """Where a tile stands behind its pointer."""
    strides, rest = {}, "1"
    for axis in reversed(axes):
        strides[axis] = f"({rest})"
        rest = f"{f.index[axis].block} * {rest}"
    return f" + {f.offset(strides, axes, {})}" if axes else ""


def module(every: list[Kernel]) -> ModuleType:
    """The kernels, with the device functions they need, as Triton reads them from a file."""
    text = "\n\n".join(kernel.text for kernel in every)
    device = triton_device.device(re.findall(r"\w+", text))
    path = Path(tempfile.mkdtemp()) / "kernels.py"
    path.write_text(f"import triton\nimport triton.language as tl\n\n\n{device}\n\n{text}")
    spec = importlib.util.spec_from_file_location("kernels", path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def tile(array: Any, lengths: list[int], fill: float, dtype: Any) -> Any:
    """An array as a padded tile."""
    import torch

    padded = np.full(lengths, fill, dtype)
    padded[tuple(slice(0, n) for n in array.shape)] = array
    return torch.from_numpy(padded)


def poison(kernel: Kernel, i: int) -> float:
    """What the padding of an operand holds."""
    inst = kernel.program.body[kernel.at]
    if kernel.program.body[i].op == "levels":
        return 0.0 if kernel.program.body[i].value[0] else 1.0
    fills = POISON.get(inst.op, (math.nan,))
    return fills[min(inst.ins.index(i), len(fills) - 1)]


def blocks(kernel: Kernel, dims: dict[str, int], least: int = 1) -> dict[str, int]:
    sizes = {a: kernel.program.sizes[a].evaluate(dims) for a in kernel.axes}
    return {a: max(least, 1 << (n - 1).bit_length()) for a, n in sizes.items()}


def run(found: ModuleType, kernel: Kernel, dims: dict[str, int], count: int, tokens: int) -> Any:
    """The error of a kernel in float64 and in float32."""
    import torch
    import triton.language as tl

    from lacc.runtime.triton_launches import level_masks

    program = kernel.program
    loads = arrays_of(program, dims, count)
    every = Program(program.body, {f"v{k}": k for k in (*kernel.ins, *kernel.outs)}, program.sizes)
    with np.errstate(all="ignore"):
        values = interpret(every, loads, dims, count)
    lengths = {**blocks(kernel, dims), "t": tokens, "s": tokens}
    errors = []
    for dtype, FLOAT in ((np.float64, tl.float64), (np.float32, tl.float32)):
        given = []
        for i in kernel.ins:
            value = values[f"v{i}"]
            value = (
                value.g[..., 0]
                if hasattr(value, "g") and len(program.body[i].axes) == 1
                else getattr(value, "g", value)
            )
            shape = [lengths[a] for a in program.body[i].axes]
            given.append(tile(np.asarray(value), shape, poison(kernel, i), dtype))
        outs = [
            torch.full(
                [lengths[a] for a in program.body[k].axes], math.nan, dtype=given_dtype(dtype)
            )
            for k in kernel.outs
        ]
        constants = {block(a): lengths[a] for a in kernel.axes}
        masked = program.body[kernel.at].op in MASKED
        masks = [level_masks(tokens, torch.device("cpu"))] if masked else []
        getattr(found, kernel.name)[(1,)](
            *given,
            *outs,
            *masks,
            count,
            BT=tokens,
            **constants,
            **dims,
            FLOAT=FLOAT,
            PRECISION="ieee",
        )
        worst = 0.0
        for k, out in zip(kernel.outs, outs):
            want = np.asarray(getattr(values[f"v{k}"], "g", values[f"v{k}"]), np.float64)
            want = want[..., 0] if want.ndim > out.ndim else want
            with np.errstate(over="ignore"):
                want = want.astype(dtype)
            got = out.numpy()[tuple(slice(0, n) for n in want.shape)]
            worst = max(worst, error(got, want))
        errors.append(worst)
    return errors


def given_dtype(dtype: Any) -> Any:
    import torch

    return {np.float64: torch.float64, np.float32: torch.float32}[dtype]


def error(got: Any, want: Any) -> float:
    """The largest error relative to the largest number; infinity where what is not finite
    differs."""
    calm = np.isfinite(want)
    if not np.array_equal(np.isfinite(got), calm) or not np.array_equal(
        np.nan_to_num(got[~calm]), np.nan_to_num(want[~calm])
    ):
        return math.inf
    if not calm.any():
        return 0.0
    scale = max(np.abs(want[calm]).max(), np.finfo(want.dtype).tiny)
    return float(np.abs(got[calm] - want[calm]).max() / scale)


def arrays_of(program: Program, dims: dict[str, int], count: int) -> dict[Any, Any]:
    """Numbers for everything that a program loads."""
    rng = np.random.default_rng(0)
    sizes = {a: size.evaluate(dims) for a, size in program.sizes.items()}
    sizes |= {"t": count, "s": count}
    return {
        inst.value: rng.standard_normal([sizes[a] for a in inst.axes])
        for inst in program.body
        if inst.op == "load"
    }


def numbers() -> dict[str, Any]:
    """The largest errors of each op, float64 and float32."""
    every = kernels()
    found = module(every)
    errors: dict[str, list[float]] = {}
    for kernel in every:
        op = kernel.program.body[kernel.at].op
        small = SETTINGS[1:2] if op in ENTRYWISE else SETTINGS[:2]
        for dims, count, tokens in SETTINGS if op in LARGE else small:
            got = run(found, kernel, dims, count, tokens)
            errors[op] = [max(a, b) for a, b in zip(errors.get(op, [0.0, 0.0]), got)]
    return errors


def binaries(arch: str) -> dict[str, str]:
    """What a target's compiler says of a kernel of each op, "" where nothing; every axis is one of
    16 entries."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    target = GPUTarget("cuda", int(arch), 32) if arch.isdigit() else GPUTarget("hip", arch, 64)
    every = {kernel.program.body[kernel.at].op: kernel for kernel in reversed(kernels())}
    found = module(list(every.values()))
    said = {}
    for op, kernel in every.items():
        pointers = [*(f"p{i}" for i in kernel.ins), *(f"o{k}" for k in kernel.outs)]
        constants: dict[str, Any] = {"K": 14, "V": 14, "BT": 16}
        constants |= {block(a): 16 for a in kernel.axes}
        constants |= {"FLOAT": triton.language.float32, "PRECISION": "bf16"}
        types = dict.fromkeys(pointers, "*fp32") | dict.fromkeys(constants, "constexpr")
        types |= {"masks": "*bf16"} if op in MASKED else {}
        source = ASTSource(getattr(found, kernel.name), types | {"count": "i32"}, constants)
        try:
            triton.compile(source, target=target)
            said[op] = ""
        except triton.CompilationError as error:
            said[op] = f"{error}: {error.__cause__}"
    return said


if __name__ == "__main__":
    print(json.dumps(binaries(sys.argv[2]) if sys.argv[1] == "binaries" else numbers()))
