"""Derived tile programs in, one stand-alone file of torch and Triton out.

Its first part is the spec's own: the kernels of each pass over time and the functions that launch
them. Below stand the device functions that the kernels call and the host's runtime, pasted from the
modules that define them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pprint import pformat

from lacc import __version__
from lacc.backends import paste
from lacc.backends.base import environment
from lacc.backends.rounding import delicate
from lacc.backends.tables import attention_entry
from lacc.backends.torch_api import (
    ATTENTION,
    LAUNCHING,
    api_text,
    host_functions,
    host_imports,
    host_text,
)
from lacc.backends.triton_cut import CHUNKS, workload
from lacc.backends.triton_device import device
from lacc.backends.triton_frame import PLACES
from lacc.backends.triton_pass import TritonPass
from lacc.runtime.contract import Signature
from lacc.runtime.launching import UNDERRATED, in_chunks, slower, total
from lacc.tile.attention_pass import AttentionPass
from lacc.tile.derive import Derived

WIDTH = 96
ATTEND = {"forward": "attend_forward", "backward": "attend_backward"}
"""The functions of an attention."""
LIMIT = 128
"""Tokens that mode parallel takes as one chunk at most."""


def to_triton(derived: Derived, signature: Signature, chunk: int | None = None) -> str:
    """The text of the module: ``NAME(...)``, ``NAME_step(...)``, ``NAME_vjp(...)``."""
    spec = derived.spec
    chunked = [stage for stage in derived.passes if not isinstance(stage, AttentionPass)]
    inputs = (stage.forward.loads("input") for stage in chunked)
    loads = [name.partition("@")[0] for given in inputs for name in given]
    attended = [s for p in derived.passes if isinstance(p, AttentionPass) for s in p.sources]
    taken = Counter([*loads, *attended])
    shared = {name for name, times in taken.items() if times > 1}
    fine = delicate(derived)
    passes: list[TritonPass] = []
    entries: list[str] = []
    for n, stage in enumerate(derived.passes):
        if isinstance(stage, AttentionPass):
            entries.append(attention_entry(stage, **ATTEND))
        else:
            reverse = stage.stage.direction == "backward"
            passes.append(
                TritonPass(spec, stage, str(n), reverse=reverse, shared=shared, fine=fine)
            )
            entries.append(passes[-1].entry())
    attends = any(isinstance(p, AttentionPass) for p in derived.passes)
    token = None
    if derived.token is not None and not attends:
        passes.append(TritonPass(spec, derived.token, "token", fine=fine))
        token = passes[-1].entry()
    kernels = [kernel for p in passes for kernel in p.kernels]
    words = re.findall(r"\w+", "\n".join(line for k in kernels for line in k.lines))
    attention = ATTENTION if attends else ()
    words += [word for module in attention for word in re.findall(r"\w+", paste.body(module))]
    planned = _merged(name for p in passes if not p.by_token for name in p.planned())
    longest = max((p.chunk for p in passes if not p.by_token), default=max(CHUNKS))
    choice = f"lambda *call: planned_chunk({planned}, {longest}, *call)"
    alone, preferred = "lambda *_: False", []
    if chunk:
        choice = f"lambda *_: {chunk}"
    elif token is not None and chunked:
        single = _merged(passes[-1].planned())
        alone = f"lambda *call: planned_alone({planned}, {single}, *call)"
        preferred = list(_preferred(*passes))
    api = api_text(derived, signature, entries, token, choice, alone, LIMIT)
    return (
        environment()
        .get_template("triton.py.j2")
        .render(
            spec=spec,
            version=__version__,
            imports=host_imports(PLACES, *LAUNCHING, *attention),
            kernels=kernels,
            plan=[*preferred, *(line for p in passes for line in p.plan())],
            functions=[f for p in passes for f in p.functions()],
            whole=host_functions(derived),
            tables={
                name: pformat(fits, width=WIDTH)
                for p in passes
                for name, fits in p.tables().items()
            },
            device=[paste.body(PLACES), device(words), *map(paste.body, attention)],
            launching=[paste.body(module) for module in LAUNCHING],
            host=host_text(derived),
            api=api,
        )
    )


def _preferred(*passes: TritonPass) -> Iterator[str]:
    """Why mode auto takes the last of ``passes``, that of one token, where it does."""
    *chunked, token = [
        {name: fit for way in p.planned() for name, fit in p.tables()[way].items()} for p in passes
    ]
    fits = {name: fit for each in chunked for name, fit in each.items()}
    load = workload(passes[0].dims, max(CHUNKS))
    if slower(fits, token, load):
        least = min(total(fits.values(), each) for each in in_chunks(load).values())
        least *= UNDERRATED
        yield (
            f"mode auto at B H = {load.heads}, T = {load.tokens}: token after token, forward and "
            f"backward {1e6 * total(token.values(), load):.0f} us; chunks spill registers and "
            f"take {1e6 * least:.0f} us"
        )


def _merged(tables: Iterable[str]) -> str:
    """Tables as one, as code."""
    return "{" + ", ".join(f"**{name}" for name in tables) + "}"
