"""Products of matrices in a chunk, counted in the programs that targets print: no more than the
closed forms have, whatever autodiff and rewrites do.

C tokens, K rows and V columns of a state: "CCK" is a product over these three. A product of decayed
pairs counts once, however its decays are walked; "CCV solve" is the product of the inverse of a
triangular system with V columns.
"""

from __future__ import annotations

from collections import Counter

import pytest
from conftest import ROOT

from lacc import driver
from lacc.tile.program import Program

PRODUCTS = {"contract": 1, "gram": 1, "meet": 1, "decayed": 1, "meet_pull": 2, "decayed_pull": 3}

ADDITIVE = ({"CCK": 1, "CCV": 1, "CKV": 2}, {"CCK": 3, "CCV": 2, "CKV": 4})
MERGED = (
    {"CCK": 2, "CCV": 1, "CKV": 3, "CCK solve": 1, "CCV solve": 1},
    {"CCK": 6, "CCV": 3, "CKV": 7, "CCK solve": 1, "CCV solve": 2},
)
UNMERGED = (
    {"CCK": 4, "CCV": 3, "CKV": 4, "CCK solve": 1, "CCV solve": 1},
    {"CCK": 12, "CCV": 8, "CKV": 9, "CCK solve": 1, "CCV solve": 2},
)
FORMS = {
    **dict.fromkeys(("retnet", "simple_gla", "gla"), ADDITIVE),
    **dict.fromkeys(("deltanet", "gated_deltanet", "kda", "gdn2", "comba"), MERGED),
    **dict.fromkeys(("rwkv7", "dplr", "iplr"), UNMERGED),
}


def products(program: Program) -> Counter[str]:
    """How often each kind of product stands in a program."""
    found: Counter[str] = Counter()
    for inst in program.body:
        if inst.op in PRODUCTS:
            operands = [program.body[i] for i in inst.ins]
            axes = {a for tile in (*operands, inst) for a in tile.axes}
            kind = "".join(sorted("C" if a in ("t", "s") else a for a in axes))
            solve = any(inverts(program, i) for i in inst.ins)
            if len(kind) == 3:
                found[kind + " solve" * solve] += PRODUCTS[inst.op]
    return found


def inverts(program: Program, n: int) -> bool:
    """Whether a value is an inverse, or one times factors."""
    inst = program.body[n]
    return inst.op == "inverse" or (inst.op == "mul" and any(inverts(program, i) for i in inst.ins))


@pytest.mark.parametrize("name", FORMS)
def test_a_chunk_takes_no_more_products_than_its_closed_form(name: str) -> None:
    (stage,) = driver.analyse(driver.load(ROOT / "examples" / f"{name}.la")).passes
    forward, backward = FORMS[name]
    assert products(stage.lowered) == forward
    assert products(stage.lowered_back) == backward
