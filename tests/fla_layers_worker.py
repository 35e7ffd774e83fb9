"""A layer of flash-linear-attention in, how far it is from itself when its functions are those of
`lacc.compat.fla` out: one line of numbers. Runs in a process of its own, its kernels interpreted.

    python fla_layers_worker.py gla GatedLinearAttention '{"num_heads": 2}'
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
import warnings
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"
warnings.filterwarnings("ignore")

import torch  # noqa: E402
from triton.runtime.autotuner import Autotuner  # noqa: E402
from triton.runtime.interpreter import ASTTransformer  # noqa: E402

WIDTH = 32


def visit_for(self: Any, node: Any) -> Any:
    """Loop variables are tensors, as they are where kernels are compiled."""
    self.generic_visit(node)
    if ast.unparse(node.iter).startswith(("range(", "tl.range(")) and isinstance(
        node.target, ast.Name
    ):
        name = node.target.id
        line = f"{name} = interpreter_semantic.to_tensor({name}, False)"
        node.body.insert(0, ast.copy_location(ast.parse(line).body[0], node.body[0]))
    return node


def ran(layer: Any, x: Any) -> list[Any]:
    """What a layer gives without gradients, and with them: output and all gradients."""
    with torch.no_grad():
        found = [layer.eval()(x)[0]]
    layer.train().zero_grad()
    x = x.clone().requires_grad_()
    o = layer(x)[0]
    o.square().sum().backward()
    return [
        *found,
        o.detach(),
        x.grad,
        *(p.grad.clone() for p in layer.parameters() if p.grad is not None),
    ]


def main(home: str, name: str, how: str) -> None:
    Autotuner._bench = lambda self, *args, config, **rest: [0.0, 0.0, 0.0]  # the first will do
    ASTTransformer.visit_For = visit_for
    from lacc.compat import fla

    module = importlib.import_module(f"fla.layers.{home}")
    torch.manual_seed(0)
    layer = getattr(module, name)(hidden_size=WIDTH, layer_idx=0, **json.loads(how))
    x = torch.randn(2, 24, WIDTH)
    wanted = ran(layer, x)
    swapped = [function for function in fla.TABLE if hasattr(module, function)]
    for function in swapped:
        setattr(module, function, getattr(fla, function))
    found = ran(layer, x)
    assert swapped and len(found) == len(wanted)
    print(max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, wanted)))


if __name__ == "__main__":
    main(*sys.argv[1:])
