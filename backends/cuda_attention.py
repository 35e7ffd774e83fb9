"""Attentions of a spec in, the CUDA kernels that they share and their arguments out: their bodies
call functions of `templates/cuda/attention.cuh`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce

from lacc.backends.c_text import dim, size, times
from lacc.backends.cuda_arrays import READ, WRITTEN, Argument
from lacc.backends.cuda_places import Tile
from lacc.spec.shapes import Shape
from lacc.tile.attention_pass import AttentionPass

ARRAYS = {
    "query": "queries [B, T, heads / q_per, K]",
    "keys": "keys [B, T, heads / k_per, K]",
    "values": "values [B, T, heads / v_per, V]",
    "sink": "one more logit of each token, whose value is 0 [B, T, heads / sink_per], or null",
    "past_keys": "keys before the call, the last of them last [N, heads / pk_per, P, K]",
    "past_values": "their values [N, heads / pv_per, P, V]",
    "output": "what each token attends to [B, T, H, V], 0 where it sees nothing",
    "d_output": "the cotangent of output [B, T, H, V]",
    "d_query": "the gradient of query for each head [B, T, H, K]",
    "d_sink": "that of sink [B, T, H], or null",
    "d_keys": "the gradient of keys for each entry, as keys",
    "d_values": "that of values",
}
NUMBERS = {
    "base": "the largest logit of each query [B, H, T], 0 where there is none",
    "share": "1 / the sum of exp(logit - base) [B, H, T], 0 where there is none",
    "mean": "the mean cotangent of the shares of each query [B, H, T]",
}
WHOLE = {
    "cu": "where sequences begin [N + 1], or null",
    "position": "how many tokens ever were before the call [N], null where P is 0",
}
SIZES = {
    "T": "tokens of a row",
    "P": "rows of the past",
    "N": "sequences",
    "H": "heads",
    "tiles": "tiles of 64 tokens, an upper bound",
    "entries": "entries of the gradients of keys and values along heads",
    "K": "entries of a query",
    "V": "entries of a value",
    "window": "how many tokens a token sees, 0 for all",
}
STEPS = {
    "q": ("query", "btdh"),
    "k": ("keys", "btdh"),
    "v": ("values", "btdh"),
    "sink": ("sink", "bth"),
    "pk": ("past_keys", "ntdh"),
    "pv": ("past_values", "ntdh"),
    "ct": ("d_output", "btdh"),
    "dk": ("d_keys", "bth"),
    "dv": ("d_values", "bth"),
}
AXES = {"b": "row", "n": "sequence", "t": "token", "h": "head", "d": "entry"}
FORWARD = ("query", "keys", "values", "sink", "past_keys", "past_values")


@dataclass(frozen=True, slots=True)
class Named:
    """The name of a kernel, and what it does."""

    name: str
    doc: str


@dataclass(frozen=True, slots=True)
class AttentionKernel:
    """A kernel that ``calls`` a function of the library with its ``tiles``; ``pointers`` and
    ``numbers`` are those of its arguments by name."""

    what: Named
    programs: str
    pointers: Mapping[str, Argument]
    numbers: Mapping[str, Argument]
    calls: str
    tiles: tuple[Tile, ...]
    dims: tuple[str, ...]
    blocks: str = "1."
    together: str = ""
    stages: bool = True

    def sizes(self) -> list[str]:
        """The dims that its tiles are as large as."""
        return [f"constexpr int {dim(name)} = D_{name};" for name in self.dims]

    def lines(self) -> list[str]:
        """The body of the function."""
        names = ", ".join(f"lies.tile({k}, a.arena)" for k in range(len(self.tiles)))
        return [
            "constexpr auto lies = tiles();",
            f"{self.calls}(a, a.program0 + blockIdx.x, {names});",
        ]


def attention_kernels(attentions: Iterable[AttentionPass]) -> list[AttentionKernel]:
    """The kernels of the attentions of a file, none where there are none."""
    shapes = [(p.keys.shape, p.values.shape) for p in attentions]
    if not shapes:
        return []
    dims = tuple(sorted({d for pair in shapes for shape in pair for n in shape for d in n.dims}))
    K, V = (_largest(list(dict.fromkeys(map(_entries, each)))) for each in zip(*shapes))
    queries, entries = "tiles * H", "tiles * entries (of a past: N times its tiles of 64 rows)"
    places = (*_steps("q", 1), *_steps("k", 1), *_steps("v", 1), *_steps("sink", 1))
    places += (*_steps("pk", 1), *_steps("pv", 1))
    sizes = ("T", "P", "N", "H", "tiles", "K", "V", "window")
    pulled = ("T", "P", "N", "H", "entries", "K", "V", "window")
    return [
        AttentionKernel(
            Named("attend_forward", "What 64 queries of a head attend to."),
            queries,
            _pointers(*FORWARD, "output", "base", "share"),
            _numbers(sizes, places),
            "attended",
            _tiles(
                query=f"OWN * {K}",
                keys=f"OTHERS * {K}",
                values=f"OTHERS * {V}",
                logits="OWN * OTHERS",
                out=f"OWN * {V}",
                rows="3 * OWN",
            ),
            dims,
        ),
        AttentionKernel(
            Named("attend_queries", "Gradients of 64 queries of a head, and of their sinks."),
            queries,
            _pointers(
                *(*FORWARD, "d_output", "output", "base", "share", "mean", "d_query", "d_sink")
            ),
            _numbers(sizes, (*places, *_steps("ct"))),
            "pulled_queries",
            _tiles(
                query=f"OWN * {K}",
                d_query=f"OWN * {K}",
                ct=f"OWN * {V}",
                keys=f"OTHERS * {K}",
                values=f"OTHERS * {V}",
                shares="OWN * OTHERS",
                rows="3 * OWN",
            ),
            dims,
        ),
        AttentionKernel(
            Named(
                "attend_keys",
                "Gradients of 64 keys and values, where P is not 0 of those before the call.",
            ),
            entries,
            _pointers(
                *("query", "keys", "values", "d_output", "base", "share", "mean"),
                *("d_keys", "d_values"),
            ),
            _numbers(
                pulled,
                (
                    *(*_steps("q", 1), *_steps("k", 1), *_steps("v", 1)),
                    *(*_steps("ct"), *_steps("dk"), *_steps("dv")),
                ),
            ),
            "pulled_keys",
            _tiles(
                keys=f"OWN * {K}",
                d_keys=f"OWN * {K}",
                values=f"OWN * {V}",
                d_values=f"OWN * {V}",
                query=f"OTHERS * {K}",
                ct=f"OTHERS * {V}",
                shares="OWN * OTHERS",
                rows="3 * OTHERS",
            ),
            dims,
        ),
    ]


def _entries(shape: Shape) -> str:
    return times(*(size(each).code for each in shape))


def _largest(sizes: list[str]) -> str:
    return reduce(lambda a, b: f"largest({a}, {b})", (f"({each})" for each in sizes))


def _pointers(*names: str) -> dict[str, Argument]:
    """Arrays, and behind them `WHOLE`."""
    read = {*FORWARD, "d_output"}
    texts = {**ARRAYS, **NUMBERS}
    found = {n: Argument(n, texts[n], "", READ if n in read else WRITTEN) for n in names}
    for name, said in WHOLE.items():
        found[name] = Argument(name, said, "", "const int64_t *")
    return found


def _numbers(sizes: Iterable[str], steps: Iterable[tuple[str, str]]) -> dict[str, Argument]:
    every = (*((n, SIZES[n]) for n in sizes), *steps)
    return {name: Argument(name, said, "", "int64_t ") for name, said in every}


def _steps(stem: str, shared: int = 0) -> list[tuple[str, str]]:
    """The strides of an array and, where it is ``shared``, how many heads have an entry."""
    array, axes = STEPS[stem]
    found = [
        (f"{stem}_{axis}", f"from one {said} of {array} to the next")
        for axis, said in AXES.items()
        if axis in axes
    ]
    return [*found, *[(f"{stem}_per", f"heads that share an entry of {array}")] * shared]


def _tiles(**sizes: str) -> tuple[Tile, ...]:
    """Tiles that are held all the time."""
    return tuple(Tile(name, code, 0, 0) for name, code in sizes.items())
