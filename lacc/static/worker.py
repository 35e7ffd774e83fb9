"""A request on standard input in, figures on standard output, both JSON: an emitted file of Triton
or CUDA, an architecture and the arguments of a call; what its forward, backward and step launch.

    python -m lacc.static.worker < request.json

A process of its own, since Triton's driver and the way its kernels run are chosen once. CUDA files
are as well; Triton is not imported for them.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from lacc.static.architectures import ARCHITECTURES
from lacc.static.launches import Call, NotCompiled


def main() -> None:
    """One request, one reply: the calls, or what the compiler of a kernel said against it."""
    request = json.load(sys.stdin)
    torch.set_num_threads(1)
    try:
        kind = "cuda_capture" if request["target"] == "cuda" else "capture"
        capture = import_module(f"lacc.static.{kind}")
        with capture.pretended(ARCHITECTURES[request["architecture"]]) as recorder:
            found = [asdict(call) for call in calls(request, recorder)]
        reply: dict[str, Any] = {"calls": found}
    except NotCompiled as problem:
        reply = {"refused": str(problem)}
    except ValueError as problem:  # of the emitted file, which names the argument
        reply = {"invalid": str(problem)}
    print(json.dumps(reply))


def calls(request: Mapping[str, Any], recorder: Any) -> Iterator[Call]:
    """The calls that the emitted file has: all tokens without gradients, all tokens as in training
    and their gradients, then one token.
    """
    module = load(Path(request["file"]))
    recorder.attach(module)
    function = module[request["function"]]
    x = {a["name"]: _tensor(a["shape"], a["dtype"]) for a in request["arguments"]}
    recorder.know(x.values())
    with torch.no_grad():
        yield recorder.call("inference", lambda: function(**x))[0]
    differentiable = [t for t in x.values() if t.is_floating_point()]
    for t in differentiable:
        t.requires_grad_()
    call, (outputs, state) = recorder.call("forward", lambda: function(**x))
    yield call
    flat = [*outputs] if isinstance(outputs, tuple) else [outputs]
    if rooted := [y for y in flat if y.requires_grad]:
        cotangents = [torch.zeros_like(y) for y in rooted]
        recorder.know(cotangents)
        yield recorder.call(
            "backward",
            lambda: torch.autograd.grad(rooted, differentiable, cotangents, allow_unused=True),
        )[0]
    if (step := module.get(f"{request['function']}_step")) and request["step"]:
        one = {a["name"]: _tensor(a["step"], a["dtype"]) for a in request["arguments"]}
        before = type(state)(*map(torch.zeros_like, state))
        recorder.know((*one.values(), *before))
        with torch.no_grad():
            yield recorder.call("step", lambda: step(**one, state=before))[0]


def load(file: Path) -> dict[str, Any]:
    """The names of an emitted module, imported from its file, where Triton reads the lines."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module.__dict__


def _tensor(shape: list[int], dtype: str) -> torch.Tensor:
    """Zeros, so that what the file itself looks at is the same each time."""
    return torch.zeros(shape, dtype=getattr(torch, dtype))


if __name__ == "__main__":
    main()
