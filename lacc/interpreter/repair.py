"""The Triton of this process goes in; its interpreter, made right, fast and checking, comes out."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

from lacc.diagnostics import LaccError, error

HOOKS = {
    "InterpreterBuilder": (
        "cast_impl",
        "create_fp_to_fp",
        "create_rsqrt",
        "create_fma",
        "create_dot",
        "unary_op",
        "create_load",
        "create_store",
        "create_masked_load",
        "create_masked_store",
        "create_barrier",
        "create_atomic_rmw",
        "create_atomic_cas",
        "get_bf16",
    ),
    "InterpretedFunction": ("run", "__call__", "rewrite"),
    "ReduceOps": ("apply_impl", "generic_reduce"),
    "ScanOps": ("apply_impl", "generic_scan"),
    "TensorHandle": ("get_element_ty",),
    "_LangPatchScope": ("set_attr",),
    "_patch_lang_tensor": (),
    "_patch_lang_core": (),
    "_implicit_cvt": (),
    "_unwrap_tensor": (),
    "_get_np_dtype": (),
    "interpreter_builder": ("options",),
    "interpreter_semantic": ("cast",),
}
"""What of ``triton.runtime.interpreter`` is replaced or called."""


def obstacle() -> str:
    """Why kernels cannot be interpreted in this process, "" where they can. Imports triton where
    they may."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return "TRITON_INTERPRET=1 is not set"
    import triton
    import triton.language as tl
    from triton.runtime import interpreter

    if not isinstance(tl.sum, interpreter.InterpretedFunction):
        return "triton was imported before TRITON_INTERPRET=1 was set"
    absent = [
        f"{owner}.{name}" if name else owner
        for owner, names in HOOKS.items()
        for name in (names or ("",))
        if not hasattr(getattr(interpreter, owner, None), name or "__class__")
        or not hasattr(interpreter, owner)
    ]
    if absent:
        known = "the interpreter is known as Triton 3.9 has it"
        return f"{known}; that of {triton.__version__} lacks {absent[0]}"
    return ""


def repair() -> None:
    """Makes the interpreter of this process right, once: rounding, addresses, speed.

    Raises LaccError (LA0702) where it is not on, or not one that is known.
    """
    if why := obstacle():
        raise LaccError([error("LA0702", None, name="triton", reason=why)])
    interpreter: Any = sys.modules["triton.runtime.interpreter"]
    if not hasattr(interpreter, MARK):
        import triton.language as tl

        from lacc.interpreter import launch, operators, rounding

        rounding.install(interpreter, tl)
        launch.install(interpreter, tl)
        operators.install(interpreter, tl)
        builder = interpreter.interpreter_builder
        allowed = ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")
        builder.options = replace(
            builder.options, sanitize_overflow=False, allowed_dot_input_precisions=allowed
        )
        setattr(interpreter, MARK, True)


MARK = "_repaired_by_lacc"
