"""A kernel in, the text of a file with its layer out, which needs torch and the emitted kernel."""

from __future__ import annotations

import re
from importlib.resources import files

from lacc import report
from lacc.layers import check, class_name
from lacc.layers.describe import described
from lacc.runtime.kernel import Kernel

BEFORE = "from torch.utils._pytree import register_pytree_node\n"
"""The last import of the module, behind which comes that of the kernel."""

HOMES = {"c": "_c", "cuda": "_cuda", "triton": ""}
"""By target the end of the name of its emitted Python file."""


def text(kernel: Kernel) -> str:
    """The file: the module of all layers, then the class of this one. Raises LaccError (LA0703)
    where the kernel takes no tensors, or is not of one target."""
    check(kernel.target, tuple(HOMES))
    found = [*re.finditer(r"^def (\w+)_vjp\(", "\n".join(_python(kernel).values()), re.MULTILINE)]
    public = found[-1].group(1)
    home = f"{public}{HOMES[kernel.target]}"
    spec, name = kernel.spec, class_name(kernel)
    where = f"{home}.py, compiled for {kernel.target}, lies beside this file"
    head = f"# {report.MARK} from variant {spec.ascii}; sha256 {spec.digest}\n# {where}.\n"
    module = files("lacc.layers").joinpath("module.py").read_text("utf-8")
    module = re.sub(r"^This module stands.*?\n\n", "", module, count=1, flags=re.S | re.M)
    assert BEFORE in module
    ways = ["run", "run_step", *(["run_stepper"] if kernel.target == "c" else [])]
    functions = [public + way.removeprefix("run") for way in ways]
    module = module.replace(BEFORE, f"{BEFORE}\nfrom {home} import {', '.join(functions)}\n")
    values = "".join(f"        {_value(fields)},\n" for fields in described(kernel))
    dims = ", ".join(f'"{dim}": {size}' for dim, size in kernel.signature.dims.items())
    pinned = "".join(f'"{dim}", ' for dim in kernel.signature.pinned)
    lines = [
        f"class {name}(Layer):",
        f'    """{_doc(spec.doc) or spec.name}"""',
        "",
        f'    variant = "{kernel.signature.name}"',
        f"    values = (\n{values}    )",
        f"    dims: ClassVar = {{{dims}}}",
        *([f"    pinned = ({pinned.rstrip()})"] if pinned else []),
        *(f"    {way} = staticmethod({function})" for way, function in zip(ways, functions)),
    ]
    return f"{head}{module}\n\n" + "\n".join(lines) + "\n"


def _python(kernel: Kernel) -> dict[str, str]:
    """The Python texts of a kernel by file name."""
    if kernel.files:
        return {file: text for file, text in kernel.files.items() if file.endswith(".py")}
    return {"": kernel.source or ""}


def _value(fields: dict[str, object]) -> str:
    """``Value("g", "input", ("K",), high=0.0)``."""
    lead = [repr(fields[name]) for name in ("name", "role")]
    rest = [f"{name}={x!r}" for name, x in fields.items() if name not in ("name", "role")]
    return f"Value({', '.join([*lead, *rest])})".replace("'", '"')


def _doc(text: str) -> str:
    """A spec's documentation as the inside of a docstring."""
    return "\n    ".join(text.replace("\\", "\\\\").replace('"""', "'''").splitlines())
