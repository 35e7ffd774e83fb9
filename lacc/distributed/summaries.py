"""One call of a kernel goes in, with this rank's tokens; its outputs and gradients come out, ranks
telling each other what their tokens do to a state.

    forward     (M, H) of a rank's tokens: what they make of a state X is M X + H     told to all
                the state that they start from: H of the rank before, behind M of it, and so on
                the call itself, from there
    backward    dX, the cotangent of that state where nothing comes from later ranks  told to all
                the cotangent of the state that they leave: dX of the rank after, Mᵀ of it, ...
                and what that adds to the gradients

All ranks work at once, however few sequences and heads there are, for one more pass over the states
forward and one more backward pass. M is that of `lacc.analysis.summaries`, found once: backward
takes its transpose. States whose transition reads other states come after these, in a round of
their own; a delayed input's last tokens, and the number of tokens, in a first one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lacc.analysis.summaries import Gain, Group, Round, Summary
from lacc.distributed.ran import Tensors, ran
from lacc.distributed.ranks import Ranks, Trouble
from lacc.runtime.contract import Value, axes_of
from lacc.runtime.kernel import Kernel
from lacc.spec.model import Spec

WHO = "context_parallel"
_NEUTRAL = {"add": 0.0, "max": -math.inf, "min": math.inf, "logaddexp": -math.inf}


@dataclass(frozen=True)
class Rounds:
    """A kernel's summary, and the kernels of its rounds on the same target, made as they are first
    asked for."""

    summary: Summary
    compiled: Callable[[Spec], Kernel]
    _made: dict[int, Kernel] = field(default_factory=dict)

    def kernel(self, number: int) -> Kernel:
        """The kernel of a round."""
        if number not in self._made:
            self._made[number] = self.compiled(self.summary.rounds[number].spec)
        return self._made[number]

    def told(self, number: int) -> list[Value]:
        """What a rank tells all others in a round, forward: states and gains."""
        fields = {s.name: s for s in self.kernel(number).signature.states}
        groups = self.summary.rounds[number].groups
        return [fields[n] for g in groups for n in (*g.states, *(gain.name for gain in g.gains))]


@dataclass
class Summarized:
    """One call of a kernel: forward, and backward from what forward kept. As `Ring`, with the
    summaries of the kernel in place of blocks."""

    kernel: Kernel
    ranks: Ranks
    values: Mapping[str, Value]
    rounds: Rounds
    valid: Any
    options: Mapping[str, Any]
    wanted: frozenset[str]

    def __post_init__(self) -> None:
        self.start: Tensors = {}
        self.heard: list[list[Tensors]] = []  # by round and rank
        self.back = f"the gradients of {self.ranks.doing}"
        kept = [s for s in self.kernel.signature.states if s.role in ("past", "position")]
        self.tokens = Tokens(self.ranks, kept, self.valid) if kept else None

    def forward(self, tensors: Tensors, start: Tensors) -> tuple[Tensors, Tensors]:
        """Outputs of this rank's tokens and the state after them, by name."""
        self.start = dict(start)
        if self.tokens is not None:
            trouble = Trouble()
            with trouble:
                empty = self._run(self.kernel, _no_tokens(tensors, self.values), {}, None)
                self.tokens.count(tensors, empty, self.start, self.values)
            self.ranks.agree(WHO, trouble.problem)
            self.start |= self.tokens.forward()
        for number, one in enumerate(self.rounds.summary.rounds):
            trouble = Trouble()
            with trouble:
                mine = self._summary(number, one, tensors)
            self.ranks.agree(WHO, trouble.problem)
            names = [value.name for value in self.rounds.told(number)]
            heard = self.ranks.gathered([mine[name] for name in names])
            self.heard.append([dict(zip(names, told)) for told in heard])
            if self.ranks.before is not None:
                for group in one.groups:
                    self.start |= starts(group, self.heard[number])[self.ranks.rank]
        trouble = Trouble()
        with trouble:
            options = {**self.options, "valid": self.valid}
            self.ran = ran(self.kernel, tensors, self.start, options, self.wanted)
        self.ranks.agree(WHO, trouble.problem)
        return self.ran.given

    def backward(
        self, tensors: Tensors, cotangents: Tensors, ends: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Gradients of arguments and of the state that the call began with."""
        self.ranks.doing = self.back
        found: tuple[Tensors, Tensors] = ({}, {})
        trouble = Trouble()
        with trouble:
            self._pull(found, cotangents, ends)
        self.ranks.agree(WHO, trouble.problem)
        for number, one in reversed(list(enumerate(self.rounds.summary.rounds))):
            heard = self.heard[number]
            names = [name for group in one.groups for name in group.states]
            mine = [found[1].get(n, heard[0][n].new_zeros(heard[0][n].shape)) for n in names]
            first = [dict(zip(names, told)) for told in self.ranks.gathered(mine)]
            trouble = Trouble()
            with trouble:
                if self.ranks.after is not None:
                    last: Tensors = {}
                    for group in one.groups:
                        last |= pulled(group, heard, first, self.ranks.rank)
                    self._pull(found, {}, last)
            self.ranks.agree(WHO, trouble.problem)
        if self.tokens is not None:
            self.tokens.backward(*found)
        return found

    def _summary(self, number: int, one: Round, tensors: Tensors) -> Tensors:
        """What this rank's tokens do to the states of a round. Those of the first rank start as
        the sequence does; nobody asks for those of the last."""
        kernel = self.rounds.kernel(number)
        own = {a.name for a in kernel.signature.arguments}
        given = {name: x for name, x in tensors.items() if name in own}
        none = _no_tokens(given, self.values)
        start = {
            s.name: self.start[s.name] for s in kernel.signature.states if s.name in self.start
        }
        if self.ranks.before is not None:
            empty = self._run(kernel, none, {}, None)
            for group in one.groups:
                start |= {n: empty[n].fill_(_NEUTRAL[group.op]) for n in group.states}
        if self.ranks.after is None:
            return self._run(kernel, none, start, None)
        return self._run(kernel, given, start, self.valid)

    def _run(self, kernel: Kernel, given: Tensors, start: Tensors, valid: Any) -> Tensors:
        """The state after some tokens, by name."""
        _, state = kernel(**given, valid=valid, initial_state=start or None)
        return dict(state._asdict())

    def _pull(self, found: tuple[Tensors, Tensors], cotangents: Tensors, last: Tensors) -> None:
        """Adds to ``found`` the gradients of arguments and of the start."""
        for total, more in zip(found, self.ran.pull(cotangents, last)):
            for name, x in more.items():
                total[name] = total[name] + x if name in total else x


def _no_tokens(tensors: Tensors, values: Mapping[str, Value]) -> Tensors:
    return {n: x[:, :0] if values[n].role == "input" else x for n, x in tensors.items()}


# ---- what summaries mean ------------------------------------------------------------------------


def starts(group: Group, heard: Sequence[Tensors]) -> list[Tensors]:
    """The states of ``group`` that each rank's tokens start from, by rank; of the first, none.
    ``heard`` has the states and gains of each rank."""
    found: list[Tensors] = [{}]
    for told in heard[:-1]:
        before = found[-1]
        own = {name: told[name] for name in group.states}
        if before:
            moved = _through(group, told, before, back=False)
            own = {name: _joined(group.op, moved[name], x) for name, x in own.items()}
        found.append(own)
    return found


def pulled(group: Group, heard: Sequence[Tensors], first: Sequence[Tensors], rank: int) -> Tensors:
    """The cotangent of the states that ``rank`` leaves, from those of what each later rank starts
    from, ``first``, which hold nothing of the ranks behind it."""
    begun = starts(group, heard)
    total = dict(first[-1])
    for later in range(len(heard) - 2, rank, -1):
        own = {name: total[name] for name in group.states}
        if group.op == "add":
            own = _through(group, heard[later], own, back=True)
        else:
            moved = _through(group, heard[later], begun[later], back=False)
            own = {
                name: ct * _slope(group.op, moved[name], heard[later][name])
                for name, ct in own.items()
            }
        total = {name: first[later][name] + ct for name, ct in own.items()}
    return {name: total[name] for name in group.states}


def _through(group: Group, gains: Tensors, states: Tensors, back: bool) -> Tensors:
    """What comes of ``states`` through the gains, or of cotangents ``back`` through them."""
    if group.op != "add":
        (name,) = group.states
        x = states[name]
        for gain in group.gains:
            x = x + _spread(gain, gains[gain.name], x)
        return {name: x}
    if len(group.states) == 1:
        (name,) = group.states
        x = states[name]
        for gain in group.gains:
            x = _times(gain, gains[gain.name], x, back)
        return {name: x}
    total: Tensors = {name: x.new_zeros(x.shape) for name, x in states.items()}
    for gain in group.gains:
        source, target = (gain.target, gain.source) if back else (gain.source, gain.target)
        total[target] = total[target] + _times(gain, gains[gain.name], states[source], back)
    return total


def _spread(gain: Gain, x: Any, state: Any) -> Any:
    """A gain along some axes of a state, in its shape up to ones."""
    lead = x.ndim - len(gain.axes)
    inner = range(state.ndim - lead)
    return x.reshape(
        *state.shape[:lead], *(state.shape[lead + n] if n in gain.axes else 1 for n in inner)
    )


def _times(gain: Gain, x: Any, state: Any, back: bool) -> Any:
    if not gain.square:
        return state * _spread(gain, x, state)
    lead = x.ndim - 2
    rows = state.movedim(lead + gain.axes[0], -1)
    matrix = x if back else x.mT
    moved = (rows.unsqueeze(-2) @ matrix).squeeze(-2) if rows.ndim == lead + 1 else rows @ matrix
    return moved.movedim(-1, lead + gain.axes[0])


def _joined(op: str, a: Any, b: Any) -> Any:
    match op:
        case "add":
            return a + b
        case "max":
            return a.maximum(b)
        case "min":
            return a.minimum(b)
    return a.logaddexp(b)


def _slope(op: str, a: Any, b: Any) -> Any:
    """The derivative of what joins ``a`` and ``b`` for a: that of the compiler's own rule."""
    if op == "logaddexp":
        return (a - b).where(a != b, a.new_zeros(())).sigmoid()
    won = a > b if op == "max" else a < b
    return won.to(a.dtype) + 0.5 * (a == b).to(a.dtype)


# ---- tokens that later ones read ----------------------------------------------------------------


class Tokens:
    """The last tokens of delayed inputs and the number of tokens, as ranks hand them on. ``fields``
    are those of the state, ``valid`` [B, T] says which tokens of this rank count.

    Windows are [B, W, ...] here, the newest last. Behind n tokens the entry i of a window is the
    entry n + i of the one before, where it has that many, else the token n + i - W.
    """

    def __init__(self, ranks: Ranks, fields: Sequence[Value], valid: Any) -> None:
        self.ranks, self.fields, self.valid = ranks, fields, valid
        self.windows = [s for s in fields if s.role == "past"]

    def count(self, tensors: Tensors, empty: Tensors, start: Tensors, values: Any) -> None:
        """Takes this rank's tokens, the state of a call without any and what the first rank starts
        from."""
        import torch

        x = next(y for n, y in tensors.items() if values[n].role == "input")
        rows, length, device = x.shape[0], x.shape[1], x.device
        self.order = torch.arange(length, device=device).expand(rows, length)
        counts = torch.full((rows,), length, dtype=torch.int64, device=device)
        if self.valid is not None:
            self.order = torch.argsort((~self.valid).to(torch.uint8), dim=1, stable=True)
            counts = self.valid.sum(1)
        self.counts = counts
        self.inputs = {s.name: s.name.removesuffix("_past") for s in self.windows}
        self.told = [counts, counts + start["position"] if "position" in start else counts]
        for s in self.windows:
            old = _rows(s, start.get(s.name, torch.zeros_like(empty[s.name])))
            new = tensors[self.inputs[s.name]].detach().to(old.dtype)
            at = _entries(old.shape[1], counts)
            token = self._tokens(old.shape[1])
            self.told.append(_chosen(at, old.shape[1], old, _taken(new, token)))

    def _tokens(self, width: int) -> Any:
        """The token of each entry of a window, any where it comes of the one before."""
        import torch

        padded = torch.nn.functional.pad(self.order, (0, 1))
        at = (_entries(width, self.counts) - width).clamp(0, padded.shape[1] - 1)
        return padded.gather(1, at).clamp(max=max(self.order.shape[1] - 1, 0))

    def forward(self) -> Tensors:
        """The fields that this rank's tokens start from; none on the first."""
        self.heard = self.ranks.gathered(self.told)
        if self.ranks.before is None:
            return {}
        positions, windows = self.heard[0][1], self.heard[0][2:]
        for counts, _, *told in self.heard[1 : self.ranks.rank]:
            positions = positions + counts
            windows = [
                _chosen(_entries(x.shape[1], counts), x.shape[1], x, new)
                for x, new in zip(windows, told)
            ]
        found = {s.name: _rows(s, x, back=True) for s, x in zip(self.windows, windows)}
        return found | {s.name: positions for s in self.fields if s.role == "position"}

    def backward(self, gradients: Tensors, first: Tensors) -> None:
        """Adds to the gradients of inputs, and of what this rank starts from, those of the fields
        that it leaves."""
        if not self.windows:
            return
        shapes = [x.shape for x in self.heard[0][2:]]
        mine = []
        for s, like in zip(self.windows, self.heard[0][2:]):
            ct = first.get(s.name)
            mine.append(like.new_zeros(like.shape) if ct is None else _rows(s, ct).to(like.dtype))
        heard = self.ranks.gathered(mine)
        if self.ranks.after is None:
            return
        for n, s in enumerate(self.windows):
            width, total = shapes[n][1], heard[-1][n]
            for later in range(self.ranks.count - 2, self.ranks.rank, -1):
                total = heard[later][n] + _put_back(total, self.heard[later][0])
            name, at = self.inputs[s.name], _entries(width, self.counts)
            kept = _mask(at >= width, total) * total
            found = gradients.get(name)
            if found is not None:
                index = self._tokens(width).reshape(*at.shape, *[1] * (total.ndim - 2))
                found = found.clone()
                if found.shape[1]:
                    found.scatter_add_(1, index.expand_as(kept), kept.to(found.dtype))
                gradients[name] = found
            if s.name in first:
                first[s.name] = first[s.name] + _rows(s, _put_back(total, self.counts), back=True)


def _rows(field: Value, x: Any, back: bool = False) -> Any:
    """A field of past values with its window as the second axis, or ``back`` from that."""
    axis = len(axes_of(field)) - len(field.axes)
    return x.movedim(1, axis) if back else x.movedim(axis, 1)


def _entries(width: int, counts: Any) -> Any:
    """Where each entry of a window comes from, [B, W], in the window before and the tokens."""
    import torch

    return torch.arange(width, device=counts.device) + counts[:, None]


def _mask(chosen: Any, like: Any) -> Any:
    return chosen.reshape(*chosen.shape, *[1] * (like.ndim - 2)).to(like.dtype)


def _taken(x: Any, at: Any) -> Any:
    """The entries ``at`` [B, W] of ``x`` along its second axis; zeros where it has none."""
    if not x.shape[1]:
        return x.new_zeros((*at.shape, *x.shape[2:]))
    index = at.reshape(*at.shape, *[1] * (x.ndim - 2)).expand(*at.shape, *x.shape[2:])
    return x.gather(1, index)


def _chosen(at: Any, width: int, old: Any, new: Any) -> Any:
    """The window behind some tokens."""
    old_ones = _taken(old, at.clamp(max=width - 1))
    kept = (at < width).reshape(*at.shape, *[1] * (old.ndim - 2))
    return old_ones.where(kept, new)


def _put_back(ct: Any, counts: Any) -> Any:
    """The cotangent of the window before some tokens, of that behind them."""
    width = ct.shape[1]
    at = _entries(width, counts)
    index = at.clamp(max=width - 1).reshape(*at.shape, *[1] * (ct.ndim - 2)).expand_as(ct)
    return ct.new_zeros(ct.shape).scatter_add(1, index, _mask(at < width, ct) * ct)
