"""A typed spec goes in; what callers of its kernels see comes out, as data of the contract."""

from __future__ import annotations

from collections.abc import Mapping

from lacc.ir.graph import expressions, nodes, waits_for_the_end
from lacc.runtime.contract import Signature, Value
from lacc.runtime.state_fields import axes, fields
from lacc.spec.model import Spec
from lacc.spec.shapes import Size


def signature(spec: Spec, modes: Mapping[str, str], longest: int | None = None) -> Signature:
    """The signature of ``spec``; ``modes`` says why a mode does not exist, "" where it does, and
    ``longest`` how many tokens a chunk may have."""
    waits = waits_for_the_end(spec)
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
        no_step=waits[0] if waits else "",
        no_initial=f"{spec.name} reads T, the length of the whole" if reads_length(spec) else "",
        longest=longest,
    )


def reads_length(spec: Spec) -> bool:
    """Whether the length T of the sequence is a number in the spec."""
    return any(node.op == "T" and not node.args for node in nodes(expressions(spec)))
