"""Figures of a build without a GPU: what is read off the IR and the binaries, and what examples
launch, beside the committed tables.

``LACC_UPDATE=1`` writes the tables anew.
"""

from __future__ import annotations

import ast
import os
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT
from typer.testing import CliRunner

from lacc import LaccError, driver
from lacc.cli import app
from lacc.report import table
from lacc.static import binary, ttir
from lacc.static.architectures import ARCHITECTURES
from lacc.static.build import Figures, complete
from lacc.static.launches import Launch
from lacc.views import FIGURES, of_call, of_figures, of_launch

TABLES = ROOT / "tests" / "static"
SHAPE = {"B": 1, "T": 4096, "H": 16}
HEAD = {"K": 64, "V": 64}
CLASSES = {
    "linear_transformer": HEAD,
    "simple_gla": HEAD,
    "gla": HEAD,
    "hgrn": {"D": 64},
    "rwkv4": {"D": 64},
    "softmax_attention": HEAD,
    "slstm": {"D": 64},
    "gated_deltanet": HEAD,
}
"""Examples of classes of transitions, and sizes."""

SPILLS = {
    "slstm": {"backward_token": 48},
    "softmax_attention": {"attend_keys_kernel": 120},
}
"""The most bytes that a thread of an example's kernels spills; what is not here spills none."""


def test_the_ir_says_what_is_touched_and_how_often_loops_run() -> None:
    kernel = ttir.parse((TABLES / "loops.ttir").read_text())
    assert kernel.arguments == ("x_ptr", "y", "z", "T")
    assert ttir.accesses(kernel) == {"x_ptr": "r", "z": "rw", "y": "w"}
    inner = (("/a/b.py", 7), ("/a/b.py", 3))
    assert ttir.executions(kernel, {"T": 20}, (4, 1, 1)) == [
        ttir.Turns((("/a/b.py", 7),), 0, 10.0),
        ttir.Turns(inner, 1, 10.0),
        ttir.Turns((("/a/b.py", 7),), 0, 0.25),  # in one program of four
    ]
    with pytest.raises(ttir.Unknown, match="the bounds of a loop at line 7"):
        ttir.executions(kernel, {}, (1,))


def straight(count: int, wait: tuple[int, ...] = ()) -> list[binary.Instruction]:
    return [
        binary.Instruction(n, "SYNCS.PHASECHK P0" if n in wait else "FADD R1", ())
        for n in range(count)
    ]


def test_instructions_count_as_often_as_their_loop_runs() -> None:
    place, other = (("a.py", 1),), (("a.py", 2),)
    outer, inner = binary.Loop(10, 89, place), binary.Loop(20, 59, other)
    turns = [ttir.Turns(place, 0, 4.0), ttir.Turns(other, 1, 12.0)]
    assert binary.issued(straight(100), [inner, outer], turns) == 20 + 40 * 4 + 40 * 12
    spin = binary.Loop(95, 96, place)
    assert binary.issued(straight(100, wait=(95,)), [inner, outer, spin], turns) == 660
    assert binary.issued(straight(100), [inner, outer], turns[::-1]) == 660  # by line


def test_a_loop_unrolled_by_the_assembler_runs_less_often() -> None:
    place = (("a.py", 1),)
    loops = [binary.Loop(0, 79, place), binary.Loop(80, 99, place)]
    assert binary.issued(straight(100), loops, [ttir.Turns(place, 0, 18.0)]) == 80 * 4 + 20 * 2
    with pytest.raises(ttir.Unknown, match="0 loops of line 1 became 2"):
        binary.issued(straight(100), loops, [])


def test_occupancy_is_bound_by_the_scarcest() -> None:
    hopper = ARCHITECTURES["sm_90"]
    assert hopper.occupancy(255, 0, 8) == 8 / 64  # registers
    assert hopper.occupancy(32, 100 << 10, 8) == 16 / 64  # shared memory
    assert hopper.occupancy(32, 0, 1) == 32 / 64  # programs
    assert hopper.occupancy(32, 228 << 10, 4) == 0
    assert ARCHITECTURES["gfx942"].occupancy(128, 0, 4) == 16 / 32


def test_issue_time_is_that_of_the_busiest_multiprocessor() -> None:
    launch = Launch("k", (133, 1, 1), 8, 2, 99, 0, 0, 0.5, {}, 0, 0, 1750.0)
    assert launch.microseconds == pytest.approx(2 * 8 * 1750 / 4 / 1750)


def test_sizes_are_those_of_the_spec() -> None:
    signature = driver.compile(ROOT / "examples" / "gla.la", "triton", K=16).signature
    assert complete(signature, {"T": 7, "V": 32})["V"] == 32
    assert complete(signature, {"T": 7})["#T"] == 7
    for sizes, said in (
        ({"Q": 3}, "gla has no dim Q"),
        ({"K": 32}, "K is 16 in gla"),
        ({"H": 4, "G": 3}, "G = 3 does not divide H = 4"),
    ):
        with pytest.raises(ValueError, match=said):
            complete(signature, sizes)


def test_a_report_is_asked_for_in_words_that_fit() -> None:
    gla = str(ROOT / "examples" / "gla.la")
    for words, said in (
        (["--arch", "sm_90"], "--arch is for --emit=report"),
        (["--shape", "T=1"], "--shape is for --emit=report"),
        (["--emit=report", "-t", "triton", "--shape", "Q=1"], "the dims K, V, got Q"),
        (["--emit=report", "-t", "triton", "--dtype", "float64"], "a GPU takes inputs of"),
    ):
        result = CliRunner().invoke(app, ["compile", gla, *words])
        assert result.exit_code == 2 and said in " ".join(result.output.split())
    with pytest.raises(LaccError) as raised:
        driver.build_report(gla, "numpy", shape=SHAPE)
    assert raised.value.code == "LA0703"


@pytest.mark.parametrize("name", ["gla", "mlstm", "softmax_attention"])
def test_what_is_pasted_together_defines_a_name_once(name: str) -> None:
    source = driver.compile(ROOT / "examples" / f"{name}.la", "triton").source
    assert source is not None
    defined: Counter[str] = Counter()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined[node.name] += 1
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined.update(target.id for target in targets if isinstance(target, ast.Name))
    assert [each for each, times in defined.items() if times > 1] == []


# ---- compiled ------------------------------------------------------------------------------------


def build(name: str, architecture: str, **sizes: int) -> Figures:
    return driver.build_report(
        ROOT / "examples" / f"{name}.la",
        shape=SHAPE | sizes,
        architecture=architecture,
        dtype="bfloat16",
    )


def test_torch_ops_count_where_they_launch_something() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from lacc.static.torch_ops import TorchOps

    twice = torch.library.custom_op(
        "lacc_tests::twice",
        lambda x: x.to(x.dtype).float() + x,
        mutates_args=(),
        schema="(Tensor x) -> Tensor",
    )
    x = torch.zeros(2, 3, dtype=torch.bfloat16)
    with TorchOps() as ops:
        twice(x.transpose(0, 1)[None].expand(4, 3, 2))
        torch.empty(3).view(1, 3)
        x.t().reshape(6)
    assert ops.seen == {"_to_copy": 1, "add": 1, "clone": 1}


def test_a_report_says_what_it_is() -> None:
    pytest.importorskip("triton")
    text = of_figures(built("gla"))
    assert "compiled by triton" in text and "nothing has run" in text and "not a time" in text
    for name in ("inference: 2 launches, no torch ops", "sm_90, bfloat16", "T = 4096", "issue us"):
        assert name in text


POOL = ThreadPoolExecutor(2)  # each build is a process of its own


@cache
def begun(name: str) -> Future[Figures]:
    """The build of an example for sm_90, which goes on in the background."""
    return POOL.submit(build, name, "sm_90", **CLASSES[name])


def built(name: str) -> Figures:
    """The build of a class; where one process runs all tests, the others are begun too."""
    for other in CLASSES if "PYTEST_XDIST_WORKER" not in os.environ else (name,):
        begun(other)
    return begun(name).result()


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_compiles_for_sm_90_as_it_did(name: str) -> None:
    pytest.importorskip("triton")
    found = built(name)
    assert [call.name for call in found.calls][:2] == ["inference", "forward"]
    assert all(call.launches for call in found.calls)
    same(TABLES / f"{name}.md", page(found), found.compiler)
    spills: dict[str, int] = {}
    for launch in (launch for call in found.calls for launch in call.launches):
        assert launch.occupancy > 0, f"{launch.kernel} does not fit"
        spills[launch.kernel] = max(launch.spill, spills.get(launch.kernel, 0))
    assert {kernel: count for kernel, count in spills.items() if count} == SPILLS.get(name, {})


def page(found: Figures) -> str:
    """One build as Markdown; the first line names the compiler."""
    sizes = ", ".join(f"{name} = {size}" for name, size in found.sizes.items())
    parts = [f"{found.compiler}, {found.architecture.name}, {found.dtype}: {sizes}"]
    for call in found.calls:
        rows = [of_launch(launch) for launch in call.launches]
        parts.append(f"{call.name}: {of_call(call)}\n\n```\n{table(FIGURES, rows)}\n```")
    return "\n\n".join(parts) + "\n"


def same(path: Path, text: str, compiler: str) -> None:
    """That a file holds the text, where the compiler is the one that wrote it."""
    if os.environ.get("LACC_UPDATE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    committed = path.read_text(encoding="utf-8")
    if not committed.startswith(f"{compiler},"):
        pytest.skip(f"{path.name} is of {committed.split(',')[0]}, this is {compiler}")
    assert text == committed
