"""A tile program and arrays in, arrays out: the definition of what a tile program means.

Arrays carry any leading axes (batch, heads, chunks) before the tile's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lacc.ir.ops import OPS
from lacc.tile.meaning import Frame, place
from lacc.tile.ops import TILE_OPS
from lacc.tile.program import Program


def interpret(
    program: Program,
    loads: Mapping[tuple[str, str], Any],
    dims: Mapping[str, int],
    tokens: int,
    dtype: Any = np.float64,
) -> dict[str, Any]:
    """The outputs of ``program`` on ``loads`` ((kind, name) -> array) for a chunk of ``tokens``; an
    argument that is omitted is None."""
    sizes = {axis: size.evaluate(dims) for axis, size in program.sizes.items()}
    sizes |= {"t": tokens, "s": tokens, **dims}
    values: list[Any] = []
    for inst in program.body:
        ins = tuple(program.body[i].axes for i in inst.ins)
        args = [values[i] for i in inst.ins]
        if inst.op == "load":
            x = loads[inst.value]
            values.append(None if x is None else np.asarray(x, dtype))
        elif inst.op in TILE_OPS:
            values.append(TILE_OPS[inst.op].numpy(inst.value, Frame(inst.axes, ins, sizes), *args))
        else:
            meaning = OPS[inst.op].numpy
            assert meaning is not None
            values.append(meaning(*(place(a, x, inst.axes) for a, x in zip(args, ins))))
    return {name: values[n] for name, n in program.outs.items()}
