"""Tables by op beside the op tables: none lacks a row that some program needs."""

from __future__ import annotations

from lacc.backends import numpy_text, triton_text
from lacc.backends.base import PICKED
from lacc.ir.ops import OPS
from lacc.plan.cost import RUNS
from lacc.tile.held import COMPARISONS, FINITE_OF_FINITE
from lacc.tile.ops import TILE_OPS
from lacc.tile.pad import KNOWN

ENTRYWISE = {name for name, op in OPS.items() if op.entrywise}
UNWRITTEN = {"load", "instead", "through_time", "within", "chain_parts", "solve_parts"}
"""Ops that no NumPy is written for: names of arrays, what rewrites take out, and what other targets
have for tiles that are padded, or that hold no axis of a few entries."""


def test_no_op_has_two_meanings() -> None:
    assert not ENTRYWISE & set(TILE_OPS)


def test_every_op_has_a_numpy_format() -> None:
    assert set(numpy_text.ELEMENTWISE) == ENTRYWISE
    assert set(numpy_text.CALLS) == set(TILE_OPS) - UNWRITTEN


def test_every_op_that_unrolling_leaves_has_a_triton_format() -> None:
    formats = {*triton_text.ELEMENTWISE, *triton_text.OTHER}
    assert not set(triton_text.ELEMENTWISE) & set(triton_text.OTHER)
    assert not formats & triton_text.WRITTEN_BY_KERNEL
    assert formats | triton_text.WRITTEN_BY_KERNEL == KNOWN


def test_padding_knows_every_op_that_unrolling_leaves() -> None:
    assert (ENTRYWISE | set(TILE_OPS)) - {"stack", "entry", "chain", "chain_back"} == KNOWN
    assert FINITE_OF_FINITE | COMPARISONS <= ENTRYWISE


def test_tables_of_some_ops_name_ops() -> None:
    assert set(RUNS) | set(PICKED) | set(numpy_text.LAID) <= set(TILE_OPS)
    assert {name for name in TILE_OPS if name.endswith("_pull")} <= set(RUNS)
