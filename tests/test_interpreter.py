"""The interpreter of Triton kernels: it computes as a GPU does, and each planted fault is found.

The kernels are those of `interpreter_worker.py`, which runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT

pytest.importorskip("torch")
pytest.importorskip("triton")

from lacc.interpreter.memory import Argument, Memory, MemoryFault
from lacc.interpreter.rounding import bfloat16, product, tf32

WORKER = ROOT / "tests" / "interpreter_worker.py"
ORDERS = ("ascending", "descending", "shuffle")
SOUND = ("copy", "copy strided", "total", "apart", "shifted", "turned", "aligned", "gathered")
FAULTS = {
    "copy without mask": "program 2: loads out of bounds, element 21 of x",
    "copy too few": "not finite",
    "copy between": "loads between the elements",
    "copy far": "out of bounds",
    "total without other": "not finite",
    "overlapping": "races: stores what another program stores, element 7 of y",
    "shifted in place": "races",
    "turned without barrier": "loads what it stored, no tl.debug_barrier()",
    "skewed": "off an element's boundary, element 0.5 of x",
    "gathered at one": "stores different values at one element",
}


def work(*what: str, **environment: str) -> dict[str, Any]:
    """What the worker prints."""
    done = subprocess.run(
        [sys.executable, WORKER, *what],
        cwd=Path(WORKER).parent,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1", **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def repaired() -> dict[str, Any]:
    return work("checked", "numbers", "mixed", "counts", "obstacle")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("case", SOUND)
def test_a_sound_kernel_passes(case: str, order: str, repaired: dict[str, Any]) -> None:
    assert repaired["checked"][f"{case}, {order}"] == ""


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("case", FAULTS)
def test_a_planted_fault_is_found(case: str, order: str, repaired: dict[str, Any]) -> None:
    assert FAULTS[case] in repaired["checked"][f"{case}, {order}"]


def test_numbers_are_rounded_as_a_gpu_rounds_them(repaired: dict[str, Any]) -> None:
    found = repaired["numbers"]
    for case, error in found.items():
        if "dot" not in case and "truncated" not in case:
            assert error == 0, case
    assert found["float32 truncated"] > 2**-9
    assert found["float32 dot default"] == found["float32 dot tf32"]
    assert 2**-14 < found["float32 dot tf32"] < 2**-11
    assert 2**-20 < found["float32 dot bf16x3"] < 2**-16
    for exact in ("ieee", "tf32x3", "bf16x6"):
        assert found[f"float32 dot {exact}"] < 1e-6
    assert found["bfloat16 dot default"] < 1e-6 > found["float16 dot default"]


def test_fast_operators_give_the_numbers_of_the_stock_interpreter(repaired: dict[str, Any]) -> None:
    assert repaired["mixed"] == work("stock")["stock"]


def test_work_is_counted(repaired: dict[str, Any]) -> None:
    copied, multiplied = repaired["counts"]["copy"], repaired["counts"]["product"]
    assert (copied["launches"], copied["programs"]) == (1, 3)
    assert copied["load_bytes"] == copied["read_bytes"] == copied["store_bytes"] == 4 * 21
    assert (multiplied["dots"], multiplied["dot_flops"]) == (1, 2 * 16**3)
    assert multiplied["written_bytes"] == 4 * 16**2
    assert repaired["counts"]["arithmetic"]["exponentials"] == 16**2


def test_where_it_is_off_that_is_said(repaired: dict[str, Any]) -> None:
    assert repaired["obstacle"] == ""
    assert work("obstacle", TRITON_INTERPRET="0")["obstacle"] == "TRITON_INTERPRET=1 is not set"
    late = "import triton.language, os; os.environ['TRITON_INTERPRET'] = '1'"
    repair = "from lacc.interpreter import repair as act"
    assert "LA0702" in says(late, repair) and "triton was imported before" in says(late, repair)


def says(first: str, door: str) -> str:
    """What a process that runs ``first`` is told by ``act``, which ``door`` imports."""
    text = (
        f"{first}\n{door}\nfrom lacc import LaccError\n"
        "try: print(act())\nexcept LaccError as problem: print(problem.code, problem)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", text]
    return subprocess.run(command, env=environment, capture_output=True, text=True).stdout


def test_a_process_without_a_gpu_is_prepared_before_it_imports_triton() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    prepare = "from functools import partial; from lacc.driver import prepare; act = partial("
    assert "no GPU: kernels run interpreted" in says("", f"{prepare}prepare, 'triton')")
    late = says("import triton", f"{prepare}prepare, 'triton')")
    assert "LA0702" in late and "there is no GPU, and triton was imported before" in late
    assert says("import triton", f"{prepare}prepare, 'numpy')").strip() == ""


def test_tf32_and_bfloat16_round_to_nearest_even() -> None:
    x = np.array([1 + 2**-11, 1 + 3 * 2**-11, -(1 + 2**-10), np.inf, np.nan], np.float32)
    expected = np.array([1, 1 + 2**-9, -(1 + 2**-10), np.inf, np.nan])
    np.testing.assert_array_equal(tf32(x), expected)
    y = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-7], np.float32)
    np.testing.assert_array_equal(bfloat16(y), [1, 1 + 2**-6, 1 + 2**-7])


def test_products_of_split_operands_keep_infinities() -> None:
    a = np.array([[np.inf, 1.0]], np.float32)
    for precision in ("ieee", "tf32", "tf32x3", "bf16x6"):
        with np.errstate(invalid="ignore"):
            assert product(a, np.ones((2, 1), np.float32), precision)[0, 0] == np.inf


def test_an_address_tells_whose_it_is() -> None:
    import torch

    memory = Memory("kernel", watched=False, poisoned=False)
    x, y = torch.arange(6.0).reshape(2, 3), torch.zeros(2)
    first, second = memory.place("x", x[:, 1:]), memory.place("y", y)
    at = np.array([first, first + 4, first + 12], np.uint64)
    assert memory.load(at, None, None, np.dtype(np.float32)).tolist() == [1, 2, 4]
    memory.store(np.array([second], np.uint64), None, np.float32(7), np.dtype(np.float32))
    assert y.tolist() == [7, 0]
    for wrong in (first - 4, first + 20, second + 8, 5):
        with pytest.raises(MemoryFault):
            memory.load(np.array([wrong], np.uint64), None, None, np.dtype(np.float32))


def test_the_gaps_of_a_view_are_those_between_its_strides() -> None:
    import torch

    def gaps(x: Any) -> Any:
        return Argument("x", x, 0).gaps

    x = torch.zeros(4, 6)
    assert gaps(x) is None and gaps(x.T) is None
    assert gaps(x[:2, :2]).tolist() == [False, False, True, True, True, True, False, False]
    assert gaps(torch.zeros(3).expand(4, 3)) is None and gaps(x[:0]) is None
