"""``cu_seqlens`` and ``valid`` of a call in, its sequences out: where each lies among the tokens,
its chunks, and tokens before a token.

This module stands alone (torch only): its text is pasted into emitted files of torch.
Sizes never depend on what tensors hold, so that nothing waits for the device but the check of a
``cu_seqlens`` that was not seen before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from lacc.runtime.torch_arguments import WHOLE, name_of


@dataclass
class Bounds:
    """A ``cu_seqlens`` that was checked: its version then, T, its numbers (None: while a CUDA graph
    was captured, where it cannot be read), where the kernels take it from, and the tables of chunks
    by their length."""

    version: int | None
    T: int
    ends: list[int] | None
    cu: Any
    tables: dict[int, tuple[Any, Any]] = field(default_factory=dict)


CHECKED: Any = WeakIdKeyDictionary()


def bounds_of(cu: Any, T: int, device: Any) -> Bounds:
    """What is known of ``cu_seqlens``, which must rise from 0 to T. One that was checked before is
    not read again."""
    version = None if cu.is_inference() else cu._version
    known: Bounds | None = CHECKED.get(cu)
    now = (version, T, device)
    if known is not None and (known.version, known.T, known.cu.device) == now:
        return known
    moved = cu.detach().to(device, torch.int64, non_blocking=True)  # not the key itself
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return Bounds(None, T, None, moved)
    ends: list[int] = cu.tolist()
    if not ends or ends[0] != 0 or ends[-1] != T or ends != sorted(ends):
        raise ValueError(f"cu_seqlens: expected to rise from 0 to T = {T}, got {ends}")
    known = Bounds(version, T, ends, moved)
    if version is not None:
        CHECKED[cu] = known
    return known


def check_sequences(B: int, T: int, cu: Any, valid: Any, device: Any) -> None:
    """Raises where ``cu_seqlens`` or ``valid`` are not of the form that they should have."""
    if valid is not None:
        if valid.dtype != torch.bool:
            raise TypeError(f"valid: expected a bool array [B, T], got {name_of(valid.dtype)}")
        if tuple(valid.shape) != (B, T):
            raise ValueError(f"valid: expected [B, T] = [{B}, {T}], got {tuple(valid.shape)}")
        if valid.device != device:
            raise ValueError(f"valid: expected one on {device}, got one on {valid.device}")
    if cu is not None:
        if cu.ndim != 1 or cu.dtype not in WHOLE:
            got = f"{name_of(cu.dtype)} {tuple(cu.shape)}"
            raise TypeError(f"cu_seqlens: expected integers [N + 1], got {got}")
        if cu.device.type != "cpu" and cu.device != device:
            raise ValueError(f"cu_seqlens: expected one on {device}, got one on {cu.device}")
        if B != 1:
            raise ValueError(f"cu_seqlens: expected packed arrays with B = 1, got B = {B}")
        if cu.shape[0] < 1:
            raise ValueError(f"cu_seqlens: expected to rise from 0 to T = {T}, got []")


class Sequences:
    """The N sequences of a call of ``tokens`` [B, T]. Those with an invalid token are packed: then
    the passes see B = 1 and ``T`` tokens, valid ones first."""

    def __init__(self, B: int, T: int, cu: Any, valid: Any, device: Any, dry: bool) -> None:
        check_sequences(B, T, cu, valid, device)
        self.rows, self.tokens, self.device, self.dry = B, T, device, dry
        self.B, self.T, self.N = B, T, B
        self.cu: Any = None
        self.order: Any = None
        self.ends: list[int] | None = None
        self.tables: dict[int, tuple[Any, Any]] = {}
        if cu is not None and dry:
            self.N, self.cu = cu.shape[0] - 1, cu.to(device, torch.int64)
        elif cu is not None:
            bounds = bounds_of(cu, T, device)
            self.N, self.cu = cu.shape[0] - 1, bounds.cu
            self.ends, self.tables = bounds.ends, bounds.tables
        if valid is not None:
            self.B, self.T = 1, B * T
            flat = valid.reshape(-1)
            self.order = torch.argsort(flat, descending=True, stable=True)
            count = torch.cat([flat.new_zeros(1, dtype=torch.int64), flat.cumsum(0)])
            starts = torch.arange(B + 1, device=device) * T if self.cu is None else self.cu
            self.cu, self.ends, self.tables = count[starts], None, {}
            self.place, self.flat = (count[1:] - 1).clamp(min=0), flat
        self._local: Any = None

    def pack(self, x: Any) -> Any:
        """``x`` [B, T, ...] as the passes see it."""
        return x if self.order is None else x.flatten(0, 1)[self.order].unsqueeze(0)

    def unpack(self, x: Any) -> Any:
        """`pack` undone, 0 at invalid tokens."""
        if self.order is None:
            return x
        live = self.flat.reshape(-1, *[1] * (x.ndim - 2))
        found = torch.where(live, x[0][self.place], 0)
        return found.reshape(self.rows, self.tokens, *found.shape[1:])

    def chunks(self, C: int) -> tuple[int, Any, Any]:
        """How many chunks of C tokens there are at most, their table and the first of each
        sequence (None: dense)."""
        if self.cu is None:
            return self.B * -(-self.T // C), None, None
        many = (self.T + self.N * (C - 1)) // C
        if C not in self.tables:
            each = -(-self.lengths() // C)
            firsts = torch.cat([each.new_zeros(1), each.cumsum(0)])
            number = torch.arange(many, device=self.device)
            n = torch.searchsorted(firsts[1:], number, right=True).clamp(max=max(self.N - 1, 0))
            table = torch.stack([n, number - firsts[n]], 1)
            self.tables[C] = table.to(torch.int32), firsts.to(torch.int32)
        return many, *self.tables[C]

    def lengths(self) -> Any:
        """Tokens of each sequence, [N]."""
        if self.cu is None:
            return torch.full((self.N,), self.T, dtype=torch.int64, device=self.device)
        return self.cu[1:] - self.cu[:-1]

    def longest(self) -> int:
        """Tokens of the longest sequence. It may have to wait for the device."""
        if self.cu is None:
            return self.T
        if self.dry:
            size: Any = torch.library.get_ctx().new_dynamic_size()
            return size  # type: ignore[no-any-return]
        if self.ends is not None:
            return max((b - a for a, b in zip(self.ends, self.ends[1:])), default=0)
        return int(self.lengths().max()) if self.N else 0

    def local(self) -> tuple[Any, Any]:
        """For each token of the row, its sequence and its number in it, [T] each."""
        if self._local is None:
            t = torch.arange(self.T, device=self.device)
            n = torch.searchsorted(self.cu[1:], t, right=True).clamp(max=max(self.N - 1, 0))
            self._local = n, t - self.cu[n]
        found: tuple[Any, Any] = self._local
        return found

    def at(self, i: Any) -> tuple[Any, Any]:
        """Row and column of token i [N, R] of each sequence, wherever it is one."""
        if self.cu is None:
            row = torch.arange(self.N, device=self.device)[:, None].expand_as(i)
            return row, i.clamp(0, max(self.T - 1, 0))
        return torch.zeros_like(i), (self.cu[:-1, None] + i).clamp(0, max(self.T - 1, 0))

    def positions(self, seen: Any) -> Any:
        """How many tokens came before each one, [B, T], with those before the call."""
        if self.cu is not None:
            n, t = self.local()
            return (t if seen is None else t + seen[n])[None]
        t = torch.arange(self.T, device=self.device)[None].expand(self.B, self.T)
        return t if seen is None else t + seen[:, None]

    # ---- delays: a past holds the values [N, P, ...] before the first tokens, the last one last

    def delayed(self, x: Any, past: Any, by: int) -> Any:
        """The values of ``by`` tokens ago [B, T, ...]; past None: 0."""
        if self.cu is None:
            rest = x.shape[2:]
            first = x.new_zeros(self.B, by, *rest)
            if past is not None and past.shape[1]:
                rows = min(past.shape[1], by)
                first[:, by - rows :] = past[:, past.shape[1] - rows :]
            return torch.cat([first, x[:, : max(self.T - by, 0)]], 1)[:, : self.T]
        moved = torch.cat([x.new_zeros(1, by, *x.shape[2:]), x], 1)[:, : self.T]
        n, t = self.local()
        before = (t < by).reshape(1, -1, *[1] * (x.ndim - 2))
        return torch.where(before, self._before(x, past, n, t - by), moved)

    def _before(self, x: Any, past: Any, n: Any, i: Any) -> Any:
        """Token i < 0 of sequence n, from the past."""
        if past is None or not past.shape[1]:
            return x.new_zeros(())
        row = past.shape[1] + i
        there = ((row >= 0) & (i < 0)).reshape(-1, *[1] * (x.ndim - 2))
        found = past[n, row.clamp(0, past.shape[1] - 1)]
        return torch.where(there, found, 0)[None].to(x.dtype)

    def pull_delayed(self, d: Any, past: int, by: int) -> tuple[Any, Any]:
        """Cotangents of the tokens and of the ``past`` rows before them, from those of the values
        of ``by`` tokens ago."""
        dx = torch.zeros_like(d)
        stay = d[:, by:]
        if self.cu is not None:
            n, t = self.local()
            other = (t < by) | (t >= self.lengths()[n])  # the past's, or that of no sequence
            stay = torch.where(other.reshape(1, -1, *[1] * (d.ndim - 2)), 0, d)[:, by:]
        dx[:, : max(self.T - by, 0)] = stay
        i = torch.arange(past, device=self.device)[None].expand(self.N, past) - past + by
        there = (i >= 0) & (i < self.lengths()[:, None])
        return dx, self.picked(d, i, there)

    def picked(self, x: Any, i: Any, there: Any) -> Any:
        """The values of tokens i [N, R] of each sequence, 0 where they are not ``there``."""
        if not self.T:
            return x.new_zeros(*i.shape, *x.shape[2:])
        live = there.reshape(*i.shape, *[1] * (x.ndim - 2))
        return torch.where(live, x[self.at(i)], 0)

    # ---- windows: what is kept of the tokens for the next call

    def window(self, x: Any, past: Any, state: Any, length: int) -> Any:
        """The last ``length`` rows [N, length, ...] of the past, the ``state`` that came before
        the first token [N, ...], where there is one, and the tokens; with a state, those before
        the last."""
        rows = 0 if past is None else past.shape[1]
        more = int(state is not None)
        i = self._window(length, more)
        found = self.picked(x, i, (i >= 0) & (i < self.lengths()[:, None]))
        rest = [1] * (x.ndim - 2)
        if more:
            found = torch.where((i == -1).reshape(*i.shape, *rest), state[:, None], found)
        if rows:
            row = i + more + rows
            n = torch.arange(self.N, device=self.device)[:, None].expand_as(row)
            old = past[n, row.clamp(0, rows - 1)]
            there = ((row >= 0) & (row < rows)).reshape(*i.shape, *rest)
            found = torch.where(there, old, found)
        return found

    def _window(self, length: int, more: int) -> Any:
        """Which token each row of a window is, [N, length]: -1 is that before the first."""
        back = torch.arange(length, device=self.device) - length - more
        return self.lengths()[:, None] + back

    def pull_window(self, d: Any, dx: Any, past: int, more: int) -> tuple[Any, Any]:
        """Adds to ``dx`` [B, T, ...] the cotangents of the tokens in a window; those of the past
        and of the state."""
        length = d.shape[1]
        i, rest = self._window(length, more), [1] * (d.ndim - 2)
        if self.T:
            there = ((i >= 0) & (i < self.lengths()[:, None])).reshape(*i.shape, *rest)
            values = torch.where(there, d, 0).to(dx.dtype)
            dx.index_put_(self.at(i), values, accumulate=True)
        back = torch.arange(-past - more, 0, device=self.device)
        r = back[None] - self.lengths()[:, None] + length + more  # the row of each earlier value
        there = ((r >= 0) & (r < length)).reshape(*r.shape, *rest)
        n = torch.arange(self.N, device=self.device)[:, None].expand_as(r)
        d = torch.cat([d.new_zeros(self.N, 1, *d.shape[2:]), d], 1)
        found = torch.where(there, d[n, (r + 1).clamp(0, length)], 0)
        return found[:, :past], found[:, past] if more else None


def by_tokens(x: Any, level: str) -> Any:
    """A field of past values [N, H|G, P, ...] ([N, P, ...] per layer) with its rows first."""
    return x if level == "layer" else x.movedim(2, 1)


def by_heads(x: Any, level: str) -> Any:
    """`by_tokens` undone."""
    return x if level == "layer" else x.movedim(1, 2)
