"""A typed spec goes in; what callers of its kernels see comes out, as data of the contract."""

from __future__ import annotations

from collections.abc import Mapping

from lacc.ir.graph import expressions, nodes
from lacc.runtime.contract import Signature, Value
from lacc.runtime.memory import axes, fields
from lacc.spec.model import Spec
from lacc.spec.shapes import Size


def signature(spec: Spec, modes: Mapping[str, str]) -> Signature:
    """The signature of ``spec``; ``modes`` says why a mode does not exist, "" where it does."""
    named = {name: dim for name, dim in spec.dims.items() if dim.size == Size.of(name)}
    return Signature(
        name=spec.ascii,
        dims={name: dim.default for name, dim in named.items()},
        pinned=tuple(name for name, dim in named.items() if dim.pinned),
        arguments=tuple(
            Value(
                a.ascii,
                a.role,
                axes(a.shape),
                a.per,
                optional=a.default is not None,
                draw=a.draw or "",
            )
            for role in ("input", "param", "buffer")
            for a in spec.args
            if a.role == role
        ),
        outputs=tuple(Value(o.ascii, "output", axes(o.shape), o.per) for o in spec.outputs),
        states=tuple(field.value for field in fields(spec)),
        modes=dict(modes),
        no_step=no_step(spec),
        no_initial=f"{spec.name} reads T, the length of the whole" if reads_length(spec) else "",
    )


def reads_length(spec: Spec) -> bool:
    """Whether the length T of the sequence is a number in the spec."""
    return any(node.op == "T" and not node.args for node in nodes(expressions(spec)))


def no_step(spec: Spec) -> str:
    """Why there is no step, token by token, "" where there is one."""
    if reads_length(spec):
        return f"{spec.name} reads T, the length of the whole sequence"
    for s in spec.states:
        if s.direction == "backward":
            return f"state {s.name} of {spec.name} runs backward, from the last token"
    for node in nodes(expressions(spec)):
        if node.op == "state" and node.value[1] == "T":
            return f"{spec.name} reads {node.value[0]}[T], the state after the last token"
    return ""
