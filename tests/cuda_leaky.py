"""A variant whose CUDA is written by hand, and files of it: what tests of the CUDA host share."""

from __future__ import annotations

from conftest import ROOT

from lacc import driver, targets
from lacc.backends.cuda_host import cuda_texts
from lacc.backends.to_cuda import CudaFiles
from lacc.spec.model import Spec

SOURCES = ROOT / "tests" / "cuda"
FIRST_LINE = "/* Written by lacc for CUDA by hand */"
KERNELS = {
    "forward": (
        ("x", "w", "begun", "o", "ended", "kept", "cu", "rows"),
        ("x_batch", "x_token", "x_head", "x_K", "T", "H", "into"),
    ),
    "backward": (
        ("x", "w", "begun", "kept", "d_o", "dended", "dx", "dw", "dbegun", "cu"),
        (
            *("x_batch", "x_token", "x_head", "x_K"),
            *("d_batch", "d_token", "d_head", "d_K", "T", "H"),
        ),
    ),
}
FORWARD = """\
n = run.dims
y = {"o": token_room(run, run.out_dtype, n["K"])}
kept = token_room(run, run.dtype, n["K"]) if keep else None
ended = run.into or {"S": state_room(run, n["K"])}
launched(
    "forward", run, run.N * run.H, n["K"],
    (x["x"], x["w"], begun["S"], y["o"], ended["S"], kept, run.cu, run.rows),
    (*strides(x["x"], 4), run.T, run.H, run.into is not None),
)
start = begun["S"] if begun["S"] is not None else torch.zeros_like(ended["S"])
return y, ended, (kept, start.clone()) if keep else ()
"""
BACKWARD = """\
n = run.dims
states, begun = given
dx = {"x": gradient_room(run, x["x"], "head", n["K"])}
dfixed = {"w": partial_room(run, x["w"], run.N, n["K"])}
dbegun = {"S": state_room(run, n["K"])}
launched(
    "backward", run, run.N * run.H, n["K"],
    (
        x["x"], x["w"], begun, states, dy["o"], dended["S"],
        dx["x"], dfixed["w"], dbegun["S"], run.cu,
    ),
    (*strides(x["x"], 4), *strides(dy["o"], 4), run.T, run.H),
)
return dx, dfixed, {}, dbegun
"""
PASS = """\
Pass(
    reverse=False,
    inputs=("x",),
    fixed=("w",),
    last=(),
    states=("S",),
    outputs=("o",),
    forward=run_forward_0,
    backward=run_backward_0,
)"""


def leaky() -> tuple[Spec, str, dict[str, str]]:
    """The spec, the name of its function, and the texts by file name."""
    spec = driver.load(ROOT / "tests" / "c" / "leaky.la")
    derived = driver.analyse(spec)
    _, seen = targets.offered(spec, "cuda", derived, None)
    source, header = ((SOURCES / f"leaky.{kind}").read_text("utf-8") for kind in ("cu", "h"))
    functions = (
        ("def run_forward_0(x, begun, last, run, keep):", FORWARD.splitlines()),
        ("def run_backward_0(x, last, given, run, dy, dended):", BACKWARD.splitlines()),
    )
    made = CudaFiles(
        name="leaky",
        source=f"{FIRST_LINE}\n{source}",
        header=header,
        kernels=KERNELS,
        splits=dict.fromkeys(KERNELS, 'n["K"]'),
        functions=functions,
        passes=(PASS,),
        token=PASS,
        chunk=64,
    )
    return spec, made.name, cuda_texts(derived, seen, made)
