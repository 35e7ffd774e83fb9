"""A variant whose C is written by hand, and files of it with this and with emitted C: what the
tests of the host share."""

from __future__ import annotations

from conftest import ROOT

from lacc import driver, targets
from lacc.backends.c_host import Emitted, first_line, native_entry, public_name, python_text
from lacc.backends.to_c import to_c
from lacc.plan.choose import choose
from lacc.spec.model import Spec

SOURCES = ROOT / "tests" / "c"


def leaky() -> tuple[Spec, Emitted]:
    """The spec and the files."""
    spec = driver.load(SOURCES / "leaky.la")
    derived = driver.analyse(spec)
    _, seen = targets.offered(spec, "c", derived, None)
    takes = {"inputs": ["x"], "fixed": ["w"], "states": ["S"], "outputs": ["o"]}
    passes = [native_entry("0", **takes)]
    python = python_text(derived, choose(derived), seen, passes, native_entry("token", **takes))
    c, h = ((SOURCES / f"leaky{ending}").read_text("utf-8") for ending in (".c", ".h"))
    return spec, Emitted(public_name(seen), f"{first_line(spec)}\n{c}", h, python)


def emitted() -> Emitted:
    """The files with emitted C."""
    spec = leaky()[0]
    derived = driver.analyse(spec)
    return to_c(derived, choose(derived), targets.offered(spec, "c", derived, None)[1])
