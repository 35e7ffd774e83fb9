"""Derived programs and what is wanted of a plan in, the plan of a target out: for a machine that is
declared, or for this one, and with what was measured before what a model says."""

from __future__ import annotations

from dataclasses import replace

from lacc.plan.choose import Wanted, choose
from lacc.plan.plan import Plan
from lacc.runtime import tuned
from lacc.runtime.machines import machine_for
from lacc.spec.model import Spec
from lacc.tile.derive import Derived


def planned(spec: Spec, derived: Derived, target: str, wanted: Wanted) -> Plan:
    """The plan of ``spec``. Raises ValueError for a machine that there is not, or a file of
    measured choices that is none."""
    machine, said = machine_for(target, wanted.machine)
    plan = choose(
        derived, dtype=wanted.dtype, mode=wanted.mode, chunk=wanted.chunk, machine=machine
    )
    if said:
        plan = replace(plan, why=(*plan.why, said))
    if wanted.tuned and wanted.chunk is None:
        return tuned.applied(plan, spec, target, wanted)
    return plan
