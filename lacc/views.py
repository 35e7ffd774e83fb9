"""A spec, what is compiled of it, its tile programs or its plan go in; the text that `--emit` and
`explain` print comes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from lacc.analysis.stability import named
from lacc.report import table
from lacc.spec.format import show, unparse
from lacc.spec.model import Expr, Spec
from lacc.spec.names import as_read
from lacc.spec.shapes import show as show_shape

if TYPE_CHECKING:
    from lacc.analysis.plain import Plain
    from lacc.analysis.transition import Coupling, Factor, Recurrence
    from lacc.plan.explain import Table
    from lacc.plan.plan import Plan
    from lacc.static.build import Figures
    from lacc.static.launches import Call, Launch
    from lacc.tile.derive import Derived

SIDES: Mapping[tuple[int, ...], str] = {(): "", (0,): "rows ", (1,): "columns ", (0, 1): "entries "}


def of_syntax(spec: Spec) -> str:
    """The canonical text of a file, as any frontend reads it."""
    return unparse(spec.file)


def of_spec(spec: Spec) -> str:
    """The typed spec: everything named, with its shape, definitions and features worked in."""
    lines = [f"{a.role} {a.name} : {show_shape(a.shape)} per {a.per}" for a in spec.args]
    lines += [
        f"{definition.role or 'let'} {definition.name} : {show_shape(definition.expr.shape)}"
        f" = {show(definition.expr)}"
        for definition in spec.definitions
    ]
    for state in spec.states:
        lines.append(f"state {state.name} : {show_shape(state.shape)} = {show(state.initial)}")
        lines.append(f"  {state.name}[t] = {show(state.update)}")
    lines += [f"output {o.name} : {show_shape(o.shape)} = {show(o.expr)}" for o in spec.outputs]
    return "\n".join(lines)


def of_recurrences(plain: Plain) -> str:
    """Each recurrence that is compiled, in canonical form: decays, erases and writes of one token.
    A memory has the name of what is read of it, an exponent that of its field."""
    names = named(plain.spec)
    return "\n\n".join("\n".join(_recurrence(r, names)) for r in plain.recurrences)


def _recurrence(recurrence: Recurrence, names: Mapping[Expr, str]) -> Iterator[str]:
    states = ", ".join(map(_read, recurrence.states))
    yield f"{states}: {class_of(recurrence)}, {recurrence.direction}"
    if recurrence.decays:
        yield f"  decay  {_factors(recurrence.decays, names)}"
    for erase in recurrence.erases:
        side = "rows" if erase.axis == 0 else "columns"
        yield f"  erase  {side}: a = {show(erase.a, names)}, b = {show(erase.b, names)}"
    for write in recurrence.writes:
        yield f"  write  {_factors(write.factors, names)}"
    if recurrence.coupling is not None:
        yield from _coupling(recurrence.coupling, recurrence.states, names)
    if recurrence.tropical is not None:
        form = recurrence.tropical
        yield f"  scan   {form.op}, f = {show(form.f, names)}, i = {show(form.i, names)}"
    if recurrence.obstacle is not None:
        yield f"  no chunk form: {recurrence.obstacle.reason}"


def _read(name: str) -> str:
    owner, when = as_read(name, -1)
    return owner if when == -1 else f"{owner}[t{when}]"


def _coupling(
    coupling: Coupling, states: Sequence[str], names: Mapping[Expr, str]
) -> Iterator[str]:
    for to, row in zip(states, coupling.kept):
        for of, factors in zip(states, row):
            if factors is not None:
                yield f"  kept   {to} of {of}: {_factors(factors, names) or 1}"
    for n, rows in enumerate(coupling.reads):
        parts = [f"{show(b, names)} of {x}" for b, x in zip(rows, states) if b is not None]
        side = "rows" if coupling.axis == 0 else "columns"
        yield f"  read   w{n} = {side}: {' + '.join(parts)}"
    for added in coupling.added:
        parts = [f"{show(c, names)} to {x}" for c, x in zip(added.scales, states) if c is not None]
        what = [_factors(added.factors, names), f"w{added.read}" if added.read is not None else ""]
        yield f"  write  {' x '.join(filter(None, what)) or 1}: {', '.join(parts)}"


def _factors(factors: Sequence[Factor], names: Mapping[Expr, str]) -> str:
    return " x ".join(f"{SIDES[f.axes]}{show(f.expr, names)}" for f in factors)


def class_of(recurrence: Recurrence) -> str:
    """The class of a transition in two or three words."""
    if recurrence.kind != "affine":
        return recurrence.kind
    rank = f", rank {recurrence.rank}" if recurrence.rank else ""
    return recurrence.transition + rank


def of_programs(derived: Derived) -> str:
    """The tile programs of every pass, forward and backward, and of one token."""
    from lacc.tile.attention_pass import AttentionPass

    parts = []
    for n, stage in enumerate(derived.passes):
        if isinstance(stage, AttentionPass):
            parts.append(f"# pass {n}, all tokens at once\n{stage}")
            continue
        where = f"pass {n}, {stage.stage.direction}"
        parts.append(f"# {where}\n{stage.forward}")
        parts.append(f"# {where}, gradients\n{stage.backward}")
    if derived.token is not None:
        parts.append(f"# one token\n{derived.token.forward}")
        parts.append(f"# one token, gradients\n{derived.token.backward}")
    return "\n\n".join(parts)


def of_plan(plan: Plan) -> str:
    """The reasons of a plan."""
    return "\n".join([f"for the machine {plan.machine}", *plan.why])


def of_explained(plan: Plan, tables: Iterable[Table]) -> str:
    """The reasons of a plan, and the tables of a call."""
    return f"{of_plan(plan)}\n\n{of_tables(tables)}".rstrip()


def of_choice(
    plan: Plan, dims: Mapping[str, int], shape: Mapping[str, int], mode: str = "auto"
) -> str:
    """How a call of ``shape`` (B, T, H) in ``mode`` runs."""
    mode, tokens = plan.choose(shape["T"], shape["B"] * shape.get("H", 1), dims, mode)
    return f"{mode}, {tokens} tokens at a time" if mode == "chunk" else mode


def of_tables(tables: Iterable[Table]) -> str:
    """Each table under its title."""
    return "\n\n".join(f"{t.title}\n{table(t.header, t.rows)}" for t in tables)


FIGURES = (
    *("kernel", "grid", "warps", "stages", "registers", "spill B", "shared KB", "occupancy"),
    *("wgmma", "mma", "tcgen5", "read MiB", "written MiB", "issue us"),
)


def of_figures(figures: Figures) -> str:
    """What each call of a kernel launches, and what the figures mean."""
    from lacc.static.architectures import CLOCK, ISSUE, MULTIPROCESSORS

    sizes = ", ".join(f"{name} = {size}" for name, size in figures.sizes.items())
    head = f"{figures.spec} for {figures.architecture.name}, {figures.dtype} inputs: {sizes}\n"
    head += f"compiled by {figures.compiler} and read off the binaries: nothing has run"
    parts = [head]
    launches = [launch for call in figures.calls for launch in call.launches]
    unknown = {launch.unknown for launch in launches} - {""}
    counted = bool(unknown) or any(launch.issued is not None for launch in launches)
    header = FIGURES if counted else FIGURES[:-1]
    for call in figures.calls:
        rows = [of_launch(launch)[: len(header)] for launch in call.launches]
        parts.append(f"{call.name}: {of_call(call)}\n{table(header, rows)}")
    legend = (
        "spill: bytes of a thread in local memory. read, written (modelled): the tensors behind\n"
        "loads and stores of a launch, each once."
    )
    if counted:
        legend += (
            " issue (modelled): instructions as often as the\n"
            f"loops around them run, every branch taken, at {ISSUE} warp instructions a clock on "
            f"the\nbusiest of {MULTIPROCESSORS} multiprocessors at {CLOCK / 1e9:g} GHz; a bound "
            "from below, not a time."
        )
    parts.append(legend)
    parts += [f"issue is missing: {why}" for why in sorted(unknown)]
    return "\n\n".join(parts)


def of_call(call: Call) -> str:
    """The sums of a call in a line."""
    ops = ", ".join(f"{n} x {name}" if n > 1 else name for name, n in sorted(call.torch.items()))
    launches = f"{len(call.launches)} launch{'es' * (len(call.launches) != 1)}"
    memory = f"{call.bytes / 2**20:.1f} MiB read and written"
    time = "" if call.microseconds is None else f", {call.microseconds:.1f} us of issue"
    return f"{launches}, {f'torch ops: {ops}' if ops else 'no torch ops'}, {memory}{time}"


def of_launch(launch: Launch) -> tuple[str, ...]:
    """A row of `FIGURES`."""
    time = launch.microseconds
    return (
        launch.kernel,
        " x ".join(map(str, launch.grid)),
        *map(str, (launch.warps, launch.stages, launch.registers, launch.spill)),
        f"{launch.shared / 1024:.1f}",
        f"{launch.occupancy:.2f}",
        *(str(launch.tensor[kind]) for kind in ("wgmma", "mma", "tcgen5")),
        f"{launch.read / 2**20:.1f}",
        f"{launch.written / 2**20:.1f}",
        "" if time is None else f"{time:.1f}",
    )
