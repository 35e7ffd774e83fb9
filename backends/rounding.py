"""What is derived of a spec in, out whether its products of bfloat16 may round their factors to
bfloat16: the rule of all compiled targets."""

from __future__ import annotations

from lacc.tile.attention_pass import AttentionPass
from lacc.tile.derive import Derived
from lacc.tile.program import Program
from lacc.tile.rewrite import for_kernels
from lacc.tile.split import reaches
from lacc.tile.unroll import unroll


def delicate(derived: Derived) -> bool:
    """Whether errors of products grow: where an erase reflects and nothing fades, where outputs are
    divided by what a state gives, whose gradient is a difference of terms as large, and where
    states pass through one another."""
    chunked = (p for p in derived.passes if not isinstance(p, AttentionPass))
    return derived.reflects or any(
        _cancels(unroll(for_kernels(stage.forward, "state"))) for stage in chunked
    )


def _cancels(program: Program) -> bool:
    of_states = [program.loads(kind) for kind in ("state", "last")]
    carried = reaches(program, {n: name for loads in of_states for name, n in loads.items()})
    for inst in program.body:
        divisor = {"div": 1, "rsqrt": 0, "log": 0}.get(inst.op)
        if inst.op == "pow" and program.body[inst.ins[1]].op == "const":
            divisor = 0 if float(program.body[inst.ins[1]].value) < 1 else None
        if divisor is not None and carried[inst.ins[divisor]]:
            return True
        if inst.op == "chain_parts":
            return True
    return False
