"""A target and a profile's name in, the machine to plan for out: one of the declared, or this one
with the constants that were measured on it."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from lacc import __version__
from lacc.plan.machine import CACHES, DEFAULT, LOCAL, MACHINES, RATES, SECONDS, Machine
from lacc.runtime import building, entries

KIND = "machines"
"""The kind of `entries` that constants are."""
FEATURES = (("avx512f", "avx512"), ("avx2", "avx2"), ("asimd", "neon"), ("neon", "neon"))
"""Features of a processor, and the family that it belongs to if it has one."""


def machine_for(target: str, name: str) -> tuple[Machine, str]:
    """The machine called ``name`` as ``target`` finds it, and what is to be said of its constants.
    Raises ValueError where there is none of that name."""
    known = MACHINES[target]
    if name == LOCAL:
        return local(target)
    if name not in known:
        raise ValueError(f"machine: expected one of {', '.join((*known, LOCAL))}, got {name!r}")
    said = "" if name == DEFAULT else f"constants of processors with {name}, not measured"
    return known[name], said


def local(target: str) -> tuple[Machine, str]:
    """This machine: as it was measured, else as its family."""
    known = MACHINES[target][family()]
    try:
        entry = entries.read(KIND, entry_name(target)) or {}
        measured: dict[str, Any] = {n: float(entry["constants"][n]) for n in (*RATES, *SECONDS)}
        measured |= {name: int(entry["constants"][name]) for name in CACHES}
        when = str(entry["when"])
    except (KeyError, TypeError, ValueError):  # there is none, or another version wrote it
        said = f"constants of processors with {known.name}: nothing was measured on this machine"
        return known, f"{said}, `lacc calibrate` does"
    machine = replace(known, **measured, name=LOCAL)
    return machine, f"constants that `lacc calibrate` measured on {when}: {shown(machine)}"


def shown(machine: Machine) -> str:
    """The rates of a machine in a line."""
    rates = f"{machine.flops / 1e9:.3g} Gflop/s in products, {machine.map / 1e9:.3g} elementwise"
    return f"{rates}, {machine.near / 1e9:.3g} GB/s in cache, {machine.far / 1e9:.3g} beyond"


def entry_name(target: str) -> str:
    """What the constants of ``target`` on this machine are kept under."""
    return f"{target}-{entries.digest(*device(target).values())}"


@cache
def device(target: str) -> dict[str, str]:
    """All that times on this machine depend on, by what it is."""
    from lacc.runtime.native import processors

    found = {"processor": building.processor(), "threads": str(processors()), "lacc": __version__}
    if target == "c":
        command = building.compiler()
        flags = os.environ.get("CFLAGS", "")
        found["compiler"] = " ".join((*command, building.compiler_version(command), flags))
    else:
        import numpy as np

        found["numpy"] = np.__version__
        blas = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
        found["blas"] = " ".join(os.environ.get(name, "") for name in blas)
    return found


def device_label(target: str) -> str:
    """This machine in a few words."""
    lines = building.processor().splitlines()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    threads = device(target)["threads"]
    name = named[0] if named else platform.machine()
    return f"{name}, {threads} thread{'s' * (threads != '1')}"


def family() -> str:
    """The family of this machine's processor, "plain" where it has no vectors that are known."""
    words = set(building.processor().replace(":", " ").split())
    if platform.machine().lower() in building.ARM:
        return "neon"
    return next((family for feature, family in FEATURES if feature in words), "plain")


def caches() -> dict[str, int]:
    """Bytes of the second and third level of cache of a core, as far as the system tells."""
    found: dict[str, int] = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            level = (index / "level").read_text().strip()
            size = (index / "size").read_text().strip()
        except OSError:
            continue
        if f"L{level}" in CACHES and size.endswith("K"):
            found[f"L{level}"] = int(size[:-1]) << 10
    return found
