"""Derived tile programs in, one stand-alone file of torch and Triton out: the forward of one pass.

The kernel is *fused*: a program holds the state of one sequence, head and block of columns on the
chip and goes through the chunks in order. Its body is the tile program, about a line a value.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable

from lacc import __version__
from lacc.backends import paste, triton_device
from lacc.backends.base import environment, lead, public_arguments, tuple_code, unused
from lacc.backends.triton_kernel import RESERVED, Kernel, Launch, host_size
from lacc.backends.triton_text import obstacle
from lacc.spec.model import Output, Spec, State
from lacc.spec.shapes import Shape, Size
from lacc.tile.attention_pass import AttentionPass
from lacc.tile.derive import Derived
from lacc.tile.pad import fill_padding
from lacc.tile.program import Program

HOST = "lacc.runtime.tensors"
CHUNK, BLOCK, WARPS = 32, 64, 8


def lacks(spec: Spec, derived: Derived) -> str:
    """Why there is no Triton forward of a spec, "" where there is."""
    if (found := derived.modes["chunk"]) is not None:
        return found.reason
    if len(derived.passes) != 1:
        return f"it takes {len(derived.passes)} passes over time, and one is lowered so far"
    (only,) = derived.passes
    if isinstance(only, AttentionPass):
        return "it attends to tokens, which is not lowered yet"
    if only.stage.direction == "backward":
        return "it runs backward in time, which is not lowered yet"
    for arg in spec.args:
        if arg.default is not None or arg.draw is not None:
            return f"{arg.ascii} may be omitted, which is not lowered yet"
        if arg.per == "position":
            return f"{arg.ascii} is a table by position, which is not lowered yet"
    if derived.counts:
        return "it counts tokens, which is not lowered yet"
    back = [*derived.delays, *(field.removesuffix("_past") for field in derived.chains)]
    if back:
        return f"it reads {back[0]} with a delay, which is not lowered yet"
    if derived.exponents:
        return (
            f"the state {next(iter(derived.exponents))} is (stabilized), which is not lowered yet"
        )
    if derived.initial is not None:
        return "it has a state that does not start at 0, which is not lowered yet"
    values: list[State | Output] = [*spec.states, *spec.outputs]
    for value in values:
        if value.per != "head":
            return f"{value.ascii} is per {value.per}, which is not lowered yet"
    reason = obstacle(only.forward)
    state = _state_beyond(derived, only.forward) if reason else ""
    return f"{state}, which is not lowered yet" if state else reason


def _state_beyond(derived: Derived, program: Program) -> str:
    """The state whose form is what no kernel carries, "" where it is another thing."""
    for recurrence in derived.recurrences:
        names = ", ".join(recurrence.states)
        if recurrence.coupling is not None:
            return f"the states {names} need one another"
        if recurrence.tropical is not None:
            return f"the state {names} is a running {recurrence.tropical.op}"
        if recurrence.rank > 1:
            return f"the state {names} has an erase of rank {recurrence.rank}"
        if recurrence.transition == "elementwise":
            return f"the state {names} has a decay of its own for every entry"
    if any(inst.op == "scan" for inst in program.body):
        return "it has a state that is scanned entry by entry"
    return ""


def public_name(spec: Spec) -> str:
    """The function of the emitted file: the variant's name, with underscores where it is taken."""
    taken = {*RESERVED, *triton_device.names(), *paste.names(HOST), *keyword.kwlist}
    return unused(spec.ascii, taken)


def to_triton(spec: Spec, derived: Derived, chunk: int | None = None) -> str:
    """The text of the module with ``NAME(...)``; `lacks` must have nothing to say."""
    (only,) = derived.passes
    assert not isinstance(only, AttentionPass)
    program = fill_padding(only.forward)
    launch = plan(program, chunk)
    kernel = Kernel(spec, program, launch)
    body = "\n".join([*kernel.before, *kernel.chunk, *kernel.after])
    arguments = public_arguments(spec)
    plain = [dim for dim in spec.dims.values() if dim.size == Size.of(dim.name)]
    template = environment().get_template("triton.py.j2")
    return template.render(
        spec=spec,
        version=__version__,
        launch=launch,
        public=public_name(spec),
        k=kernel,
        device=triton_device.device(re.findall(r"\w+", body)),
        host=paste.body(HOST),
        arguments=arguments,
        axes={a.name: _axes(lead(a.arg), a.arg.shape) for a in arguments},
        pinned={dim.name: dim.default for dim in plain if dim.pinned},
        defaults={dim.name: dim.default for dim in plain},
        states={s.ascii: _axes("BH", s.shape) for s in kernel.states},
        outputs={o.ascii: _axes("BTH", o.shape) for o in spec.outputs},
    )


def plan(program: Program, chunk: int | None = None) -> Launch:
    """The layout of the fused kernel, with its reasons."""
    split = free_axis(program)
    why = ["fused: the state stays on the chip, inputs and outputs are touched once"]
    if split:
        why.append(f"blocks of {BLOCK} of {split}, over which nothing is summed: more programs")
    else:
        why.append("the whole state in one program, since every axis of it is summed over")
    given = "as asked" if chunk else "twice as many spill registers"
    why.append(f"{chunk or CHUNK} tokens a chunk: {given}")
    return Launch(chunk or CHUNK, split, BLOCK, WARPS, tuple(why))


def free_axis(program: Program) -> str:
    """An axis of a carried matrix that may be cut into blocks, as nothing is summed over it; "" for
    none.
    """
    bound: set[str] = set()
    for inst in program.body:
        match inst.op:
            case "contract" | "sum" | "largest" | "smallest":
                bound.update(inst.value)
            case "gram":
                bound.update(a for i in inst.ins for a in program.body[i].axes)
            case "rename":
                bound.update(a for pair in inst.value for a in pair)
            case "eye":
                bound.update(inst.axes)
    ends = [program.body[n].axes for name, n in program.outs.items() if name.startswith("state:")]
    free = (a for axes in ends if len(axes) == 2 for a in reversed(axes) if a not in bound)
    return next(free, "")


def _axes(first: Iterable[str], shape: Shape) -> str:
    """The axes of a whole array: a name, a number, or a function of the sizes ``n`` by name."""
    found = [f'"{axis}"' for axis in first]
    for size in shape:
        if size == Size.of(str(size)):
            found.append(f'"{size}"')
        else:
            whole = size.constant is not None
            found.append(str(size.constant) if whole else f"lambda n: {host_size(size)}")
    return tuple_code(found)
