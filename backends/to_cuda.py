"""Derived tile programs in, the CUDA file of a spec, its header, and the parts of the Python file
beside it that are the spec's own out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from lacc import __version__
from lacc.backends.base import environment
from lacc.backends.cuda_attention import AttentionKernel, attention_kernels
from lacc.backends.cuda_kernel import CudaKernel
from lacc.backends.cuda_library import names, pieces
from lacc.backends.cuda_pass import CHUNKS, CudaPass
from lacc.backends.rounding import delicate
from lacc.backends.tables import attention_entry
from lacc.backends.torch_api import public_name
from lacc.runtime.contract import Signature
from lacc.runtime.cuda_choosing import Load, Work, spoken
from lacc.tile.attention_pass import AttentionPass
from lacc.tile.derive import Derived
from lacc.tile.partition import WIDTH

ATTEND = {"forward": "ATTENTION.forward", "backward": "ATTENTION.backward"}
"""The functions of an attention."""

TOKENS = 4096
"""Those of the call whose plan is told."""

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CudaFiles:
    """What is written for a spec.

    name       of the public function, and stem of the files
    source     the text of NAME.cu
    header     the text of NAME.h
    kernels    by kernel: names of the pointers of its argument struct, then those of its numbers;
               behind the pointers the struct has `arena`, the scratch memory of blocks, behind the
               numbers `program0`, the number of its first block
    splits     by kernel whose blocks share an axis: the size of this as Python over dims ``n``
    functions  heads and lines of run_forward_0(x, begun, last, run, keep), run_backward_0(x, last,
               given, run, dy, dended), …: `lacc.runtime.torch_run.Pass` says what they give. They
               call launched(kernel, run, programs, size of the axis that blocks share or 1, tensors
               or None, numbers), in_one(run, size), strides, finer, operand_dtype, and *_room as in
               `lacc.runtime.triton_rooms`
    passes     the entries of the table of passes, as code
    token      that of the program of one token, None where there is none
    chunk      the tokens of a chunk where they are given, else 0
    works      by kernel: what launches are chosen by; the ``planned`` ones decide on chunks
    plan       what is chosen for a call with the declared dims, and why
    attends    whether entries name ATTENTION, a CudaAttention of `lacc.runtime.cuda_attention`
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
    attends: bool = False
    works: Mapping[str, Work] = field(default_factory=dict)
    planned: Names = ()
    plan: Names = ()


def to_cuda(derived: Derived, signature: Signature, chunk: int | None = None) -> CudaFiles:
    """The files of a spec whose recurrence does not attend; in chunks of ``chunk`` tokens where it
    is given."""
    spec, name = derived.spec, public_name(signature)
    assert not derived.attends_by_token
    attentions = [p for p in derived.passes if isinstance(p, AttentionPass)]
    stages = [p for p in derived.passes if not isinstance(p, AttentionPass)]
    loads = [n.partition("@")[0] for p in stages for n in p.forward.loads("input")]
    loads += [name for p in attentions for name in p.sources]
    shared = {n for n, times in Counter(loads).items() if times > 1}
    fine, library = delicate(derived), names()
    passes, entries = list[CudaPass](), list[str]()
    for n, stage in enumerate(derived.passes):
        if isinstance(stage, AttentionPass):
            entries.append(attention_entry(stage, **ATTEND))
            continue
        back = stage.stage.direction == "backward"
        passes.append(
            CudaPass(spec, stage, str(n), library, reverse=back, shared=shared, fine=fine)
        )
        entries.append(passes[-1].entry())
    token = None
    if derived.token is not None and not attentions:
        passes.append(CudaPass(spec, derived.token, "token", library, fine=fine))
        token = passes[-1].entry()
    kernels: list[CudaKernel | AttentionKernel] = [k for p in passes for k in p.kernels]
    kernels += attention_kernels(attentions)
    values = {
        "spec": spec,
        "version": __version__,
        "prefix": name,
        "about": [line.replace("*/", "* /") for line in spec.text.strip().splitlines()],
        "dims": {n: int(d.default or 0) or WIDTH for n, d in spec.dims.items()},
        "kernels": kernels,
        "pieces": pieces(*(("attention",) if attentions else ())),
        "types": sorted({f"T_{n}" for k in kernels for n, a in k.pointers.items() if not a.whole}),
        "chunk": chunk or CHUNKS[0],
    }
    env = environment()
    works = {k.what.name: k.work() for p in passes if not p.by_token for k in p.kernels}
    planned = [k.what.name for p in passes for k in p.planned()]
    return CudaFiles(
        name,
        env.get_template("cuda.cu.j2").render(values),
        env.get_template("cuda.h.j2").render(values),
        {k.what.name: (tuple(k.pointers), tuple(k.numbers)) for k in kernels},
        {
            k.what.name: shown
            for p in passes
            for k in p.kernels
            if (shown := p.shared_size(k)) != "1"
        },
        tuple(f for p in passes for f in p.functions()),
        tuple(entries),
        token,
        chunk or 0,
        bool(attentions),
        works,
        tuple(planned),
        tuple(_plan(derived, {name: works[name] for name in planned})),
    )


def _plan(derived: Derived, works: Mapping[str, Work]) -> list[str]:
    """What is chosen for a call of middling size with the declared dims."""
    dims = {n: int(d.default or 0) or WIDTH for n, d in derived.spec.dims.items()}
    return spoken(works, Load(tuple(sorted(dims.items())), 1, 16, TOKENS)) if works else []
