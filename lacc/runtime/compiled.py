"""The files of a variant compiled to C in, its functions as a kernel calls them out.

The files are put into the cache and loaded at the first call, so that they can be written where no
compiler is; from there on they work as they do for anybody else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lacc.diagnostics import LaccError, error
from lacc.runtime import building, caching
from lacc.runtime.kernel import load


def missing() -> str:
    """What this machine lacks to compile C, "" where nothing."""
    try:
        building.compiler()
    except caching.BuildError as problem:
        return str(problem)
    return ""


def functions(name: str, files: Mapping[str, str]) -> tuple[Callable[..., Any], ...]:
    """forward, step, vjp and stepper of ``files``, texts by file name, of which ``name``_c.py is
    loaded; then forward and vjp whose results are placed, and the state's end and begin alone. What
    cannot be built raises LaccError (LA0702)."""
    loaded: dict[str, Any] = {}

    def ready() -> bool:
        if not loaded:
            file = f"{name}_c.py"
            loaded.update(load(name, files[file], placed(name, files) / file))
        return True

    ready.__dict__["_dynamo_marked_constant"] = True  # a compiler calls it, and does not look in

    def found(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(arguments: Mapping[str, Any], **options: Any) -> Any:
            try:
                ready()
                return function(arguments, options)
            except RuntimeError as problem:
                own = loaded.get("BuildError", caching.BuildError)  # that of the file
                if not isinstance(problem, caching.BuildError | own):
                    raise
                raise LaccError([error("LA0702", None, name="c", reason=str(problem))]) from None

        return call

    def public(function: str) -> Callable[..., Any]:
        return found(lambda arguments, options: loaded[function](**arguments, **options))

    def host(way: str) -> Callable[..., Any]:
        def call(arguments: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
            (own,) = (x for x in loaded.values() if type(x) is loaded["Host"])
            return getattr(own, way)(arguments, **options)

        return found(call)

    every = (name, f"{name}_step", f"{name}_vjp", f"{name}_stepper")
    return *map(public, every), *map(host, ("forward", "vjp", "end", "begin"))


def placed(name: str, files: Mapping[str, str]) -> Path:
    """A folder of the cache with exactly ``files``. Raises BuildError where the disk is full."""
    texts = {file: text.encode() for file, text in files.items()}
    key = caching.digest(*(part for file in sorted(texts) for part in (file.encode(), texts[file])))
    folder = caching.cache_folder() / f"{name}-{key}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        with caching.passing_folder(caching.cache_folder()) as work:
            for file, text in texts.items():
                there = folder / file
                if not there.is_file() or there.read_bytes() != text:
                    (work / file).write_bytes(text)
                    os.replace(work / file, there)
    except OSError as problem:
        raise caching.BuildError(caching.full(folder, problem)) from None
    return folder
