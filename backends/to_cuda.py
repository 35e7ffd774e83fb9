"""Derived tile programs in, the CUDA file of a spec, its header, and the parts of the Python file
beside it that are the spec's own out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lacc.runtime.contract import Signature
from lacc.tile.derive import Derived

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CudaFiles:
    """What is written for a spec.

    name       of the public function, and stem of the files
    source     the text of NAME.cu
    header     the text of NAME.h
    kernels    by kernel: names of the pointers of its argument struct, then those of its numbers
    splits     by kernel whose blocks share an axis: the size of this as Python over dims ``n``
    functions  heads and lines of run_forward_0(x, begun, last, run, keep), run_backward_0(x, last,
               given, run, dy, dended), …: `lacc.runtime.torch_run.Pass` says what they give. They
               call launched(kernel, run, programs, size of the axis that blocks share or 1, tensors
               or None, numbers), in_one(run, size), strides, finer, operand_dtype, and *_room as in
               `lacc.runtime.triton_rooms`
    passes     the entries of the table of passes, as code
    token      that of the program of one token, None where there is none
    chunk      the tokens of a chunk that kernels are laid out for
    """

    name: str
    source: str
    header: str
    kernels: Mapping[str, tuple[Names, Names]]
    splits: Mapping[str, str]
    functions: tuple[tuple[str, list[str]], ...]
    passes: tuple[str, ...]
    token: str | None
    chunk: int


def to_cuda(derived: Derived, signature: Signature, chunk: int | None = None) -> CudaFiles:
    """The files of a spec; in chunks of ``chunk`` tokens where it is given. NotImplementedError
    where a pass attends, which no kernel does yet."""
    raise NotImplementedError(f"{signature.name}: no CUDA kernel is written yet")
