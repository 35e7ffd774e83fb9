"""A case of an example goes in, what others ask for comes out: queries, keys and values, log
decays, write strengths and a state, in the layout [B, T, H, D] (a token: T = 1) and [B, H, K, V].

Peers are given these arrays; making them is not timed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lacc.bench.case import Array, Arrays, Case, Data, Unfit, by_name
from lacc.bench.contestants import Bound, Contestant

Build = Callable[[Case, "Roles"], tuple[Callable[[], Any], Callable[[Any], Array]]]


@dataclass(frozen=True)
class Roles:
    """``g`` is the log of a decay, [B, T, H] or [B, T, H, K]; ``beta`` a write strength; ``u`` the
    weight of a token's own write; ``a``, ``b`` an erase of its own, S += b (aᵀ S). ``phi``: queries
    and keys are under elu + 1 and the output is divided by their sum. ``after`` makes the spec's
    output of o; ``entrywise``: every entry of the state has a decay of its own, and ``raw``, the
    spec's arguments, are all there is."""

    q: Array
    k: Array
    v: Array
    scale: float = 1.0
    g: Array | None = None
    beta: Array | None = None
    u: Array | None = None
    a: Array | None = None
    b: Array | None = None
    phi: bool = False
    state: Array | None = None
    sums: Array | None = None
    after: Callable[[Array], Array] = lambda o: o
    entrywise: bool = False
    raw: Arrays | None = None

    @property
    def rule(self) -> str:
        """The name of the update where it is one of the four that runtimes have."""
        if self.u is not None or self.a is not None or self.entrywise:
            raise Unfit("it has no such update")
        gated = "gated" if self.g is not None else ""
        delta = "delta" if self.beta is not None else ""
        return "_".join(filter(None, (gated, delta))) or "linear"

    def started(self) -> Array:
        """The state to begin with."""
        if self.state is not None:
            return self.state
        (B, _, H, K), V = self.q.shape, self.v.shape[-1]
        return np.zeros((B, H, K, V), np.float32)


def roles(case: Case, given: Data) -> Roles:
    """What the arrays of a case are to others. Raises Unfit for a spec that is none of theirs."""
    x = {
        n: y[:, None] if case.by_token and _timed(case, n) else y
        for n, y in given.arguments.items()
    }
    state = None if given.state is None else np.asarray(given.state[0])
    made = MADE.get(case.spec.ascii)
    if made is None:
        raise Unfit(f"nothing here computes {case.spec.name}")
    found: dict[str, Any] = {"state": state, "raw": x} | made(x, given, case)
    return Roles(
        **{n: y.astype(np.float32) if isinstance(y, np.ndarray) else y for n, y in found.items()}
    )


def _timed(case: Case, name: str) -> bool:
    return any(a.ascii == name and a.role == "input" for a in case.spec.args)


def _plain(x: Arrays, given: Data, case: Case) -> dict[str, Any]:
    found = {name: x[name] for name in ("q", "k", "v", "g", "beta") if name in x}
    return found | {"scale": x["q"].shape[-1] ** -0.5}


def _unscaled(x: Arrays, given: Data, case: Case) -> dict[str, Any]:
    return _plain(x, given, case) | {"scale": 1.0}


def _retention(x: Arrays, given: Data, case: Case) -> dict[str, Any]:
    q = x["q"]
    g = np.broadcast_to(np.log(1 - 2.0 ** (-5 - np.arange(q.shape[2]))), q.shape[:3])
    return _plain(x, given, case) | {"g": g.copy()}


def _elu1(x: Arrays, given: Data, case: Case) -> dict[str, Any]:
    sums = None if given.state is None else np.asarray(given.state.z)
    return {"q": x["q"], "k": x["k"], "v": x["v"], "phi": True, "sums": sums}


def _bonus(x: Arrays, given: Data, case: Case) -> dict[str, Any]:
    return {"q": x["r"], "k": x["k"], "v": x["v"], "g": -np.exp(x["w"]), "u": x["u"]}


def _removal(x: Arrays, given: Data, case: Case) -> dict[str, Any]:
    g = -np.exp(-0.5) / (1 + np.exp(-x["w"]))
    erase = {"a": -x["kk"], "b": x["kk"] * x["a"]}
    return {"q": x["r"], "k": x["k"], "v": x["v"], "g": g} | erase


def _shared_keys(x: Arrays, given: Data, case: Case) -> dict[str, Any]:
    step = np.logaddexp(x["dt"] + x["dt_bias"], 0)
    heads = x["x"].shape[2]
    q, k = (np.repeat(x[n], heads // x[n].shape[2], 2) for n in "CB")
    skip = x["D"][:, None] * x["x"]
    state = None if given.state is None else np.asarray(given.state[0]).swapaxes(-1, -2)
    found = {"q": q, "k": k, "v": step[..., None] * x["x"], "g": step * x["A"]}
    return found | {"state": state, "after": lambda o: o + skip}


def _scan(x: Arrays, given: Data, case: Case) -> dict[str, Any]:
    none = np.zeros((*x["x"].shape[:3], 1), np.float32)
    return {"q": none, "k": none, "v": none, "entrywise": True}


MADE: dict[str, Callable[[Arrays, Data, Case], dict[str, Any]]] = {
    **dict.fromkeys(("simple_gla", "gla", "deltanet", "gated_deltanet", "kda"), _plain),
    "linear": _plain,
    "retnet": _retention,
    "linear_transformer": _elu1,
    "rwkv6": _bonus,
    "rwkv7": _removal,
    "mamba2": _shared_keys,
    "mamba1": _scan,
}
"""By the names of examples, which only benchmarks know."""


def contestant(
    name: str, build: Build, modes: str = "forward", tolerance: float = 0.0
) -> Contestant:
    """A peer: ``build(case, roles)`` gives what is timed, and what makes [B, T, H, V] of it."""

    def bind(case: Case, given: Data) -> Bound:
        kind = "decode" if case.by_token else case.mode
        if kind not in modes.split():
            raise Unfit(f"it does not do {kind}")
        known = roles(case, given)
        call, out = build(case, known)

        def results(found: Any) -> Arrays:
            o = known.after(np.asarray(out(found), np.float32))
            o = o[:, 0] if case.by_token else o
            return by_name(case.spec, o)

        return Bound(call, results)

    return Contestant(name, bind, tolerance=tolerance)
