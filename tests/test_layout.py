"""The repository's own rules, held: import order, what ships, what loads, sizes, names."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import EXAMPLES, ROOT

ORDER = (
    "diagnostics",
    "interpreter",
    "emulation",
    "spec",
    "ir",
    "analysis",
    "tile",
    "plan",
    "runtime",
    "verify",
    "derivation",
    "static",
    "report",
    "views",
    "targets",
    "driver",
    "trial",
    "distributed",
    "formatting",
    "starting",
    "findings",
    "tuning",
    "bench",
    "layers",
    "lab",
    "compat",
    "cli",
)
ALSO = {
    "errors": {"diagnostics"},
    "library": {"diagnostics"},
    "frontends": {"diagnostics", "spec", "frontends"},
    "backends": {"diagnostics", "spec", "ir", "analysis", "plan", "tile", "runtime", "templates"},
    "templates": set(),
    "examples": set(),
}
"""What stands beside the line, and what it may import besides itself."""

LAZY = {"torch", "triton", "sympy", "jinja2", "networkx", "rich", "typer"}
HOST = ("run", "arguments", "sequences", "walk", "rooms", "pull", "core", "operators", "direct")
PASTED = {
    "lacc/runtime/cuda_attention.py",
    "lacc/runtime/torch_attention.py",
    "lacc/runtime/triton_attention.py",
    "lacc/runtime/triton_attention_kernels.py",
    *(f"lacc/runtime/torch_{name}.py" for name in (*HOST, "public")),
    *(f"lacc/runtime/cuda_{name}.py" for name in ("building", "launching")),
    *(
        f"lacc/runtime/triton_{name}.py"
        for name in ("math", "places", "launches", "axes", "scans", "decays", "pulls", "solves")
    ),
}
"""Modules that lacc never imports: their text stands in emitted files."""

APART = {f"lacc/static/{name}.py" for name in ("capture", "cuda_capture", "torch_ops", "worker")}
"""Modules of a process of its own, which lacc starts."""

DOORS = {
    "networkx": {"lacc/ir/graph.py"},
    "jinja2": {"backends/base.py"},
    "typer": {f"lacc/cli/{path.name}" for path in (ROOT / "lacc/cli").glob("*.py")},
    "torch": PASTED
    | APART
    | {"lacc/layers/module.py", "lacc/lab/model.py"}
    | {
        f"lacc/compat/{n}.py"
        for n in ("convolution", "fla", "linears", "mixers", "scans", "transformers")
    },
    "triton": PASTED | APART,
}
"""The files that may import a heavy package when they are imported."""

SOURCES = sorted(
    path.relative_to(ROOT)
    for folder in ("lacc", "frontends", "backends", "templates", "examples")
    for path in ((ROOT / folder).glob if folder == "examples" else (ROOT / folder).rglob)("*")
    if path.is_file() and not any(parent.is_symlink() for parent in path.parents)
    if path.suffix in {".py", ".j2", ".lark"}
)
MODULES = [path for path in SOURCES if path.suffix == ".py"]


def area(path: Path) -> str:
    """The part of the package a file belongs to: ``spec`` for lacc/spec/check.py."""
    first, *rest = path.parts
    return (rest[0].removesuffix(".py") if rest else first) if first == "lacc" else first


def imports(path: Path, top: bool) -> Iterator[str]:
    """Dotted names that a file imports: all of them, or those that run when it is imported."""

    def visit(nodes: list[ast.stmt]) -> Iterator[str]:
        for node in nodes:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                if not top:
                    yield from visit(node.body)
            elif not (top and isinstance(node, ast.FunctionDef)):
                for name in ("body", "orelse", "finalbody", "handlers"):
                    yield from visit(getattr(node, name, []))

    yield from visit(ast.parse((ROOT / path).read_text(encoding="utf-8")).body)


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_a_module_imports_only_from_its_left(path: Path) -> None:
    here = area(path)
    if here in ("__init__", "__main__", "lacc"):
        return
    if here in ALSO:
        allowed = ALSO[here] | {here}
    elif here in ("targets", "driver"):
        allowed = {*ORDER[: ORDER.index(here) + 1], *ALSO}
    else:
        allowed = {*ORDER[: ORDER.index(here) + 1], "errors", "library"}
    for name in imports(path, top=False):
        if name.split(".")[0] == "lacc" and not name.startswith("lacc.__version__"):
            assert name.split(".")[1] in allowed, f"{path} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_heavy_packages_come_in_through_their_door(path: Path) -> None:
    for name in imports(path, top=True):
        package = name.split(".")[0]
        if package in LAZY:
            assert str(path) in DOORS.get(package, set()), f"{path} imports {name} at its top"


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_what_is_pasted_is_not_imported(path: Path) -> None:
    pasted = {name.removesuffix(".py").replace("/", ".") for name in PASTED}
    if str(path) not in PASTED | APART:
        assert not {name for name in imports(path, top=True) if name.startswith(tuple(pasted))}


def test_every_folder_is_a_package_that_ships() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {path.parent for path in MODULES if path.name == "__init__.py"}
    dotted = {".".join(f.parts if f.parts[0] == "lacc" else ("lacc", *f.parts)) for f in folders}
    assert set(settings["packages"]) == dotted
    for name, folder in settings["package-dir"].items():
        assert (ROOT / folder).is_dir()
        assert (ROOT / name.replace(".", "/")).resolve() == ROOT / folder


def test_every_data_file_ships() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = settings["package-data"]["*"]
    for folder in {path.parent for path in MODULES if path.name == "__init__.py"}:
        for path in (ROOT / folder).iterdir():
            if path.is_file() and path.suffix not in {".py", ".pyc"}:
                assert any(path.match(pattern) for pattern in patterns), f"{path} would not ship"


def test_every_module_stands_in_a_package() -> None:
    for path in SOURCES:
        assert (ROOT / path.parent / "__init__.py").is_file(), f"{path} stands in no package"


def loaded(program: str) -> set[str]:
    """Top-level packages that a program has imported when it ends."""
    program += "\nimport sys\nprint('|'.join({m.split('.')[0] for m in sys.modules}))"
    out = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(out.stdout.splitlines()[-1].split("|"))


def test_import_lacc_loads_next_to_nothing() -> None:
    assert not loaded("import lacc") & (LAZY | {"numpy", "lark"})


def test_lacc_check_loads_no_torch_triton_or_sympy() -> None:
    program = """
import sys
sys.argv = ["lacc", "check", "examples/gla.la"]
from lacc.__main__ import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""
    assert not loaded(program) & {"torch", "triton", "sympy"}


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_no_file_is_too_long(path: Path) -> None:
    lines = (ROOT / path).read_text(encoding="utf-8").count("\n")
    assert lines <= (120 if path.suffix == ".j2" else 600)


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_no_variant_is_known_by_name(path: Path) -> None:
    if area(path) == "compat":  # names what other libraries have
        return
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = without_docs(text)
    for stem in {example.stem for example in EXAMPLES} - {"linear"}:
        assert not re.search(rf"\b{stem}\b", text), f"{path} knows {stem}"


def without_docs(text: str) -> str:
    """A module's code without its docstrings, which may show how a spec is used."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [  # type: ignore[attr-defined]
                part
                for part in body
                if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
            ]
    return ast.unparse(tree)


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_nothing_is_left_to_do(path: Path) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert not re.search(r"TODO|FIXME|XXX|NotImplementedError", text)
    assert path.name not in {
        "utils.py",
        "common.py",
        "helpers.py",
        "ast.py",
        "numpy.py",
        "triton.py",
    }


def test_no_module_catches_everything() -> None:
    for path in MODULES:
        if path == Path("lacc/__main__.py"):  # turns what nobody expected into a report
            continue
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ExceptHandler) and not any(
                isinstance(part, ast.Raise) for part in ast.walk(node)
            ):
                caught = ast.unparse(node.type) if node.type else ""
                assert caught not in {"", "Exception", "BaseException"}, path
