"""Derived tile programs and a plan in, one stand-alone NumPy file out.

Its first part is the spec's own: for each pass what is prepared once, and the chunk functions
forward and backward, each in the phases of `lacc.tile.split`. Below stand the kernels that these
use and the runtime, pasted from the modules that define them.
"""

from __future__ import annotations

from lacc.backends import base, paste
from lacc.backends.base import environment
from lacc.backends.numpy_host import host_functions, host_values
from lacc.backends.numpy_lines import Function
from lacc.backends.numpy_names import ATTENDING, ATTENTION, BLOCKS, MODULES, taken
from lacc.backends.numpy_pass import PassText
from lacc.backends.tables import attention_entry
from lacc.plan.plan import Plan
from lacc.runtime.contract import Signature
from lacc.tile.attention_pass import AttentionPass
from lacc.tile.derive import Derived


def to_numpy(derived: Derived, plan: Plan, signature: Signature) -> str:
    """The text of the module: ``NAME(...)``, ``NAME_step(...)``, ``NAME_vjp(...)``."""
    spec = derived.spec
    functions: list[Function] = []
    passes = []
    for n, stage in enumerate(derived.passes):
        if isinstance(stage, AttentionPass):
            passes.append(attention_entry(stage))
            continue
        emitted = PassText(spec, stage, str(n), reverse=stage.stage.direction == "backward")
        functions += emitted.functions()
        passes.append(emitted.entry())
    token = None
    if derived.token is not None:
        emitted = PassText(spec, derived.token, "token", token=True)
        functions += emitted.functions()
        token = emitted.entry()
    functions += host_functions(derived)
    attends = any(isinstance(p, AttentionPass) for p in derived.passes)
    public = public_name(signature)
    values = host_values(derived, plan, signature, public, passes, token, functions)
    values["kernels"] += [paste.body(ATTENTION)] if attends else []
    template = environment().get_template("numpy.py.j2")
    return template.render(
        **values,
        imports=paste.imports(*MODULES),
        attending=paste.body(ATTENDING) if attends else "",
        blocks=[paste.body(module) for module in BLOCKS],
    )


def public_name(signature: Signature) -> str:
    """The name of the emitted function."""
    return base.public_name(signature.name, taken())
