"""A model of Hugging Face transformers in, the same model on kernels of lacc out.

    from lacc.compat.transformers import use
    print(use(model))                     # what runs on which spec now, and what was left, and why

Modules change, classes do not: a method that calls a known function gets another meaning of that
function's name, and `restore` takes it away again. Weights, caches and configs stay as they are.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from torch.nn import Module

from lacc.compat import linears, mixers, scans
from lacc.compat.rebinding import meaning, reads, rebuilt

VERSION = "5.24"
"""The transformers whose functions these stand in for."""

_MARK = "lacc_stands_in"

_gated = scans.delta_rule("delta_layer", "chunk_gated_delta_rule")
_kda = scans.delta_rule("kda_layer", "chunk_kda")

FUNCTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "torch_chunk_gated_delta_rule": (_gated, "delta_layer.la"),
    "torch_recurrent_gated_delta_rule": (_gated, "delta_layer.la"),
    "chunk_kimi_delta_attention": (_kda, "kda_layer.la"),
    "recurrent_kimi_delta_attention": (_kda, "kda_layer.la"),
    "mamba_selective_scan": (scans.selective_scan, "selective_scan.la"),
    "mamba_inner_fn": (scans.no_fused_layer, "selective_scan.la"),
    "mamba2_chunk_scan": (scans.ssd_scan, "ssd.la"),
    "mamba2_selective_state_update": (scans.ssd_step, "ssd.la"),
    "mamba2_split_conv1d_scan_combined": (scans.no_fused_layer, "ssd.la"),
    "rwkv_linear_attention": (scans.wkv, "rwkv4.la"),
}
"""Of each function that methods call by a global name: what stands in for it, and its spec."""

AROUND: dict[str, tuple[Callable[[Any], Callable[..., Any]], str]] = {
    "causal_conv1d_fn": (scans.convolution, "parts of tokens, or causal_convolution.la on a GPU"),
    "causal_conv1d_update": (scans.convolution_step, "a sum of products"),
}
"""Of each function next to those, for some of its arguments: what makes of it what stands in for
it, and what that is."""

STANDS_IN = {word: row[1] for word, row in (*FUNCTIONS.items(), *AROUND.items())}


def has(*attributes: str) -> Callable[[Module], bool]:
    """Whether a module has all of ``attributes``."""
    return lambda module: all(hasattr(module, word) for word in attributes)


def gates_by_silu(module: Module) -> bool:
    """Whether a module is a norm whose rows are gated by SiLU."""
    known = has("weight", "variance_epsilon", "activation")
    return known(module) and module.activation in ("silu", "swish")


METHODS: tuple[tuple[str, Callable[[Module], bool], Callable[..., Any], str], ...] = (
    (
        "_rnn_scan",
        has("recurrent_param", "recurrent_gate_weight"),
        scans.rg_lru_scan,
        "gated_sum.la",
    ),
    ("forward", has("slope_rate", "qkv_proj", "output_gate"), scans.lightning, "simple_gla.la"),
    ("forward", has("chunkwise_kernel_fn", "step_kernel_fn"), scans.mlstm, "mlstm_eps.la"),
    ("forward", gates_by_silu, scans.gated_norm, "gated_norm.la"),
)
"""Of each method that is replaced as a whole: how its module is known, what stands in for it, and
its spec."""

MIXERS: tuple[tuple[str, Callable[[Module], bool], Callable[..., Any], str], ...] = (
    ("forward", mixers.is_grouped_delta, mixers.grouped_delta, "delta_mixer.la"),
)
"""Methods that take a shorter way around those functions: how their modules are known, what makes
of a method that has them one that goes it, and the spec of that way."""

LEFT = {
    "mamba_selective_state_update": "PyTorch takes less time for one token of it",
}
"""Functions that stay as they are next to those above, and why."""


@dataclass(frozen=True)
class Replaced:
    """A function or method of one module, and what stands in for it: a spec, mostly."""

    module: str
    function: str
    by: str


@dataclass(frozen=True)
class Left:
    """A function of one module, or the whole of it, that stays, and why."""

    module: str
    function: str
    why: str


@dataclass(frozen=True)
class Report:
    """What `use` did to ``model``. As a context manager it restores the model at its end."""

    model: Module
    replaced: tuple[Replaced, ...]
    left: tuple[Left, ...]

    def restore(self) -> None:
        """Takes the kernels out of the model again."""
        restore(self.model)

    def __enter__(self) -> Report:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.restore()

    def __str__(self) -> str:
        """One line for each function and spec, with its number of modules, then what was left."""
        lines = [f"{type(self.model).__name__}, on kernels of lacc:"]
        lines += counted(f"  {x.function} -> {x.by}" for x in self.replaced)
        lines += ["left as it was:"] if self.left else []
        lines += counted(f"  {x.function}: {x.why}" for x in self.left)
        return "\n".join(lines)


def counted(lines: Iterator[str]) -> list[str]:
    """Each line once, with how often it came."""
    found: dict[str, int] = {}
    for line in lines:
        found[line] = found.get(line, 0) + 1
    return [f"{line} ({n} module{'s' * (n > 1)})" for line, n in found.items()]


def use(model: Module) -> Report:
    """Puts kernels of lacc in place of the linear-attention functions of ``model``, for
    ``target="auto"``: C on a CPU, Triton on a GPU. They are compiled when they are first called.

    A module as a whole does not pickle in between: `restore` first (state dicts are as before).
    Raises TypeError where ``model`` is no module, ValueError where nothing in it is known here.
    """
    if not isinstance(model, Module):
        raise TypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    replaced: list[Replaced] = []
    left: list[Left] = []
    for path, module in model.named_modules():
        kind = type(module)
        for name, function in methods(kind):
            new, known = stand_in(module, name, function)
            if new is not None and name in vars(module):
                why = f"{name} is replaced on the module already"
                left += [Left(path, word, why) for word, _ in known]
            elif new is not None:
                vars(new)[_MARK] = True
                setattr(module, name, types.MethodType(new, module))
                replaced += [Replaced(path, word, by) for word, by in known]
                stays = sorted(reads(function) & LEFT.keys())
                left += [Left(path, word, LEFT[word]) for word in stays]
    if not replaced:
        why = "; ".join(sorted({f"{x.function}: {x.why}" for x in left}))
        raise ValueError(
            f"model: nothing in {type(model).__name__} is known here"
            + (f" ({why})" if why else "")
            + f"; known are modules that call {', '.join(FUNCTIONS)}, "
            "RG-LRU, MiniMax's lightning attention and the mLSTM of xLSTM"
        )
    return Report(model, tuple(replaced), tuple(left))


def methods(kind: type) -> list[tuple[str, types.FunctionType]]:
    """The methods that a class of a model defines; those of torch itself are not looked at."""
    found: dict[str, types.FunctionType] = {}
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] != "torch":
            for name, x in vars(base).items():
                if isinstance(x, types.FunctionType):
                    found.setdefault(name, x)
    return sorted(found.items())


def stand_in(
    module: Module, name: str, function: types.FunctionType
) -> tuple[types.FunctionType | None, list[tuple[str, str]]]:
    """What takes the place of a method of ``module``, and the names and specs that it is about."""
    for method, known, new, spec in METHODS:
        if name == method and known(module):
            copy = rebuilt(new, {})  # type: ignore[arg-type]  # a copy, to be marked
            return copy, [(f"{type(module).__name__}.{name}", spec)]
    called = reads(function)
    if not called & FUNCTIONS.keys():
        return None, []
    meant = {word: FUNCTIONS[word][0] for word in called & FUNCTIONS.keys()}
    for word in called & AROUND.keys():
        meant[word] = AROUND[word][0](meaning(function, word))
    made = rebuilt(function, meant)
    found = [(word, STANDS_IN[word]) for word in sorted(meant)]
    for method, is_known, around, spec in MIXERS:
        if name == method and is_known(module):
            made = around(made)
            found.append((f"{type(module).__name__}.{name}", spec))
            found += [("in_proj_qkvz, out_proj", "projection.la")] if linears.gains() else []
    return made, found


def restore(model: Module) -> None:
    """Takes out of ``model`` what `use` put in; nothing happens where it put nothing in."""
    for module in model.modules():
        for name, x in list(vars(module).items()):
            if isinstance(x, types.MethodType) and _MARK in vars(x.__func__):
                delattr(module, name)
