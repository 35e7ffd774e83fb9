"""A step function and a state in, an object out that takes one token after another.

This module stands alone: its text is also pasted into the Python part of emitted C files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lacc.runtime.contract import Arrays, Signature, grows


class Stepper:
    """Decoding: ``stepper(q, k, ...)`` takes the inputs of one token [B, H, *axes] in declared
    order, without those omitted when it was made, and gives its outputs. ``state``, as `step` gives
    it, goes on in place; where it grows with every token, it is another one after each. It cannot
    be set: C keeps to the memory of the first. Write to its arrays, or make another stepper."""

    def __init__(
        self,
        signature: Signature,
        step: Callable[..., Any],
        forward: Callable[..., Any],
        arguments: Arrays,
        state: Any = None,
    ) -> None:
        """``step`` and ``forward`` take arguments by name and the contract's keywords. Of
        ``arguments`` params and buffers are those of every token, inputs are like those that come;
        None as a state is where sequences begin. Raises what ``step`` does."""
        self.name, self.step = signature.name, step
        self.like = {a.name: arguments.get(a.name) for a in signature.arguments}
        inputs = (a.name for a in signature.arguments if a.role == "input")
        self.names = tuple(name for name in inputs if self.like[name] is not None)
        self.grows = any(map(grows, signature.states))
        if state is None:
            none = {n: arguments[n][:, None][:, :0] for n in self.names}
            _, begun = forward({**arguments, **none})
            fields = (x.clone() if hasattr(x, "clone") else x.copy() for x in begun)
            state = type(begun)(*fields)  # of its own memory, to be written to
        self.now = state

    @property
    def state(self) -> Any:
        """The state behind the last token."""
        return self.now

    def __call__(self, *inputs: Any) -> Any:
        """The outputs of the next token."""
        self.count(inputs)
        out = None if self.grows else self.now
        arguments = {**self.like, **dict(zip(self.names, inputs))}  # in declared order
        outputs, self.now = self.step(arguments, state=self.now, out=out)
        return outputs

    def count(self, inputs: tuple[Any, ...]) -> None:
        """Raises TypeError for more inputs than there are, or fewer."""
        if len(inputs) != len(self.names):
            names = ", ".join(self.names)
            raise TypeError(f"{self.name}: a token is {names}; got {len(inputs)} arguments")
