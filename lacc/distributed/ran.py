"""A kernel and the arguments of a call go in; what it gave comes out, and the gradients of that, by
what the kernel keeps for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lacc.runtime.kernel import Kernel

Tensors = dict[str, Any]


@dataclass(frozen=True)
class Ran:
    """One call: the leaves that gradients are asked of, by argument and by field of the state, and
    all that it gave, by name."""

    arguments: Tensors
    begun: Tensors
    outputs: Tensors
    state: Tensors

    @property
    def given(self) -> tuple[Tensors, Tensors]:
        """Outputs and state, without what is kept for gradients."""
        outputs, state = ({n: y.detach() for n, y in x.items()} for x in (self.outputs, self.state))
        return outputs, state

    def pull(self, cotangents: Tensors, last: Tensors) -> tuple[Tensors, Tensors]:
        """Gradients of arguments and of the state that the call began with, of ``cotangents`` of
        outputs and ``last`` of the state; may be asked for again."""
        import torch

        wanted = [*self.arguments.values(), *self.begun.values()]
        pairs = [(self.outputs[n], ct) for n, ct in cotangents.items()]
        pairs += [(self.state[n], ct) for n, ct in last.items()]
        pairs = [(y, ct.to(y.dtype)) for y, ct in pairs if y.requires_grad]
        if not pairs or not wanted:
            return {}, {}
        found = torch.autograd.grad(
            [y for y, _ in pairs],
            wanted,
            [ct for _, ct in pairs],
            retain_graph=True,
            allow_unused=True,
        )
        names = [*self.arguments, *self.begun]
        split = len(self.arguments)
        by_name = [(n, g) for n, g in zip(names, found)]
        arguments = {n: g for n, g in by_name[:split] if g is not None}
        return arguments, {n: g for n, g in by_name[split:] if g is not None}


def ran(
    kernel: Kernel, x: Tensors, begun: Tensors, options: Mapping[str, Any], wanted: frozenset[str]
) -> Ran:
    """Calls ``kernel``; ``wanted`` are the arguments that have gradients, and with any the state
    that it begins with has them too."""
    import torch

    signature = kernel.signature
    with torch.enable_grad() if wanted else torch.no_grad():
        leaves = {n: y.detach().requires_grad_() for n, y in x.items() if n in wanted}
        starts = {n: y.detach() for n, y in begun.items()}
        moved = {
            n: y.requires_grad_() for n, y in starts.items() if wanted and y.is_floating_point()
        }
        outputs, state = kernel(**(x | leaves), **options, initial_state=starts or None)
    outputs = outputs if len(signature.outputs) > 1 else (outputs,)
    shown = {o.name: y for o, y in zip(signature.outputs, outputs)}
    return Ran(leaves, moved, shown, dict(state._asdict()))
