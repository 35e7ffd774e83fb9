"""A spec goes in; the loop over its tokens that one would write in torch comes out as a contestant:
the program of one token, an operation of torch for each of its instructions.

Values are tensors [B, H, *axes], axes in the order of the instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lacc import driver
from lacc.bench.case import Case, Data, Unfit
from lacc.bench.contestants import Bound, Contestant
from lacc.bench.tensors import bound, tensor, torch_for
from lacc.plan.cost import evaluate
from lacc.tile.derive import Derived
from lacc.tile.program import Inst, Program

LONGEST = 2048
"""Tokens with gradients: autograd keeps what every token computed."""

Step = Callable[[Mapping[str, Any], Mapping[str, Any], int], tuple[dict[str, Any], dict[str, Any]]]


def token_loop() -> Contestant:
    """The spec in torch, one token after the other."""
    return Contestant("torch token loop", _bind)


def _bind(case: Case, given: Data) -> Bound:
    torch = torch_for(case)
    derived = driver.analyse(case.spec)
    if derived.token is None:
        raise Unfit("a token by itself does not exist: the spec reads what comes later")
    if derived.kept or derived.delays or derived.initial:
        raise Unfit("states that grow, that are delayed or that begin with more than a number")
    if case.mode == "train" and case.T > LONGEST:
        raise Unfit(f"autograd keeps every token of a loop: no more than T = {LONGEST} here")
    step = _step(torch, derived, case)
    arguments = _arguments(torch, case, given)
    timed = {a.ascii for a in case.spec.args if a.role == "input"}
    axis = {o.ascii: 1 for o in case.spec.outputs}
    if case.by_token:
        state = {n: tensor(torch, x) for n, x in given.state._asdict().items()}

        def one(**x: Any) -> dict[str, Any]:
            return step(_spread(case, x), state, 0)[0]

        return bound(torch, case, one, arguments, None)
    begin = _zeros(torch, derived, case)

    def loop(**x: Any) -> dict[str, Any]:
        state: Mapping[str, Any] = begin
        outputs: dict[str, list[Any]] = {name: [] for name in axis}
        spread = _spread(case, x)
        rows = {n: y.unbind(1) if n in timed else y for n, y in spread.items()}
        for t in range(case.T):
            token = {n: y[t] if n in timed else y for n, y in rows.items()}
            found, state = step(token, state, t)
            for name, y in found.items():
                outputs[name].append(y)
        return {name: torch.stack(each, 1) for name, each in outputs.items()}

    cotangents = {n: tensor(torch, x) for n, x in (given.cotangents or {}).items()}
    return bound(torch, case, loop, arguments, cotangents)


def _arguments(torch: Any, case: Case, given: Data) -> dict[str, Any]:
    """Tensors as a caller has them."""
    if case.dtype not in ("float32", "float64"):
        raise Unfit("the loop is float32 and float64 only")
    if any(o.per != "head" for o in case.spec.outputs):
        raise Unfit("an output that heads share, which the loop does not give once")
    for arg in case.spec.args:
        if arg.ascii not in given.arguments:
            raise Unfit(f"{arg.ascii} has a default, which the loop does not compute")
        if arg.per == "position":
            raise Unfit(f"{arg.ascii} is a table by position, which the loop does not read")
    return {name: tensor(torch, x) for name, x in given.arguments.items()}


def _spread(case: Case, x: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments at the heads: inputs [B, T, H, *shape] (a token's [B, H, *shape]), others
    [1, H, *shape]."""
    found = {}
    for arg in case.spec.args:
        y = x[arg.ascii]
        axis = (1 if case.by_token else 2) if arg.role == "input" else 0
        if arg.per == "group":
            y = y.repeat_interleave(case.H // y.shape[axis], axis)
        elif arg.per == "layer":
            y = y.unsqueeze(axis)
        found[arg.ascii] = y if arg.role == "input" else y[None]
    return found


def _zeros(torch: Any, derived: Derived, case: Case) -> dict[str, Any]:
    found = {}
    for state in derived.spec.states:
        if state.initial.op != "const":
            raise Unfit(f"{state.ascii} does not begin with a number")
        shape = (case.B, case.H, *(size.evaluate(case.dims) for size in state.shape))
        found[state.ascii] = torch.full(shape, float(state.initial.value))
    return found


def _step(torch: Any, derived: Derived, case: Case) -> Step:
    """One token: arguments, states and its number in, outputs and states out."""
    assert derived.token is not None
    program = derived.token.forward
    run = [_operation(torch, program, inst, case) for inst in program.body]
    outs = dict(program.outs)

    def step(
        x: Mapping[str, Any], state: Mapping[str, Any], t: int
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        values: list[Any] = []
        for inst, function in zip(program.body, run):
            if inst.op == "load":
                kind, name = inst.value
                found = state[name] if kind == "state" else x[name] if kind != "index" else t + 1
                values.append(found)
            else:
                values.append(function(*(values[i] for i in inst.ins)))
        ends = {n[6:]: values[i] for n, i in outs.items() if n.startswith("state:")}
        return {n: values[i] for n, i in outs.items() if not n.startswith("state:")}, ends

    return step


def _operation(torch: Any, program: Program, inst: Inst, case: Case) -> Callable[..., Any]:
    """What computes an instruction of its operands. Raises Unfit where torch has none for it."""
    operands = [program.body[i].axes for i in inst.ins]
    letters = {axis: chr(ord("a") + n) for n, axis in enumerate(program.sizes) if n < 20}
    match inst.op:
        case "load":
            if inst.value[0] == "last":
                raise Unfit("a state that another one reads when it has ended")
            return lambda: None
        case "const":
            return lambda: inst.value
        case "size":
            number = evaluate(inst.value, case.dims)
            return lambda: number
        case "contract":
            left, right = ("".join(letters[x] for x in axes) for axes in operands)
            out = "".join(letters[x] for x in inst.axes)
            equation = f"...{left},...{right}->...{out}"
            return lambda a, b: torch.einsum(equation, a, b)
        case "sum":
            at = tuple(2 + operands[0].index(x) for x in inst.value)
            return lambda a: a.sum(at)
        case "rename":
            names = dict(inst.value)
            have = [names.get(x, x) for x in operands[0]]
            order = (0, 1, *(2 + have.index(x) for x in inst.axes))
            return lambda a: a if order == tuple(range(len(order))) else a.permute(order)
        case "expand":
            sizes = [program.sizes[x].evaluate(case.dims) for x in inst.axes]
            place = _placing(operands[0], inst.axes)
            return lambda a: place(a, torch).expand(*_lead(a), *sizes)
        case "stop_gradient":
            return lambda a: a.detach() if hasattr(a, "detach") else a
    if (named := _elementwise(torch, inst.op)) is None:
        raise Unfit(f"no function of torch stands for {inst.op}")
    placings = [_placing(axes, inst.axes) for axes in operands]
    if not inst.axes:
        return named
    return lambda *xs: named(*(place(x, torch) for place, x in zip(placings, xs)))


def _lead(x: Any) -> tuple[int, ...]:
    return tuple(x.shape[:2]) if hasattr(x, "shape") and x.ndim >= 2 else (1, 1)


def _placing(have: tuple[str, ...], want: tuple[str, ...]) -> Callable[[Any, Any], Any]:
    """Puts the axes of a tensor where those of a result are, 1 for each that it lacks."""
    if have == want:
        return lambda x, torch: x
    order = (0, 1, *(2 + have.index(x) for x in want if x in have))
    index = (slice(None), slice(None), *(slice(None) if x in have else None for x in want))
    moved = order != tuple(range(len(order)))

    def place(x: Any, torch: Any) -> Any:
        if not hasattr(x, "shape"):
            return x if not have else torch.as_tensor(x)
        return (x.permute(order) if moved else x)[index]

    return place


def _elementwise(torch: Any, op: str) -> Callable[..., Any] | None:
    """The function of torch that means what a row of the op table does, also of plain numbers."""
    f = torch.nn.functional

    def of_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*xs: Any) -> Any:
            return function(*(x if hasattr(x, "shape") else torch.tensor(float(x)) for x in xs))

        return call

    plain: dict[str, Callable[..., Any]] = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / b,
        "pow": lambda a, b: a**b,
        "neg": lambda a: -a,
        "abs": abs,
        "lt": lambda a, b: a < b,
        "le": lambda a, b: a <= b,
        "gt": lambda a, b: a > b,
        "ge": lambda a, b: a >= b,
        "eq": lambda a, b: a == b,
    }
    named = {
        "where": lambda c, a, b: torch.where(c.bool(), a, b),
        "max": torch.maximum,
        "min": torch.minimum,
        "logsigmoid": f.logsigmoid,
        "elu": f.elu,
        "elu1": lambda x: f.elu(x) + 1,
        "silu": f.silu,
        "gelu": f.gelu,
        "relu": f.relu,
        "softplus": f.softplus,
    }
    if op in plain:
        return plain[op]
    if op in named:
        return of_tensors(named[op])
    same = ("exp", "log", "sqrt", "rsqrt", "sign", "sigmoid", "tanh", "erf", "sin", "cos")
    return of_tensors(getattr(torch, op)) if op in (*same, "logaddexp") else None
