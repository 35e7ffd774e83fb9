"""What every example's kernels take, built without a GPU, beside the committed table: with
``-m full`` alone, a process for each of two builds at a time.

``LACC_UPDATE=1 pytest -m full tests/test_static_matrix.py`` writes ``tests/static/matrix.md``
after every build. A row names the digest of the emitted file that it was built from, so an
interrupted run goes on where it stopped, and a later one builds what has changed since. A build
that spills more than its row says is not written: its row has to be deleted first.
Without the variable everything is built, and compared but for the digests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version

import pytest
from conftest import EXAMPLES, ROOT

from lacc import LaccError, driver
from lacc.backends.torch_api import public_name
from lacc.static.build import Refused, figures
from lacc.static.launches import Call

TABLE = ROOT / "tests" / "static" / "matrix.md"
SHAPE = {"B": 1, "T": 4096, "H": 16}
LEAST = 64
"""Dims that an example declares smaller keep their size: features grow with its square."""
WIDE = ("simple_gla", "gla", "gated_deltanet", "kda", "rwkv7")
"""Examples that are built for K = V = 128 too."""

CLASSES = (
    *("simple_gla", "gla", "hgrn", "gated_deltanet", "deltaproduct", "momentum_delta", "lru"),
    *("mamba1", "mlstm", "slstm", "softmax_attention"),
)
"""One example of each class of transition, built for the other architectures too."""

COLUMNS = (
    *("example", "architecture", "K, V, D", "source", "call", "launches", "torch ops"),
    *("registers", "spill B", "shared KB", "wgmma", "mma", "tcgen5", "MiB", "issue us"),
)
FAILS = "does not compile"
SPILL = COLUMNS.index("spill B") - 4

Row = tuple[str, ...]
"""The cells from ``call`` on; those of a build that failed are why, and nothing else."""


@dataclass(frozen=True, slots=True)
class Build:
    """One example, for an architecture, with K, V and D of a size where it leaves them open."""

    architecture: str
    size: int
    example: str


BUILDS = (
    *(Build("sm_90", 64, path.stem) for path in EXAMPLES),
    *(Build("sm_90", 128, name) for name in WIDE),
    *(Build(other, 64, name) for other in ("sm_80", "sm_100", "gfx942") for name in CLASSES),
)


@dataclass(frozen=True, slots=True)
class Found:
    """The rows of a build, and the digest of the emitted file that they are of."""

    source: str
    rows: tuple[Row, ...]

    @property
    def spills(self) -> dict[str, int]:
        """Bytes by call, where a kernel of it spills."""
        spilt = {row[0]: int(row[SPILL]) for row in self.rows if len(row) > 1}
        return {call: count for call, count in spilt.items() if count}


def found(build: Build, kept: Found | None) -> Found:
    """What a build takes; what is ``kept`` where it is of the same emitted file."""
    path = ROOT / "examples" / f"{build.example}.la"
    try:
        kernel = driver.compile(path, "triton", dtype="bfloat16")
    except LaccError as refused:
        return Found("", ((refused.diagnostics[0].message,),))
    assert kernel.source is not None
    source = sha256(kernel.source.encode()).hexdigest()[:12]
    if kept is not None and kept.source == source:
        return kept
    dims, pinned = kernel.signature.dims, kernel.signature.pinned
    free = [n for n in ("K", "V", "D") if dims.get(n, 0) >= LEAST and n not in pinned]
    sizes = SHAPE | dict.fromkeys(free, build.size)
    function = public_name(kernel.signature)
    try:
        built = figures(kernel, function, build.architecture, sizes, "bfloat16")
    except ValueError as refused:
        return Found(source, ((said(refused),),))
    except (Refused, RuntimeError) as failed:
        return Found(source, ((f"{FAILS}: {said(failed)}",),))
    return Found(source, tuple(map(cells, built.calls)))


def said(problem: Exception) -> str:
    """What an error says, as a cell; of Triton's not the command, which has paths of a machine."""
    text = str(problem).partition("Repro command")[0]
    return " ".join(text.split())[-300:].replace("|", "/")


def cells(call: Call) -> Row:
    """A call as a row."""
    launches = call.launches
    return (
        call.name,
        str(len(launches)),
        str(sum(call.torch.values())),
        str(max((launch.registers for launch in launches), default=0)),
        str(call.spill),
        f"{max((launch.shared for launch in launches), default=0) / 1024:.1f}",
        *(
            str(sum(launch.tensor[kind] for launch in launches))
            for kind in ("wgmma", "mma", "tcgen5")
        ),
        f"{call.bytes / 2**20:.1f}",
        "-" if call.microseconds is None else f"{call.microseconds:.1f}",
    )


def page(compiler: str, of: Mapping[Build, Found]) -> str:
    """All builds as Markdown; the first line names the compiler."""
    lines = [line(COLUMNS), line(["---"] * len(COLUMNS))]
    spills = []
    for build in filter(of.__contains__, BUILDS):
        head = (build.example, build.architecture, str(build.size), of[build].source or "-")
        lines += [line((*head, *row)) for row in of[build].rows]
        bytes_ = ", ".join(f"{call} {count}" for call, count in of[build].spills.items())
        if bytes_:
            spills.append(f"- {build.example}, {build.architecture}, {build.size}: {bytes_}")
    absent = [b for b in BUILDS if b not in of]
    parts = [
        f"{compiler}, bfloat16: B = 1, T = 4096, H = 16; {len(of)} of {len(BUILDS)} builds",
        "In: `tests/test_static_matrix.py`. Out: for each call of an example the most registers,\n"
        "bytes spilled and shared memory of its kernels, and sums of the rest. Nothing ran.\n"
        "K, V and D that an example declares below 64 keep that size. `inference` draws random\n"
        "buffers, once.",
        "## Spills (bytes of a thread)",
        "\n".join(spills) or "None.",
        "## Not built yet",
        "\n".join(f"- {b.example}, {b.architecture}, {b.size}" for b in absent) or "None.",
        "## Builds",
        "\n".join(lines),
    ]
    return "\n\n".join(parts) + "\n"


def line(values: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(values)} |"


def committed(text: str, compiler: str) -> dict[Build, Found]:
    """What a table says, if it is of this compiler."""
    if not text.startswith(f"{compiler},"):
        return {}
    of: dict[Build, Found] = {}
    for row in text.splitlines():
        example, architecture, size, source, *rest = row.strip("| ").split(" | ") + [""] * 4
        if row.startswith("|") and size.isdigit():
            build, cells_ = Build(architecture, int(size), example), tuple(filter(None, rest))
            rows = of[build].rows if build in of else ()
            of[build] = Found(source.strip("-"), (*rows, cells_))
    return of


def each(kept: Mapping[Build, Found]) -> Iterator[tuple[Build, Found]]:
    """Builds as they finish, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        jobs: dict[Future[Found], Build] = {pool.submit(found, b, kept.get(b)): b for b in BUILDS}
        try:
            for job in as_completed(jobs):
                yield jobs[job], job.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def test_the_table_reads_as_it_was_written() -> None:
    failed, row = Found("", (("refused",),)), ("forward", "2", "0", "99", "8", "1.0", *"00", "0")
    of = {
        BUILDS[0]: Found("abc", ((*row, "7.0", "-"), ("step", *row[1:4], "0", *row[5:], "1", "2"))),
        BUILDS[-1]: failed,
    }
    text = page("triton 0", of)
    assert f"- {BUILDS[0].example}, sm_90, 64: forward 8\n" in text
    assert f"2 of {len(BUILDS)} builds" in text
    assert committed(text, "triton 0") == of
    assert committed(text, "triton 1") == {}
    assert said(RuntimeError("no registers |\n\nRepro command: /home/me/ptxas")) == "no registers /"


@pytest.mark.full
def test_every_example_is_built_as_it_was() -> None:
    pytest.importorskip("triton")
    compiler = f"triton {version('triton')}"
    before = committed(TABLE.read_text("utf-8") if TABLE.exists() else "", compiler)
    update = bool(os.environ.get("LACC_UPDATE"))
    if not before and not update:
        pytest.skip(f"{TABLE.name} is not of {compiler}")
    now = dict(before)
    other, worse, failed = [], [], []
    for build, has in each(before if update else {}):
        had = before.get(build)
        if any(row[0].startswith(FAILS) for row in has.rows):
            failed.append(build)
        if had is None or has.rows != had.rows:
            other.append(build)
        if had and any(count > had.spills.get(call, 0) for call, count in has.spills.items()):
            worse.append(build)
        elif update:
            now[build] = has
            TABLE.write_text(page(compiler, now), encoding="utf-8")
    assert not failed
    assert not worse, "these spill more than they did"
    assert update or not other
