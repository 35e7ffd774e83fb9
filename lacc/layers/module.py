"""Embeddings [B, T, d_model] in, embeddings and a cache out: a layer of torch around one variant.

This module stands alone (torch only): its text is also pasted into emitted layer files. It is
loaded when a layer is first asked for.

Notation: B batch rows, T tokens, H heads, G groups of heads, N rows of a cache (B, or one per
segment of `cu_seqlens`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import register_pytree_node

Init = float | Tensor | Callable[[tuple[int, ...]], Tensor]


@dataclass(frozen=True)
class Value:
    """An argument or output of the variant: its axes behind those of tokens and heads, what is
    promised of it, and where a param starts."""

    name: str
    role: str  # input, param, buffer, output
    axes: tuple[Any, ...] = ()  # names, numbers, or sums of products ((factor, *names), ...)
    level: str = "head"  # head, group, layer, position
    low: float = -math.inf
    high: float = math.inf
    square: float = math.inf  # its sum of squares is at most this
    total: float = math.inf  # its sum is this
    start: float | str = 0.0  # where a param starts, see `Layer._draw`
    omitted: bool = False  # the variant has a default for it, or draws it
    unruled: str = ""  # a promise that no rule here keeps

    @property
    def bounded(self) -> bool:
        """Whether an interval is promised."""
        return math.isfinite(self.low) or math.isfinite(self.high)

    def keep(self, x: Tensor, temperature: float) -> Tensor:
        """``x``, any numbers, taken to where the value promises to be."""
        if math.isfinite(self.square):
            x = x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
            return x if self.square == 1 else x * math.sqrt(self.square)
        if math.isfinite(self.total):
            return self.total * x.softmax(-1)
        if math.isfinite(self.low) and math.isfinite(self.high):
            return self.low + (self.high - self.low) * x.sigmoid()
        if self.role == "param":
            return self.high - x.exp() if math.isfinite(self.high) else self.low + x.exp()
        if math.isfinite(self.high):
            return self.high + F.logsigmoid(x) / temperature
        return self.low + F.softplus(x)

    def unkept(self, y: Tensor, temperature: float) -> Tensor:
        """What `keep` takes to ``y``. Raises ValueError where that is no single thing."""
        if math.isfinite(self.square) or math.isfinite(self.total):
            raise ValueError(f"init: {self.name} is scaled to what it promises, and has no start")
        if not self.bounded:
            return y
        if math.isfinite(self.low) and math.isfinite(self.high):
            return torch.logit((y - self.low) / (self.high - self.low))
        away = self.high - y if math.isfinite(self.high) else y - self.low
        if self.role == "param":
            return away.log()
        if math.isfinite(self.high):
            return -torch.expm1(away * temperature).log()
        return torch.expm1(away).log()


def length(axis: Any, sizes: Mapping[str, int]) -> int:
    """The length of an axis."""
    if isinstance(axis, tuple):
        return int(sum(Fraction(c) * math.prod(sizes[n] for n in names) for c, *names in axis))
    return sizes[axis] if isinstance(axis, str) else int(axis)


@dataclass
class Cache:
    """What the next token needs: the variant's state, and the last inputs of each convolution."""

    variant: str
    state: Any
    tails: dict[str, Tensor] = field(default_factory=dict)
    stepper: Any = field(default=None, init=False, repr=False, compare=False)
    """What goes on from the state in place, and what it was made with."""

    def map(self, function: Callable[[Tensor], Tensor]) -> Cache:
        """A cache of ``function`` of every tensor, which have rows first."""
        parts = [function(x) for x in self.state]
        state = type(self.state)(*parts) if hasattr(self.state, "_fields") else tuple(parts)
        return Cache(self.variant, state, {n: function(x) for n, x in self.tails.items()})

    def select(self, rows: Tensor) -> Cache:
        """The cache of chosen rows, for beams and for batches that change."""
        return self.map(lambda x: x.index_select(0, rows))

    def __reduce__(self) -> Any:
        """The state as a plain tuple: the class of its fields is of one compiled file."""
        return Cache, (self.variant, tuple(self.state), self.tails)

    def __deepcopy__(self, memo: dict[int, Any]) -> Cache:
        return self.map(lambda x: deepcopy(x, memo))

    def detach(self) -> Cache:
        """The cache without its history, for training on a long text piece by piece."""
        return self.map(Tensor.detach)


register_pytree_node(  # so that compilers and exporters look into a cache
    Cache,
    lambda cache: ([cache.state, cache.tails], cache.variant),
    lambda parts, variant: Cache(variant, *parts),
    serialized_type_name=f"{__name__}.Cache",
)


class Layer(nn.Module):
    """A variant with its projections: ``layer(x)`` takes [B, T, d_model] and gives the same shape
    and a `Cache`; `step` goes on by one token.

    Every input of the variant is a linear map of x, taken to where the variant promises it to be;
    params are parameters; outputs are normalised, gated, and mapped back to d_model.
    """

    variant: ClassVar[str]
    values: ClassVar[tuple[Value, ...]]
    dims: ClassVar[Mapping[str, int]]  # of the spec, by default
    pinned: ClassVar[tuple[str, ...]] = ()
    run: ClassVar[Callable[..., Any]]
    run_step: ClassVar[Callable[..., Any]]
    run_stepper: ClassVar[Callable[..., Any] | None] = None  # where the target has one

    def __init__(
        self,
        d_model: int,
        num_heads: int = 1,
        *,
        num_groups: int | None = None,
        dims: Mapping[str, int] | None = None,
        positions: int | None = None,
        conv_size: int | None = None,
        norm: bool = True,
        gate: bool = True,
        bias: bool = False,
        gate_temperature: float = 16.0,
        gate_rank: int | None = None,
        norm_eps: float = 1e-5,
        include: tuple[str, ...] = (),
        init: Mapping[str, Init] | None = None,
        buffers: Mapping[str, Tensor] | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        """
        d_model: the width of what comes in and goes out.
        num_heads, num_groups: H, and G of what heads share (H where the variant has groups).
        dims: sizes by name. A dim of the output is d_model / num_heads (d_model without heads), and
            so is each that has the same default in the spec; others are as the spec has them.
        positions: rows of tables with one row per position.
        conv_size: taps of a causal convolution with silu on each vector input without bounds.
        norm, gate: a root mean square norm of each head's output; a silu gate on all of them.
        bias: whether projections of inputs have biases.
        gate_temperature: what logsigmoid is divided by, where a log gate is at most a bound.
        gate_rank: the rank of the projection of such gates.
        include: inputs and params with a default in the spec that shall be projected, or learned.
        init: starts by name: the value of a param, or of an input at x = 0 (which gets a bias).
        buffers: values of buffers, by name.

        Raises ValueError that names what does not fit.
        """
        super().__init__()
        self.d_model, self.num_heads = d_model, num_heads
        grouped = any(v.level == "group" for v in self.values)
        if num_groups is not None and not grouped:
            raise ValueError(f"num_groups: {self.variant} has nothing per group, got {num_groups}")
        self.num_groups = (num_groups or num_heads) if grouped else num_heads
        if num_heads < 1 or num_heads % self.num_groups:
            raise ValueError(f"num_groups: expected a divisor of {num_heads}, got {num_groups}")
        self.sizes = self._sizes(dict(dims or {}), positions)
        self.temperature, self.norm_eps, self.conv_size = gate_temperature, norm_eps, conv_size
        if conv_size is not None and conv_size < 2:
            raise ValueError(f"conv_size: expected at least 2 taps, or None; got {conv_size}")
        init, buffers = dict(init or {}), dict(buffers or {})
        how: dict[str, Any] = {"device": device, "dtype": dtype}
        names = {v.name: v.role for v in self.values}
        for word, given in (("init", init), ("buffers", buffers), ("include", include)):
            for name in given:
                role = names.get(name)
                if role == "output" or (role == "buffer") != (word == "buffers") or role is None:
                    fit = [n for n, r in names.items() if (r == "buffer") == (word == "buffers")]
                    some = ", ".join(n for n in fit if names[n] != "output") or "nothing"
                    raise ValueError(f"{word}: expected names of {some}, got {name!r}")
        self.shapes = {v.name: self._shape(v) for v in self.values}
        self.fed: list[Value] = []
        self.learned: list[Value] = []
        self.fixed: list[str] = []
        for v in self.values:
            shape = self.shapes[v.name]
            if v.role == "output" or (v.omitted and v.name not in {*include, *buffers}):
                continue
            if v.unruled:
                raise ValueError(f"{v.name}: no layer keeps its promise `{v.unruled}`")
            if v.role == "input":
                self.fed.append(v)
                started = v.name in init
                rank = gate_rank if v.high < math.inf and v.low == -math.inf and v.axes else None
                width = math.prod(shape)
                made = nn.Linear(d_model if rank is None else rank, width, bias or started, **how)
                if started:
                    with torch.no_grad():
                        made.bias.copy_(self._begin(v, init[v.name], shape).flatten())
                if rank is not None:
                    first = nn.Linear(d_model, rank, bias=False, **how)
                    self.add_module(f"{v.name}_proj", nn.Sequential(first, made))
                else:
                    self.add_module(f"{v.name}_proj", made)
                if conv_size and self._mixed(v):
                    conv = nn.Conv1d(width, width, conv_size, groups=width, bias=False, **how)
                    self.add_module(f"{v.name}_conv", conv)
            elif v.role == "param":
                self.learned.append(v)
                value = self._begin(v, init[v.name], shape) if v.name in init else self._draw(v)
                raw = value.to(**{k: x for k, x in how.items() if x is not None})
                self.register_parameter(v.name, nn.Parameter(raw))
            else:
                if v.name not in buffers:
                    raise ValueError(f"buffers: {self.variant} needs {v.name} {list(shape)}")
                if tuple(buffers[v.name].shape) != shape:
                    got = tuple(buffers[v.name].shape)
                    raise ValueError(f"buffers: expected {v.name} of {list(shape)}, got {got}")
                self.fixed.append(v.name)
                self.register_buffer(v.name, buffers[v.name].to(device))
        self.outputs = [v for v in self.values if v.role == "output"]
        width = sum(math.prod(self.shapes[v.name]) for v in self.outputs)
        if norm:
            for v in self.outputs:
                if v.axes:
                    size = length(v.axes[-1], self.sizes)
                    self.add_module(f"{v.name}_norm", nn.RMSNorm(size, norm_eps, **how))
        self.gate_proj = nn.Linear(d_model, width, bias=False, **how) if gate else None
        self.out_proj = nn.Linear(width, d_model, bias=False, **how)

    def _sizes(self, given: dict[str, int], positions: int | None) -> dict[str, int]:
        for name, size in given.items():
            if name not in self.dims:
                some = ", ".join(self.dims) or "nothing"
                raise ValueError(f"dims: expected names of {some}, got {name!r}")
            if name in self.pinned and size != self.dims[name]:
                raise ValueError(f"dims: {name} is compiled in as {self.dims[name]}, got {size}")
        sizes = {**self.dims, **given}
        for v in (v for v in self.values if v.role == "output" and v.axes):
            lead, heads = v.axes[0], {"head": self.num_heads, "group": self.num_groups}
            if not isinstance(lead, str) or lead in self.pinned or lead in given:
                continue
            for name in self.dims:
                same = self.dims[name] == self.dims[lead] and name not in {*given, *self.pinned}
                if same:
                    sizes[name] = max(1, self.d_model // heads.get(v.level, 1))
        if any(v.level == "position" and not v.omitted for v in self.values) and positions is None:
            raise ValueError(
                f"positions: {self.variant} has tables of positions; expected a number"
            )
        return {**sizes, "": positions or 0}

    def _shape(self, v: Value) -> tuple[int, ...]:
        heads = {"head": (self.num_heads,), "group": (self.num_groups,), "layer": ()}
        lead = heads.get(v.level, (self.sizes[""],))
        return (*lead, *(length(axis, self.sizes) for axis in v.axes))

    def _mixed(self, v: Value) -> bool:
        """Whether a convolution goes over an input."""
        return bool(v.axes) and not v.bounded

    def _draw(self, v: Value) -> Tensor:
        """Where a param starts, as it is kept here: "drawn" is normal by its last axis; "angles"
        are frequencies from 1 down to 1e-4; "inside" is in the middle of an interval, 1 above a
        lower bound, and from 1 to 16 below an upper one."""
        shape = self._shape(v)
        if v.start == "inside":
            if math.isfinite(v.high) and not math.isfinite(v.low):
                return torch.empty(shape).uniform_(1, 16).log()
            return torch.zeros(shape)
        if v.start == "drawn":
            return torch.randn(shape) / math.sqrt(shape[-1])
        if v.start == "angles":
            return (1e-4 ** (torch.arange(shape[-1]) / shape[-1])).expand(shape).clone()
        return v.unkept(torch.full(shape, float(v.start)), self.temperature)

    def _begin(self, v: Value, start: Init, shape: tuple[int, ...]) -> Tensor:
        y = start(shape) if callable(start) else torch.as_tensor(start, dtype=torch.float32)
        return v.unkept(y.float().expand(shape).clone(), self.temperature)

    def forward(
        self,
        x: Tensor,
        cache: Cache | None = None,
        *,
        attention_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, Cache]:
        """``x`` [B, T, d_model] to (y [B, T, d_model], cache).

        ``attention_mask`` [B, T] (its last T columns where it is longer) has 0 where a token is
        padding, anywhere: it changes no state, no convolution and no gradient, and its y is 0.
        ``cu_seqlens`` [N + 1] packs N sequences into one row. Raises ValueError on misuse.
        """
        if x.ndim != 3 or x.shape[-1] != self.d_model:
            raise ValueError(f"x: expected [B, T, {self.d_model}], got shape {tuple(x.shape)}")
        valid = self._valid(attention_mask, x)
        if valid is not None:
            if cu_seqlens is not None:
                raise ValueError("attention_mask: expected None where cu_seqlens is given")
            x = x.masked_fill(~valid.unsqueeze(-1), 0)
        if cu_seqlens is not None and not (isinstance(cu_seqlens, Tensor) and len(x) == 1):
            got = f"{type(cu_seqlens).__name__} with x of shape {tuple(x.shape)}"
            raise ValueError(f"cu_seqlens: expected a tensor [N + 1], and one row of x; got {got}")
        state, tails = self._begun(cache, len(x) if cu_seqlens is None else len(cu_seqlens) - 1)
        arguments, tails = self._arguments(x, tails, valid, cu_seqlens)
        found, state = self.run(
            **arguments, initial_state=state, valid=valid, cu_seqlens=cu_seqlens
        )
        return self._read(x, found), Cache(self.variant, state, tails)

    def step(
        self, x: Tensor, cache: Cache | None = None, *, in_place: bool = False
    ) -> tuple[Tensor, Cache]:
        """One token, ``x`` [B, d_model], to (y [B, d_model], cache).

        ``in_place`` writes what is behind the token into ``cache`` itself, to generate in the
        least time. Raises RuntimeError where a gradient is wanted of that.
        """
        if x.ndim != 2 or x.shape[-1] != self.d_model:
            raise ValueError(f"x: expected [B, {self.d_model}], got shape {tuple(x.shape)}")
        state, tails = self._begun(cache, len(x))
        if in_place and torch.is_grad_enabled():
            every = (x, *(state or ()), *tails.values(), *self.parameters())
            if any(y.requires_grad for y in every):
                raise RuntimeError("step: in place it has no gradients; torch.no_grad(), or step")
        arguments, tails = self._arguments(x.unsqueeze(1), tails, None, None)
        fed = {v.name for v in self.fed}
        token = {name: y[:, 0] if name in fed else y for name, y in arguments.items()}
        if cache is None or not in_place:
            found, state = self.run_step(**token, state=state)
            return self._read(x, found), Cache(self.variant, state, tails)
        found, cache.state = self._advanced(cache, token)
        cache.tails = tails
        return self._read(x, found), cache

    def _advanced(self, cache: Cache, token: dict[str, Tensor]) -> tuple[Any, Any]:
        """Outputs of a token, and the state behind it in the memory of the one before it."""
        if self.run_stepper is None or torch.compiler.is_compiling():
            return cast(tuple[Any, Any], self.run_step(**token, state=cache.state))
        held = (self.get_parameter(v.name) for v in self.learned)
        given = [*map(own, held), *(self.get_buffer(name) for name in self.fixed)]
        seen = [(p.data_ptr(), None if p.is_inference() else p._version) for p in given]
        alike = (seen, [y.dtype for y in token.values()])
        stepper, made = cache.stepper or (None, None)
        if stepper is None or made != alike or stepper.state is not cache.state:
            state = cache.map(Tensor.contiguous).state
            stepper = self.run_stepper(**token, state=state)
            cache.stepper = stepper, alike
        found = stepper(*(token[name] for name in stepper.names))
        return found, stepper.state

    def _begun(self, cache: Cache | None, rows: int) -> tuple[Any, dict[str, Tensor]]:
        if cache is None:
            return None, {}
        if not isinstance(cache, Cache) or cache.variant != self.variant:
            got = cache.variant if isinstance(cache, Cache) else type(cache).__name__
            raise ValueError(f"cache: expected one of {self.variant}, got one of {got}")
        for y in (*cache.state, *cache.tails.values()):
            if len(y) != rows:
                raise ValueError(f"cache: expected one of {rows} rows, got {len(y)}")
        return cache.state, cache.tails

    def _valid(self, mask: Tensor | None, x: Tensor) -> Tensor | None:
        if mask is None:
            return None
        if mask.ndim != 2 or mask.shape[0] != x.shape[0] or mask.shape[1] < x.shape[1]:
            want = f"[B, T] = [{x.shape[0]}, {x.shape[1]}]"
            raise ValueError(f"attention_mask: expected {want}, got shape {tuple(mask.shape)}")
        if mask.is_floating_point():
            raise ValueError(f"attention_mask: expected bools or integers, got {mask.dtype}")
        return mask[:, mask.shape[1] - x.shape[1] :].to(x.device).bool()

    def _arguments(
        self, x: Tensor, tails: dict[str, Tensor], valid: Tensor | None, cu: Tensor | None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Arguments of the variant by name, and the tails of convolutions behind them."""
        found: dict[str, Tensor] = {}
        after: dict[str, Tensor] = {}
        for v in self.fed:
            modules, shape = self._modules, self.shapes[v.name]
            y = cast(nn.Module, modules[f"{v.name}_proj"])(x)
            if self.conv_size and self._mixed(v):
                conv = cast(nn.Conv1d, modules[f"{v.name}_conv"])
                y, after[v.name] = mixed(
                    y, own(conv.weight).to(y.dtype), tails.get(v.name), valid, cu
                )
            y = y.view(*y.shape[:-1], *shape)
            if v.bounded or math.isfinite(v.square) or math.isfinite(v.total):
                kept = v.keep(wide(y), self.temperature)  # gates stay in the wide dtype
                y = kept if v.bounded else kept.to(y.dtype)
            found[v.name] = y
        for v in self.learned:
            raw = own(cast(Tensor, self._parameters[v.name]))
            found[v.name] = v.keep(wide(raw), self.temperature) if v.bounded else raw
        for name in self.fixed:
            found[name] = cast(Tensor, self._buffers[name])
        return found, after

    def _read(self, x: Tensor, found: Any) -> Tensor:
        """Outputs of the variant as embeddings."""
        parts = []
        for v, o in zip(self.outputs, (found,) if isinstance(found, Tensor) else found):
            norm = self._modules.get(f"{v.name}_norm")
            if isinstance(norm, nn.RMSNorm):
                o = F.rms_norm(wide(o), norm.normalized_shape, wide(own(norm.weight)), norm.eps)
            parts.append(o.reshape(*x.shape[:-1], math.prod(self.shapes[v.name])).to(x.dtype))
        y = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        if self.gate_proj is not None:
            y = y * F.silu(self.gate_proj(x))
        y = self.out_proj(y)
        return cast(Tensor, y)

    def extra_repr(self) -> str:
        """The variant, its heads and sizes."""
        sizes = "".join(f", {name}={size}" for name, size in self.sizes.items() if name)
        groups = f", num_groups={self.num_groups}" if self.num_groups != self.num_heads else ""
        return f"{self.variant}, d_model={self.d_model}, num_heads={self.num_heads}{groups}{sizes}"


def own(x: Tensor) -> Tensor:
    """The part of a parameter that lies on this device. What is whole on each takes a part of its
    gradient from each."""
    if not hasattr(x, "to_local"):
        return x
    from torch.distributed.tensor import Partial

    parts = [Partial() if p.is_replicate() else p for p in x.placements]  # type: ignore[attr-defined]
    return cast(Tensor, x.to_local(grad_placements=parts))


def wide(x: Tensor) -> Tensor:
    """``x`` in float32 at least."""
    return x if x.dtype == torch.float64 else x.float()


def mixed(
    x: Tensor, weight: Tensor, tail: Tensor | None, valid: Tensor | None, cu: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A causal convolution over tokens with silu, ``x`` [B, T, C], ``weight`` [C, 1, taps]: its
    values and the last taps - 1 inputs of each row (of each segment with ``cu``), [N, taps-1, C].

    Tokens that are not ``valid`` are passed over: the taps reach to valid ones only."""
    if cu is not None:
        starts, lengths = cu[:-1], cu[1:] - cu[:-1]
        if int(lengths.sum()) != x.shape[1]:
            got = cu.tolist()
            raise ValueError(f"cu_seqlens: expected bounds from 0 to T = {x.shape[1]}, got {got}")
        at = torch.arange(int(lengths.max()) if len(lengths) else 0, device=x.device)
        inside = at < lengths.unsqueeze(1)
        rows = x[0][(starts.unsqueeze(1) + at).clamp(max=max(x.shape[1] - 1, 0))]
        y, tail = mixed(rows, weight, tail, inside, None)
        return y[inside].unsqueeze(0), tail
    reach = weight.shape[-1] - 1
    if tail is None:
        tail = x.new_zeros(x.shape[0], reach, x.shape[-1])
    if valid is None:
        whole = torch.cat([tail.to(x.dtype), x], 1)
        after = whole[:, whole.shape[1] - reach :]
    else:
        order = torch.argsort(~valid, dim=1, stable=True)
        x = x.gather(1, order.unsqueeze(-1).expand_as(x))
        whole = torch.cat([tail.to(x.dtype), x], 1)
        last = valid.sum(1, keepdim=True) + torch.arange(reach, device=x.device)
        after = whole.gather(1, last.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
    taps = wide(weight).squeeze(1)
    if x.shape[1] == 1:
        total = (whole * taps.T).sum(1, keepdim=True)
    else:
        parts = (whole[:, i : i + x.shape[1]] * tap for i, tap in enumerate(taps.unbind(-1)))
        total = cast(Tensor, sum(parts))
    y = F.silu(total).to(x.dtype)
    if valid is not None:
        back = torch.argsort(order, dim=1)
        y = y.gather(1, back.unsqueeze(-1).expand_as(y))
    return y, after
