"""A tile program in, the phase of each of its values out: what can run for all chunks at once, and what must go in order.

    fixed   holds nothing of the tokens: once per call
    local   per chunk, without the carried state
    carry   needs the state a chunk starts from and feeds the one it leaves: chunk after chunk
    output  needs the carried state, feeds nothing carried: per chunk again
"""

from __future__ import annotations

from lacc.tile.program import Program

VARYING = ("input", "stored", "cotangent", "state", "dstate")
PHASES = ("fixed", "local", "carry", "output")


def phases(program: Program, carried: str) -> tuple[str, ...]:
    """The phase of every value; ``carried`` is the kind of load that goes from chunk to chunk, "state" or "dstate"."""
    feeds: set[int] = set()
    for name, n in program.outs.items():
        if name.startswith("state:") and program_carries(program, carried, name):
            feeds.add(n)
    for n in reversed(range(len(program.body))):
        if n in feeds:
            feeds.update(program.body[n].ins)
    varying: set[int] = set()
    needs: set[int] = set()
    found = []
    for n, inst in enumerate(program.body):
        kind = inst.value[0] if inst.op == "load" else ""  # type: ignore[index]
        if kind in VARYING or inst.value == ("index", "t") or any(i in varying for i in inst.ins):
            varying.add(n)
        if kind == carried or any(i in needs for i in inst.ins):
            needs.add(n)
        if n not in varying:
            found.append("fixed")
        elif n not in needs:
            found.append("local")
        else:
            found.append("carry" if n in feeds else "output")
    return tuple(found)


def program_carries(program: Program, carried: str, out: str) -> bool:
    """Whether output ``out`` ("state:S") is what the next chunk starts from."""
    return carried == "dstate" or out.removeprefix("state:") in program.loads(carried)
