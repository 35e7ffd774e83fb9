"""The text of emitted Triton files: the same bytes each time, no name twice, torch, Triton and the
standard library alone; and what is refused instead of being emitted."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

import lacc
from lacc.backends.torch_api import public_name
from lacc.diagnostics import LaccError

FILES = ("gla", "gated_deltanet_raw", "mlstm", "fox", "performer", "bidirectional", "titans_memory")
BY_TOKEN = (
    "examples/deltaformer.la",
    "tests/specs/attention_inside_a_recurrence.la",
    "tests/specs/attention_over_states.la",
)
SPEC = """
dim K = 4, V = 3
input q, k : [K]
input v : [V]
state S : [K, V]
output o : [V]
S[t] = S[t-1] + k @ v.T
o = S[t].T @ q
"""
ALONE = """
import sys
sys.modules["lacc"] = None
sys.path.insert(0, sys.argv[1])
import torch, vendored
x = [torch.randn(1, 5, 2, n, dtype=torch.float64, requires_grad=True) for n in (4, 4, 3)]
q, k, v = x
o, state = vendored.thing(q, k, v)
S = torch.einsum("bthk,bthv->bthkv", k, v).cumsum(1)
want = torch.einsum("bthkv,bthk->bthv", S, q)
assert torch.allclose(o, want) and torch.allclose(state.S, S[:, -1])
ours = torch.autograd.grad(o.square().sum(), x)
theirs = torch.autograd.grad(want.square().sum(), x)
assert all(torch.allclose(a, b) for a, b in zip(ours, theirs))
o, state = vendored.thing_step(*(y[:, 0].detach() for y in x))
assert torch.allclose(o, want[:, 0])
assert not [name for name in sys.modules if name.startswith("lacc.")]
print("right")
"""


def source(given: str | Path) -> str:
    text = lacc.compile(given, "triton").source
    assert text is not None
    return text


def example(name: str) -> str:
    return source(ROOT / "examples" / f"{name}.la")


def bound(tree: ast.Module) -> Iterator[str]:
    """Names that statements at the top of a module give a meaning to."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            if isinstance(node, ast.Import) or node.module != "__future__":
                yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


@pytest.mark.parametrize("name", FILES)
def test_a_file_needs_torch_and_triton_and_names_everything_once(name: str) -> None:
    tree = ast.parse(example(name))
    assert not [n for n, times in Counter(bound(tree)).items() if times > 1]
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    assert imported - sys.stdlib_module_names == {"torch", "triton"}


def test_the_same_spec_gives_the_same_bytes() -> None:
    """In processes that order sets in different ways."""
    names = ("gla", "mlstm", "fox")
    code = "import sys, test_triton_file as f; print([f.digest(n) for n in sys.argv[1:]])"
    found = {
        subprocess.run(
            [sys.executable, "-c", code, *names],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            cwd=ROOT / "tests",
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert found == {f"{[digest(name) for name in names]}\n"}


def digest(name: str) -> str:
    """The hash of the file of an example."""
    return hashlib.sha256(example(name).encode()).hexdigest()


def test_a_file_works_where_lacc_is_not(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    home = tmp_path / "somewhere else"
    home.mkdir()
    (home / "vendored.py").write_text(source(f"variant thing{SPEC}"), "utf-8")
    run = subprocess.run(
        [sys.executable, "-I", "-c", ALONE, str(home)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert run.stdout == "right\n", run.stderr


@pytest.mark.parametrize("name", ["torch", "tl", "forward_0", "fused_0", "HOST", "block", "zip"])
def test_a_variant_may_have_any_name(name: str) -> None:
    spec = lacc.load(f"variant {name}{SPEC}")
    kernel = lacc.compile(spec, "triton")
    public = public_name(kernel.signature)
    assert public == f"{name}_" and kernel.source is not None
    names = Counter(bound(ast.parse(kernel.source)))
    assert all(names[public + end] == 1 for end in ("", "_step", "_vjp"))
    assert max(names.values()) == 1


@pytest.mark.parametrize("path", BY_TOKEN)
def test_what_attends_token_by_token_is_refused_by_name(path: str) -> None:
    with pytest.raises(LaccError) as refused:
        lacc.compile(ROOT / path, "triton")
    assert refused.value.code == "LA0704"
    said = str(refused.value)
    assert "its recurrence attends to earlier values of the state" in said
    assert "the target numpy compiles it" in said


def test_the_head_says_how_kernels_share_the_work_and_why() -> None:
    """Every kernel once, and what the model says of one kernel and of several."""
    text = example("gla")
    head = text[: text.index('"""')]
    assert "one kernel" in head and "2 kernels" in head
    kernels = re.findall(r"^@triton\.jit\ndef ((?:fused|forward|backward)_\w+)", text, re.M)
    assert kernels and all(f" {name}: " in head for name in kernels)


@pytest.mark.parametrize("name", ["gla", "performer_causal"])
def test_no_name_changes_its_type_in_a_loop(name: str) -> None:
    """Triton compiles no loop in which what was bound before has another type: a result that
    nothing reads has a name of its own."""
    source = lacc.compile(ROOT / "examples" / f"{name}.la", target="triton").source
    assert source is not None
    kernels = source.split("\n# ---- ")[1]
    dropped = [line for line in kernels.splitlines() if re.match(r"\s+(\w+, )*_(, \w+)* = ", line)]
    assert ", unused" in kernels
    assert all(" = sequence_at(" in line for line in dropped)
