"""Triton kernels on CPU tensors go in; what they compute, rounded as on a GPU, and every fault of
their memory accesses come out.

    repair()                                    # the interpreter of this process, made right
    with checked(order="shuffle") as report:    # and its memory watched
        kernel[grid](x, y, ...)

The interpreter runs where TRITON_INTERPRET=1 was set before triton was imported.
"""

from lacc.interpreter.checking import Counts, Report, checked
from lacc.interpreter.memory import MemoryFault
from lacc.interpreter.repair import obstacle, repair

__all__ = ["Counts", "MemoryFault", "Report", "checked", "obstacle", "repair"]
