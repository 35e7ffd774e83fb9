"""A file name in, what flash-linear-attention's own references give and how its functions are
called out, in that file. Runs in a process of its own: fla brings Triton in."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import warnings
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # so that fla can be imported without a GPU
warnings.filterwarnings("ignore")

import torch  # noqa: E402

B, T, H, K, V, M = 2, 19, 2, 8, 6, 4

# Function of the table, module and name of the reference, its arguments by ours, keywords; "heads
# first" where the reference has [B, H, T, D].
CASES: list[tuple[str, str, str, dict[str, str], dict[str, Any], bool]] = [
    ("chunk_gla", "gla", "naive_recurrent_gla", {"gk": "g"}, {}, False),
    ("fused_recurrent_gla", "gla", "naive_recurrent_gla", {"gk": "gk"}, {}, False),
    ("chunk_simple_gla", "simple_gla", "naive_recurrent_simple_gla", {}, {"scale": 0.7}, False),
    ("fused_recurrent_linear_attn", "linear_attn", "naive_recurrent_linear_attn", {}, {}, False),
    (
        "chunk_linear_attn",
        "linear_attn",
        "naive_recurrent_linear_attn",
        {},
        {"normalize": True},
        False,
    ),
    ("chunk_delta_rule", "delta_rule", "delta_rule_recurrence", {}, {}, True),
    (
        "chunk_gated_delta_rule",
        "gated_delta_rule",
        "naive_recurrent_gated_delta_rule",
        {},
        {"scale": 1.0},
        False,
    ),
    ("chunk_kda", "kda", "naive_recurrent_kda", {}, {}, False),
    ("chunk_iplr_delta_rule", "iplr", "iplr_recurrence", {"alpha": "a", "beta": "b"}, {}, True),
    (
        "chunk_dplr_delta_rule",
        "dplr",
        "dplr_recurrence",
        {"alpha": "a", "beta": "b"},
        {},
        True,
    ),
    ("chunk_rwkv6", "rwkv6", "naive_recurrent_rwkv6", {"q": "r"}, {}, True),
    ("chunk_hgrn", "hgrn", "naive_recurrent_hgrn", {}, {}, False),
    ("chunk_gsa", "gsa", "naive_recurrent_gsa", {}, {}, False),
    ("fused_recurrent_gsa", "gsa", "naive_recurrent_gsa", {}, {"g": None}, False),
]
HOMES = {
    "iplr": "generalized_delta_rule.iplr.naive",
    "dplr": "generalized_delta_rule.dplr.naive",
    "rwkv6": "rwkv6.recurrent_naive",
}


def drawn(name: str, positive: bool) -> dict[str, Any]:
    """Inputs of a function by its own names, within what it takes."""
    r = torch.randn
    unit = torch.nn.functional.normalize
    wide = M if name.endswith("gsa") else K
    found = {
        "q": r(B, T, H, K),
        "r": r(B, T, H, K),
        "k": r(B, T, H, K),
        "v": r(B, T, H, V),
        "s": r(B, T, H, M).sigmoid(),
        "x": r(B, T, 12),
        "g": -torch.rand(B, T, H, wide),
        "gk": -torch.rand(B, T, H, K),
        "w": -torch.rand(B, T, H, K),
        "u": r(H, K),
        "beta": torch.rand(B, T, H),
        "a": -unit(r(B, T, H, K), dim=-1),
        "b": 0.5 * unit(r(B, T, H, K), dim=-1),
    }
    if "simple" in name or "gated" in name:
        found["g"] = -torch.rand(B, T, H)
    if "hgrn" in name:
        found["g"] = -torch.rand(B, T, 12)
    if positive:
        found |= {n: found[n].abs() for n in ("q", "k")}
    if "delta" in name or "kda" in name:
        found["k"] = unit(found["k"], dim=-1)
    return found


def parts(x: Any) -> list[Any]:
    """Tensors of a result, in order."""
    if isinstance(x, torch.Tensor):
        return [x]
    return [] if x is None else [y for part in x for y in parts(part)]


def main(out: str) -> None:
    import fla.ops
    from fla.ops.hgrn import chunk_hgrn, fused_recurrent_hgrn

    from lacc.compat.fla import TABLE

    functions = {"chunk_hgrn": chunk_hgrn, "fused_recurrent_hgrn": fused_recurrent_hgrn}
    takes = {}
    for name in TABLE:
        function = functions.get(name) or getattr(fla.ops, name)
        takes[name] = [
            (p.name, None if p.default is p.empty else repr(p.default), p.default is p.empty)
            for p in inspect.signature(function).parameters.values()
            if p.kind is not p.VAR_KEYWORD
        ]
    results = []
    for name, home, reference, renamed, keywords, heads_first in CASES:
        torch.manual_seed(0)
        module = importlib.import_module(f"fla.ops.{HOMES.get(home, f'{home}.naive')}")
        function = getattr(module, reference)
        every = drawn(name, "normalize" in keywords)
        wanted = [n for n in inspect.signature(function).parameters if n not in keywords]
        ours = {n: renamed.get(n, n) for n in wanted if renamed.get(n, n) in every}
        given = {n: every[o].requires_grad_() for n, o in ours.items()}
        swap = {n: x.transpose(1, 2) if heads_first and x.ndim > 2 else x for n, x in given.items()}
        o, state = function(**swap, output_final_state=True, **keywords)
        o = o.transpose(1, 2) if heads_first else o
        found = [o, *parts(state)]
        cotangents = [torch.randn_like(x) for x in found]
        grads = torch.autograd.grad(found, [*given.values()], cotangents, allow_unused=True)
        results.append(
            {
                "name": name,
                "inputs": {ours[n]: x.detach() for n, x in given.items()},
                "keywords": keywords,
                "found": [x.detach() for x in found],
                "cotangents": cotangents,
                "grads": {ours[n]: g for n, g in zip(given, grads)},
            }
        )
    torch.save({"takes": takes, "results": results}, out)


if __name__ == "__main__":
    main(sys.argv[1])
