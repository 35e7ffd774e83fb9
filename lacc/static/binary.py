"""A compiled kernel's binary or assembly text goes in; registers, spills, tensor-core instructions
and the instructions that a program issues come out.

NVIDIA's disassembler from the Triton wheel reads a cubin, with the source lines that Triton leaves
in it; the assembly text of AMD states its resources itself.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lacc.static.ttir import Place, Turns, Unknown

TENSOR = {
    "wgmma": re.compile(r"\b[HIQB]GMMA"),
    "mma": re.compile(r"\b[HIQDBO]MMA|\bv_(?:s?mfmac?|wmma)_"),
    "tcgen5": re.compile(r"\bUTC\w*MMA"),
}
"""Tensor-core instructions by kind, as the assembly of either vendor spells them."""

SPIN = 16
"""A loop that waits for memory has at most so many instructions."""

_LINE = re.compile(r'//## File "(.*?)", line (\d+)(?: inlined at)?')
_LABEL = re.compile(r"^(\.L_\w+):")
_CODE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
_BRANCH = re.compile(r"\bBRA\b.*\(?`?\(?(\.L_\w+)")


@dataclass(frozen=True, slots=True)
class Resources:
    """Registers of a thread, and bytes of its registers that spill to memory."""

    registers: int
    spill: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """One machine instruction: its address, its text, and where in the source it comes from."""

    address: int
    text: str
    place: Place


@dataclass(frozen=True, slots=True)
class Loop:
    """A backward branch: addresses from ``first`` to ``last``, and the place of its ``for``."""

    first: int
    last: int
    place: Place


def tensor_instructions(texts: Sequence[str]) -> dict[str, int]:
    """How many tensor-core instructions of each kind stand in a kernel."""
    return {kind: sum(bool(p.search(text)) for text in texts) for kind, p in TENSOR.items()}


# ---- NVIDIA --------------------------------------------------------------------------------------


def resources_of_cubin(tools: Path, cubin: Path) -> Resources:
    """What a cubin's one kernel takes."""
    said = _output(tools / "cuobjdump", "-res-usage", cubin)
    found = {key: int(number) for key, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", said)}
    return Resources(found["REG"], found["STACK"] + found["LOCAL"])


def disassemble(tools: Path, cubin: Path) -> tuple[list[Instruction], list[Loop]]:
    """The instructions of a cubin's one kernel up to its last exit, and its loops."""
    said = _output(tools / "nvdisasm", "-g", "-c", "-gi", cubin)
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    waiting: list[str] = []
    place: Place = ()
    fresh = True  # whether the next source line starts a new place
    for line in said.splitlines():
        if found := _LINE.search(line):
            place = ((found[1], int(found[2])),) if fresh else (*place, (found[1], int(found[2])))
            fresh = False
        elif found := _LABEL.match(line):
            waiting.append(found[1])
        elif found := _CODE.match(line):
            address = int(found[1], 16)
            labels.update(dict.fromkeys(waiting, address))
            waiting, fresh = [], True
            code.append(Instruction(address, found[2], place))
    end = max((i.address for i in code if "EXIT" in i.text), default=0)
    loops = []
    for i in code:
        branch = _BRANCH.search(i.text)
        if branch and i.address < end and labels.get(branch[1], end) <= i.address:
            loops.append(Loop(labels[branch[1]], i.address, i.place))
    return [i for i in code if i.address <= end and "NOP" not in i.text], loops


def _output(tool: Path, *words: str | Path) -> str:
    return subprocess.run([tool, *words], capture_output=True, text=True, check=True).stdout


def issued(code: Sequence[Instruction], loops: Sequence[Loop], turns: Sequence[Turns]) -> float:
    """Instructions that a warp issues: each as often as the innermost loop around it runs, with
    every branch taken and every wait over at once. Raises Unknown where the loops of the machine
    are not those of the source.
    """
    runs = _matched([loop for loop in loops if not _waits(loop, code, turns)], turns)
    inner = sorted(runs, key=lambda loop: loop.last - loop.first)
    return sum(
        next((runs[loop] for loop in inner if loop.first <= i.address <= loop.last), 1.0)
        for i in code
    )


def _waits(loop: Loop, code: Sequence[Instruction], turns: Sequence[Turns]) -> bool:
    """Whether a loop only looks again and again whether something has arrived."""
    body = [i for i in code if loop.first <= i.address <= loop.last]
    sourced = any(loop.place == turn.place for turn in turns)
    return len(body) <= SPIN and (not sourced or any("SYNCS" in i.text for i in body))


def _matched(loops: Sequence[Loop], turns: Sequence[Turns]) -> dict[Loop, float]:
    """How often each machine loop runs: all match in order if they nest as in the source, else
    they match by the line of the ``for``.
    """
    ordered = sorted(loops, key=lambda loop: (loop.first, -loop.last))
    depths = [sum(o.first <= i.first and i.last < o.last for o in ordered) for i in ordered]
    if depths == [turn.depth for turn in turns]:
        return {loop: turn.count for loop, turn in zip(ordered, turns)}
    runs: dict[Loop, float] = {}
    for place in dict.fromkeys(loop.place for loop in ordered):
        copies = [loop for loop in ordered if loop.place == place]
        counts = [turn.count for turn in turns if turn.place == place]
        runs.update(zip(copies, _shared(copies, counts)))
    return runs


def _shared(copies: Sequence[Loop], counts: Sequence[float]) -> list[float]:
    """How often each machine loop of one line runs, from the runs of that line's loops."""
    if len(copies) == len(counts):
        return [*counts]
    if (len(copies), len(counts)) == (2, 1):  # unrolled, and what is left over
        lengths = [loop.last - loop.first for loop in copies]
        main = lengths.index(max(lengths))
        factor = max(2, round(max(lengths) / max(min(lengths), 1)))
        whole = counts[0] // factor
        shares = [counts[0] - whole * factor] * 2
        shares[main] = whole
        return shares
    line = copies[0].place[0][1] if copies[0].place else "?"
    raise Unknown(f"{len(counts)} loops of line {line} became {len(copies)}")


# ---- AMD -----------------------------------------------------------------------------------------


def resources_of_amdgcn(text: str) -> Resources:
    """What a kernel takes, from the metadata behind its assembly."""
    found = dict(re.findall(r"^ +\.(vgpr_count|private_segment_fixed_size): +(\d+)", text, re.M))
    return Resources(int(found["vgpr_count"]), int(found["private_segment_fixed_size"]))
