"""A pass over time in, its C functions out: forward and backward, each for one sequence and head,
and what calls them for all of these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lacc.backends.c_chunks import ChunkKernel
from lacc.backends.c_kernel import Array, CKernel
from lacc.backends.c_text import free_dims, identifier, size
from lacc.backends.c_tokens import TokenKernel
from lacc.spec.model import Spec
from lacc.tile.derive import Pair
from lacc.tile.partition import Part, from_starts, in_one_loop
from lacc.tile.program import TIME, Program, Tiles, prune
from lacc.tile.rewrite import for_one_loop
from lacc.tile.split import led_by
from lacc.tile.unroll import unroll


@dataclass(frozen=True, slots=True)
class Function:
    """An exported function and the kernel that it calls; ``arrays`` are the constants that number
    its arrays and what these are, none where they are those of the function before."""

    name: str
    kernel: CKernel
    arrays: tuple[tuple[str, str], ...]


class CPass:
    """The functions of one pass over time, or of one token (``number`` "token")."""

    def __init__(
        self, spec: Spec, pair: Pair, number: str, prefix: str, *, reverse: bool = False
    ) -> None:
        self.spec, self.number, self.prefix, self.reverse = spec, number, prefix, reverse
        self.by_token = number == "token"
        forward = self.forward = unroll(for_one_loop(pair.forward, "state"))
        backward = self.backward = _whole(forward, unroll(for_one_loop(pair.backward, "dstate")))
        both = (forward, backward)
        self.states = tuple(
            n.removeprefix("state:") for n in forward.outs if n.startswith("state:")
        )
        needed = {s for s in self.states if s in backward.loads("state")}
        if self.by_token:
            needed = led_by(forward, needed)
        self.needed = tuple(s for s in self.states if s in needed)
        """States that the way back needs as it finds them."""
        self.inputs = _loaded(both, "input", "stored")
        self.inputs += tuple(
            label for label in _loaded(both, "index") if label == "t" and label not in self.inputs
        )
        index = tuple(label for label in _loaded(both, "index") if label != "t")
        self.fixed = _loaded(both, "param", "buffer") + index
        self.last = _loaded(both, "last")
        outs = [n for n in forward.outs if not n.startswith("state:")]
        self.outputs = tuple(n.removeprefix("stored:") for n in outs)
        self.arrays_forward = self._numbered("forward", self._forward_arrays())
        self.arrays_backward = self._numbered("backward", self._backward_arrays())
        self.kernels = [self._forward(), self._kept(), self._backward(), *self._adjoint()]
        self.linear = len(self.kernels) > 3

    def _forward_arrays(self) -> list[Array]:
        roles = {
            "in": self.inputs,
            "fixed": self.fixed,
            "last": self.last,
            "begun": self.states,
            "out": self.outputs,
            "ended": self.states,
            "start": self.states,
        }
        return [Array(role, label) for role, labels in roles.items() for label in labels]

    def _backward_arrays(self) -> list[Array]:
        roles = {
            "in": self.inputs,
            "fixed": self.fixed,
            "last": self.last,
            "start": self.states,
            "dout": self.outputs,
            "dended": self.states,
            "din": self.inputs,
            "dfixed": self.fixed,
            "dlast": self.last,
            "dbegun": self.states,
        }
        return [Array(role, label) for role, labels in roles.items() for label in labels]

    def _numbered(self, way: str, arrays: Iterable[Array]) -> dict[Array, str]:
        """The C expression of each array of a call."""
        stem = identifier(f"{self.prefix}_{way}_{self.number}").upper()
        return {a: f"x[{stem}_{identifier(a.role).upper()}_{identifier(a.label)}]" for a in arrays}

    def _forward(self) -> CKernel:
        return self._along("forward", self.forward)

    def _kept(self) -> CKernel:
        """What the way back, and later passes, need of the way there."""
        outs = {n: v for n, v in self.forward.outs.items() if ":" in n}
        return self._along("keep", prune(Program(self.forward.body, outs, self.forward.sizes)))

    def _along(self, way: str, program: Program) -> CKernel:
        if self.by_token:
            part = Part("token", program, self.states)
        else:
            (part,) = in_one_loop(program, "state", ())
        return self._kernel(f"{way}_{self.number}", part, self.arrays_forward)

    def _backward(self) -> CKernel:
        program = self.backward
        if self.by_token:
            carries = tuple(
                s
                for s in self.states
                if f"state:{s}" in program.outs or s in program.loads("dstate")
            )
            outs = {f"state:{s}": self.forward.outs[f"state:{s}"] for s in self.needed}
            remade = prune(Program(self.forward.body, outs, self.forward.sizes))
            name = f"backward_{self.number}"
            part = Part("token", remade, self.needed)
            again = self._kernel(f"{name}_again", part, self.arrays_backward)
            return self._kernel(name, Part("token", program, carries), self.arrays_backward, again)
        (part,) = in_one_loop(from_starts(program), "dstate", ())
        return self._kernel(f"backward_{self.number}", part, self.arrays_backward)

    def _adjoint(self) -> list[CKernel]:
        """Of the way back what finds the gradient of the initial state, where that needs no state:
        where the pass is linear in it."""
        program = self.backward
        outs = {n: v for n, v in program.outs.items() if n.startswith("state:")}
        alone = prune(Program(program.body, outs, program.sizes))
        if self.by_token or not outs or alone.loads("state") or alone.loads("last"):
            return []
        (part,) = in_one_loop(alone, "dstate", ())
        return [self._kernel(f"adjoint_{self.number}", part, self.arrays_backward)]

    def _kernel(
        self, name: str, part: Part, arrays: dict[Array, str], again: CKernel | None = None
    ) -> CKernel:
        dims = tuple(free_dims(self.spec))
        backward = arrays is self.arrays_backward and not name.endswith("_again")
        kernel = TokenKernel if self.by_token else ChunkKernel
        return kernel(
            name,
            f"{self.prefix}_run",
            part,
            arrays,
            dims,
            needed=() if arrays is self.arrays_backward else self.needed,
            backward=backward,
            again=again,
        )

    def functions(self) -> list[Function]:
        """What the file offers of the pass."""
        ways: dict[str, dict[Array, str]] = {"forward": self.arrays_forward, "keep": {}}
        ways |= {"backward": self.arrays_backward, "adjoint": {}}
        shapes = self._shapes()
        return [
            Function(
                f"{self.prefix}_{way}_{self.number}",
                kernel,
                tuple(
                    (code[2:-1], f"{SAID[a.role]} {a.label}{shapes.get(a.label, '')}")
                    for a, code in arrays.items()
                ),
            )
            for (way, arrays), kernel in zip(ways.items(), self.kernels)
        ]

    def _shapes(self) -> dict[str, str]:
        """What an entry of each array is a tile of: " [K, V]", "" for a number."""
        found = {}
        for program in (self.forward, self.backward):
            named = {inst.value[1]: inst.axes for inst in program.body if inst.op == "load"}
            named |= {name: program.body[n].axes for name, n in program.outs.items()}
            for name, axes in named.items():
                sizes = [size(program.sizes[a]).code for a in axes if a not in TIME]
                label = name.rpartition(":")[2].removesuffix("_start")
                found[label] = f" [{', '.join(sizes)}]" if sizes else ""
        return found


SAID = {
    "in": "input",
    "fixed": "param",
    "last": "final state",
    "begun": "before the first token, state",
    "out": "output",
    "ended": "after the last token, state",
    "start": "at the start of each chunk, state",
    "dout": "cotangent of",
    "dended": "cotangent of the final state",
    "din": "gradient of",
    "dfixed": "gradient of",
    "dlast": "gradient of the final state",
    "dbegun": "gradient of the initial state",
}
"""What the arrays of each role are."""


def _whole(forward: Program, backward: Program) -> Program:
    """The way back with a gradient, if of zeros, of every input that either way takes."""
    loads = forward.loads("input"), backward.loads("input")
    taken = {f"input:{x}": forward.body[n].axes for x, n in loads[0].items()}
    taken |= {f"input:{x}": backward.body[n].axes for x, n in loads[1].items()}
    if not (missing := [name for name in taken if name not in backward.outs]):
        return backward
    f = Tiles({**forward.sizes, **backward.sizes}, backward.body)
    zeros = {name: f.expand(f.const(0.0), taken[name]) for name in missing}
    return f.finish({**backward.outs, **zeros})


def _loaded(programs: Sequence[Program], *kinds: str) -> tuple[str, ...]:
    names = [n for p in programs for kind in kinds for n in p.loads(kind)]
    return tuple(dict.fromkeys(names))
