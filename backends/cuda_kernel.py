"""One kernel in, its text out: its arguments and what a host gives for them, its tiles, its lines.

There are three kinds: one chunk by itself, chunk after chunk, token after token. A block of threads
has one sequence (or chunk) and head, and along the second axis of the grid a part of the axis that
is split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from lacc.backends.c_text import dim, plus, size
from lacc.backends.cuda_arrays import Argument
from lacc.backends.cuda_barriers import Step, place_barriers, steps, stretches, text
from lacc.backends.cuda_body import OPERANDS
from lacc.backends.cuda_places import Tile, parted, placed
from lacc.backends.cuda_steps import BLOCK, GOAL, MOST, TOKENS, CudaSteps
from lacc.backends.cuda_work import operations
from lacc.backends.device_kernel import KernelSpec
from lacc.runtime.cuda_arena import arena, evaluated
from lacc.runtime.cuda_choosing import Work
from lacc.spec.model import Spec

BLOCKS = (128, 64, 32)
"""The entries of the axis that blocks share at which tiles should fit."""


class CudaKernel(CudaSteps):
    """The text of one kernel."""

    def __init__(self, spec: Spec, what: KernelSpec, library: Iterable[str]) -> None:
        super().__init__(spec, what, library)
        self._place_barriers()
        self.tiles = self._tiles()

    def _place_barriers(self) -> None:
        """Where threads wait; of a chunk by itself also where that lets go of tiles while much is
        held."""
        place_barriers(self.items)
        if self.what.kind != "chunk":
            return
        sizes, every, more = self.sizes_at(TOKENS, BLOCK), [*steps(self.items)], list[Step]()
        found = {n: s for body in self.bodies for n, s in body.rooms.items()}
        found |= {self.body.tile(n): self.body.size(n) for s in self.body.each for n in s.makes}
        numbers = {name: evaluated(size, sizes) for name, size in found.items() if name}
        while step := parted(every, numbers, GOAL):
            more.append(step)
            for other in every:
                other.waits = any(other is x for x in more)
            place_barriers(self.items)

    def _tiles(self) -> list[Tile]:
        """Every tile, in the order in which they take their places."""
        last = max((step.stretch for step in steps(self.items)), default=0)
        where = stretches(steps(self.items))
        found = {name: Tile(name, size, 0, last) for name, size in self.room.items()}
        for body in self.bodies:
            found |= {name: Tile(name, size, *where[name]) for name, size in body.rooms.items()}
            for statement in (*body.before, *body.once, *body.each):
                for n in statement.makes:
                    name, size = body.tile(n), body.size(n)
                    if not name or name in found:
                        continue
                    span = where[name] if statement in body.each else (0, last)
                    found[name] = Tile(name, size, *span)
        sent = self._sent()
        assert len(sent) == len(set(sent)), sent
        spare = [Tile(n, size, 0, last, True) for n, size in self.ahead.values() if n in sent]
        touched = Counter(t.place for step in steps(self.items) for t in step.touches)
        order = sorted(found.values(), key=lambda tile: -touched[tile.name])
        if self.by_token or not order:
            return [*order, *spare]
        settings = [
            self.sizes_at(TOKENS, block, wide)
            for wide in (True, False)
            for block in (BLOCKS if self.split.axis else BLOCKS[:1])
        ]
        return [*placed(order, settings, MOST), *spare]

    def arena(self, chunk: int, block: int) -> int:
        """Bytes of all tiles of a block and of what its products are staged in, in chunks of so
        many tokens with so many entries of the axis that blocks share."""
        return arena(self.lasting, self.sizes_at(chunk, block), 1 << 62)[0]

    @property
    def lasting(self) -> tuple[tuple[str, int, int], ...]:
        """The tiles that a block always has: sizes, and from when to when."""
        return tuple((t.size, t.first, t.last) for t in self.tiles if not t.spare)

    def work(self) -> Work:
        """What launches are chosen by."""
        last = max((step.stretch for step in steps(self.items)), default=0)
        return Work(
            self.what.kind,
            self.lasting,
            last + 1,
            *operations(self.program, self.body.v.entries),
            plus(*self.moved["token"]),
            plus(*self.moved["chunk"]),
            (self.split.most, self.split_size) if self.split.axis else ("", ""),
        )

    def _sent(self) -> list[str]:
        """The tiles that rows wait in, by the calls that load them."""
        lines = (line for step in steps(self.items) for line in step.lines)
        return [line.split(", ")[1] for line in lines if line.startswith("load_ahead<")]

    def lines(self) -> list[str]:
        """The body of the function."""
        return [*self._declared(), *self._found_at(), *self.before, *text(self.items)]

    def _declared(self) -> list[str]:
        """Tiles, and variables of each thread."""
        decays = {
            body.tile(n)
            for body in self.bodies
            for n, inst in enumerate(body.body)
            if inst.op == "levels" and n in body.v.names
        }
        lines = ["constexpr auto lies = tiles();"] if self.tiles else []
        for k, tile in enumerate(self.tiles):
            name = f"{tile.name}_room" if tile.name in decays else tile.name
            found = f"spare({k})" if tile.spare else f"tile({k}, a.arena)"
            lines.append(f"real *const {name} = lies.{found};")
        if calls := len(self._sent()):
            lines.append(f"constexpr int others = {calls - 1};")
        lines += [f"levels_t {name};" for name in sorted(decays)]
        for body in self.bodies:
            if body.once:
                lines.append(f"int {'known_again' if body is self.again else 'known'} = -1;")
            names = [
                body.variable(n)
                for s in (*body.before, *body.once, *body.each)
                for n in s.makes
                if not body.tile(n)
            ]
            lines += [f"real {name};" for name in dict.fromkeys(names)]
        return lines

    def _found_at(self) -> list[str]:
        """The sequence, head and tokens that a block works at."""
        kind, T = self.what.kind, self.number("T", "tokens of a row", "run.T")
        H = self.number("H", "heads", "run.H")
        cu = self._given(
            "cu", "const int64_t *", "where sequences begin [N + 1], or null", "run.cu"
        )
        firsts = self._given(
            "firsts",
            "const int32_t *",
            "the first chunk of each sequence [N + 1], with cu",
            "run.firsts",
        )
        lines = [f"const int64_t program = blockIdx.x + a.program0, H = {H}, head = program % H;"]
        if kind == "chunk":
            table = self._given(
                "table",
                "const int32_t *",
                "the sequence of each chunk and its number there [chunks, 2], with cu",
                "run.table",
            )
            lines += [
                "const int64_t chunk = program / H;",
                f"const auto at = chunk_at(chunk, {T}, {table});",
                "const int64_t sequence = at.sequence, index = at.index;",
            ]
        else:
            lines.append("const int64_t sequence = program / H;")
        lines.append(f"const auto its = sequence_at(sequence, {T}, {cu}, {firsts});")
        if kind == "chunk":
            lines.append("if (index * L >= its.tokens) return; /* behind all tokens */")
        elif kind == "loop" or self.what.backward:
            lines.append("const int64_t chunks = (its.tokens + L - 1) / L;")
        if self.counts:
            position = self._given(
                "position",
                "const int64_t *",
                "tokens before the first one [N], or null",
                "run.position",
            )
            lines.append(f"const int64_t seen = {position} ? {position}[sequence] : 0;")
        if self.by_token and not self.what.backward:
            rows = self._given(
                "state_rows",
                "const int64_t *",
                "the row of each sequence's state [N], or null",
                "run.rows",
            )
            into = self.number(
                "INTO", "whether states are written in those rows", "run.into is not None"
            )
            lines.append(f"const int64_t begin_row = {rows} ? {rows}[sequence] : sequence;")
            lines.append(f"const int64_t end_row = {into} ? begin_row : sequence;")
        if self.split.axis:
            whole, most = self.split_size, self.split.most
            lines.append(f"const int64_t from = blockIdx.y * (int64_t){most};")
            lines.append(
                f"const int {self.split.here} = {whole} % {most} == 0 ? {most} : "
                f"least({most}, {whole} - (int)from);"
            )
        return lines

    def _given(self, name: str, type_: str, said: str, call: str) -> str:
        self.pointers[name] = Argument(name, said, call, type_)
        return f"a.{name}"

    @property
    def programs(self) -> str:
        """How many programs a launch has."""
        return "chunks * H" if self.what.kind == "chunk" else "N * H"

    @property
    def stages(self) -> bool:
        """Whether products stage their operands in shared memory."""
        return any(t.place == OPERANDS for step in steps(self.items) for t in step.touches)

    @property
    def together(self) -> str:
        """Blocks that a multiprocessor runs at once, "" where each has one program."""
        return ""

    @property
    def widest(self) -> str:
        """Entries of the axis that blocks share in each at most, as Python over dims ``n``; "" is
        as the host has it."""
        return ""

    @property
    def blocks(self) -> str:
        """How many blocks of each."""
        return f"{self.split_size} / BLOCK, rounded up" if self.split.axis else "1"

    @property
    def split_size(self) -> str:
        """The size of the axis that blocks share."""
        return size(self.program.sizes[self.split.axis]).code

    def sizes(self) -> list[str]:
        """Constants of the kernel."""
        dims = [f"{dim(name)} = D_{name}" for name in self.spec.dims]
        lines = [f"[[maybe_unused]] constexpr int {', '.join([*dims, 'L = CHUNK_L'])};"]
        if self.split.axis:
            whole = self.split_size
            lines.append(f"constexpr int {self.split.most} = BLOCK < {whole} ? BLOCK : {whole};")
        return lines
