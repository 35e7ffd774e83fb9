"""A pass over time in, its functions in Python out, and its entry in the table of passes: what is
prepared once, forward and backward.
"""

from __future__ import annotations

from lacc.backends.base import call_code, tuple_code, tuple_text
from lacc.backends.numpy_lines import Function, unpack
from lacc.backends.numpy_names import dim_lines
from lacc.backends.numpy_phases import Direction, Given
from lacc.spec.model import Spec
from lacc.tile.derive import Pair


class PassText:
    """The functions of one pass over time (or of one token)."""

    def __init__(
        self,
        spec: Spec,
        stage: Pair,
        number: str,
        *,
        reverse: bool = False,
        token: bool = False,
    ) -> None:
        self.number = number
        self.reverse = reverse
        forward, backward = stage.lowered, stage.lowered_back

        def loaded(*kinds: str) -> list[str]:
            both = (forward, backward)
            return list(dict.fromkeys(n for p in both for kind in kinds for n in p.loads(kind)))

        index, outs = loaded("index"), forward.outs
        states = [n.removeprefix("state:") for n in outs if n.startswith("state:")]
        stored = any(n.startswith("stored:") for n in outs)
        self.given = Given(
            inputs=(*loaded("input", "stored"), *(n for n in index if n == "t")),
            fixed=(*loaded("param", "buffer"), *(n for n in index if n != "t")),
            last=tuple(loaded("last")),
            states=tuple(states),
            outputs=tuple(n.removeprefix("stored:") for n in outs if not n.startswith("state:")),
            token=token,
            skips=not token and bool(states) and not stored,
        )
        self.forward = Direction(spec, self.given, forward, "state")
        self.backward = Direction(spec, self.given, backward, "dstate")
        self.prepare = self._prepare(self.forward, "prepare")
        self.prepare_back = self._prepare(self.backward, "prepare_back")

    def entry(self) -> str:
        """What the table of passes says of it, as code."""
        given, number = self.given, self.number
        return call_code(
            "Pass",
            {
                "reverse": self.reverse,
                "inputs": tuple_text(given.inputs),
                "fixed": tuple_text(given.fixed),
                "last": tuple_text(given.last),
                "states": tuple_text(given.states),
                "outputs": tuple_text(given.outputs),
                "prepare": self.prepare and f"prepare_{number}",
                "prepare_back": self.prepare_back and f"prepare_back_{number}",
                "forward": f"forward_{number}",
                "backward": f"backward_{number}",
            },
        )

    def functions(self) -> list[Function]:
        """prepare, forward and backward."""
        token = self.given.token
        what = "one token" if token else "n chunks of C tokens"
        order = ", last to first" if self.reverse else ""
        prepared = (self.prepare, self.prepare_back)
        return [
            *(function for function in prepared if function is not None),
            Function(
                f"def forward_{self.number}(inputs, states, constants, n, C, dims, dtype"
                f"{'' if token else ', outputs=True'}):",
                f"Outputs and next state of {what}{order}.",
                tuple(self.forward.lines(comments=True)),
            ),
            Function(
                f"def backward_{self.number}(inputs, starts, constants, cotangents, dstates, n, "
                "C, dims, dtype):",
                f"The cotangents of what forward_{self.number} takes, from those of what it gives.",
                tuple(self.backward.lines(comments=False)),
            ),
        ]

    def _prepare(self, direction: Direction, name: str) -> Function | None:
        """What one direction needs of values that no token changes, once per call and C."""
        lines, kept = direction.prepared()
        if not kept:
            return None
        local = direction.local
        head = unpack([local["param", n] for n in self.given.fixed], "fixed")
        head += unpack([local["last", n] for n in self.given.last], "last")
        dims = dim_lines(direction.program, lines)
        return Function(
            f"def {name}_{self.number}(C, dims, dtype, fixed, last):",
            f"What {'a token' if self.given.token else 'every chunk'} needs and no token changes.",
            (*head, *dims, *lines, f"return {tuple_code(kept)}"),
        )
