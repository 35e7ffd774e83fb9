"""A derived spec and the parts of its CUDA files in, their texts out: NAME.cu, NAME.h, and
NAME_cuda.py, which builds the kernels of the first and offers the variant for tensors.
"""

from __future__ import annotations

from pprint import pformat

from lacc import __version__
from lacc.backends import paste
from lacc.backends.base import environment, tuple_text
from lacc.backends.to_cuda import CudaFiles
from lacc.backends.torch_api import (
    BUILDING,
    CUDA_ATTENTION,
    api_text,
    host_functions,
    host_imports,
    host_text,
)
from lacc.runtime.contract import Signature
from lacc.tile.derive import Derived

LIMIT = 128
"""Tokens that mode parallel takes as one chunk at most."""


def cuda_texts(derived: Derived, signature: Signature, made: CudaFiles) -> dict[str, str]:
    """The texts by file name, the one that reads the others last."""
    name = made.name
    text = python_text(derived, signature, made)
    return {f"{name}.cu": made.source, f"{name}.h": made.header, f"{name}_cuda.py": text}


def python_text(derived: Derived, signature: Signature, made: CudaFiles) -> str:
    """The text of NAME_cuda.py: ``NAME(...)``, ``NAME_step(...)``, ``NAME_vjp(...)``."""
    building = (*BUILDING, *(CUDA_ATTENTION if made.attends else ()))
    chunk, alone = "launched.chunk", "lambda *_: False"
    if made.chunk:
        chunk = f"lambda *_: {made.chunk}"
    api = api_text(derived, signature, list(made.passes), made.token, chunk, alone, LIMIT)
    return (
        environment()
        .get_template("cuda_python.py.j2")
        .render(
            spec=derived.spec,
            version=__version__,
            public=made.name,
            first_line=made.source.partition("\n")[0],
            imports=host_imports(*building),
            whole=host_functions(derived),
            host=host_text(derived),
            building=[paste.body(module) for module in building],
            attends=made.attends,
            kernels=pformat(dict(made.kernels), width=96, compact=True, sort_dicts=False),
            works=pformat(dict(made.works), width=96, compact=True, sort_dicts=False),
            planned=tuple_text(made.planned),
            plan=made.plan,
            functions=made.functions,
            api=api,
        )
    )
