"""A spec and the functions of a target go in; the object that users call comes out."""

from __future__ import annotations

import hashlib
import linecache
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lacc.diagnostics import Diagnostic, LaccError
from lacc.runtime import calls
from lacc.runtime.arguments import chosen
from lacc.runtime.contract import MODES, Arrays, Core, Signature
from lacc.runtime.stepping import Stepper
from lacc.spec.model import Spec


class Kernel:
    """One compiled variant.

    ``kernel(q, k, v, ...)`` runs whole sequences: inputs [B, T, H, *shape], params [H, *shape] and
    buffers in declared order or by ASCII name; it gives (outputs [B, T, H, *shape], state), the
    state a NamedTuple of [N, H, *shape]. ``step`` does one token, ``vjp`` gives gradients by name.
    Keywords and errors are those of `lacc.runtime.calls`; a mode that does not exist raises
    LaccError.
    """

    def __init__(
        self,
        spec: Spec,
        target: str,
        signature: Signature,
        functions: tuple[Callable[..., Any], ...],
        *,
        missing: Mapping[str, Diagnostic],
        verify: Callable[[], Any],
        source: str | None = None,
        files: Mapping[str, str] = MappingProxyType({}),
        plan: Any = None,
        mode: str = "auto",
        chunk: int | None = None,
    ) -> None:
        """``functions`` take arguments by name and the contract's keywords: forward, step, vjp, and
        where a target has them stepper, forward and vjp that also take where results are
        ``placed``, and what finds a state's `end` and `begin` alone.

        ``files`` are the texts by file name of a target that writes several, ``source`` the main
        one. ``missing`` holds the error of each mode (and of "step") that does not exist; ``mode``
        and ``chunk`` are what a call without them means.
        """
        self.spec = spec
        self.target = target
        self.signature = signature
        self.source = source
        self.files = files
        self.plan = plan
        self.verify = verify
        self.modes = tuple(m for m in MODES[1:] if m not in missing)
        self.missing = missing
        self._forward, self._step, self._vjp, *own = functions
        self._stepper = own[0] if own else partial(Stepper, signature, self._step, self._forward)
        other: Sequence[Callable[..., Any]] = own[1:] or (
            *(self._copied, self._copied_vjp),
            *(lambda *_, **__: None,) * 2,
        )
        self._placed, self._placed_vjp, self._end, self._begin = other
        self._defaults = {"mode": mode, "chunk": chunk}
        self.asked: dict[str, Any] | None = None
        """The options of `lacc.compile`, where that made it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """(outputs, state) of whole sequences.

        Raises ValueError or TypeError on misuse, LaccError on a mode that does not exist.
        """
        arguments, options = self._sort(args, kwargs)
        return self._forward(arguments, **self._moded(options))

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """(outputs, state) of one token [B, H, *shape]; the state may follow the arguments."""
        arguments, options = self._token(args, kwargs)
        return self._step(arguments, **options)

    def stepper(self, *args: Any, **kwargs: Any) -> Stepper:
        """What takes one token after another: arguments and state as of `step`, of which params,
        buffers and the state stay, and inputs show what those of every token are like.

        ``stepper(q, k, ...)`` gives outputs, and ``stepper.state`` goes on in place. On the target
        c a call costs little more than the C function. Raises what `step` raises.
        """
        arguments, options = self._token(args, kwargs)
        if unknown := [name for name in options if name != "state"]:
            raise TypeError(f"stepper: no argument is called {unknown[0]!r}")
        made: Stepper = self._stepper(arguments, **options)
        return made

    def _token(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arguments and options of a call for one token; the state may follow arguments."""
        if "step" in self.missing:
            raise LaccError([self.missing["step"]])
        count = len(self.signature.arguments)
        if len(args) == count + 1 and "state" not in kwargs:
            args, kwargs = args[:count], {**kwargs, "state": args[count]}
        return self._sort(args, kwargs)

    def vjp(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Gradients by name, given ``cotangent`` and ``state_cotangent``; None is zero."""
        arguments, options = self._sort(args, kwargs)
        gradients: dict[str, Any] = self._vjp(arguments, **self._moded(options))
        return gradients

    def fill(
        self,
        outputs: Mapping[str, Any],
        arguments: Arrays,
        *,
        keep: list[Any] | None = None,
        **options: Any,
    ) -> Any:
        """The state of a call whose outputs, all of them by name, are written into arrays or
        tensors of the caller, of any strides; ``options`` are those of a call. To ``keep``, a list,
        goes what `fill_gradients` need not compute again, where the target has such a thing and
        knows the call. Autograd sees nothing of it."""
        placed = [outputs[o.name] for o in self.signature.outputs]
        given = {a.name: arguments.get(a.name) for a in self.signature.arguments}
        options = {**FORWARD, **self._moded(options)}
        _, state = self._placed(given, **options, placed=placed, keep=keep)
        return state

    def fill_gradients(
        self,
        gradients: Mapping[str, Any],
        arguments: Arrays,
        *,
        kept: Sequence[Any] = (),
        **options: Any,
    ) -> Any:
        """As `fill` what `vjp` gives: ``gradients`` of all inputs and params that are there are
        written; ``kept`` is what the call has put aside. Gives that of the initial state, None
        where none was given."""
        given = {a.name: arguments.get(a.name) for a in self.signature.arguments}
        placed = [gradients[name] for name in self._learnt(given)]
        options = {**BACK, **self._moded(options)}
        found = self._placed_vjp(given, **options, placed=placed, kept=kept)
        return found.get("initial_state")

    def end(self, arguments: Arrays, **options: Any) -> Any:
        """The state that a call with tensors like these has given, of ``initial_state``, for less
        than the call; None where the target has no such way, or not for these."""
        given = {a.name: arguments.get(a.name) for a in self.signature.arguments}
        return self._end(given, **{**BEGUN, **self._moded(options)})

    def begin(self, arguments: Arrays, **options: Any) -> Any:
        """The gradient of the initial state that `vjp` gives, as `end`."""
        given = {a.name: arguments.get(a.name) for a in self.signature.arguments}
        return self._begin(given, **{**PULLED, **self._moded(options)})

    def _learnt(self, arguments: Arrays) -> list[str]:
        """The arguments that have a gradient."""
        every = (a.name for a in self.signature.arguments if a.role != "buffer")
        return [name for name in every if arguments[name] is not None]

    def _copied(
        self, arguments: Arrays, placed: Sequence[Any], keep: object, **options: Any
    ) -> Any:
        """A call whose outputs are copied to where they are placed; nothing is kept of it."""
        outputs, state = self._forward(arguments, **options)
        for x, y in zip(placed, outputs if len(placed) > 1 else (outputs,)):
            x[...] = y
        return outputs, state

    def _copied_vjp(
        self, arguments: Arrays, placed: Sequence[Any], kept: object, **options: Any
    ) -> Arrays:
        """Gradients that are copied to where they are placed."""
        found: Arrays = self._vjp(arguments, **options)
        for name, x in zip(self._learnt(arguments), placed):
            x[...] = found[name]
        return found

    @cached_property
    def layer(self) -> Any:
        """The class of torch layers around this kernel: ``kernel.layer(d_model, num_heads)`` makes
        one. Raises LaccError where the target takes no tensors."""
        return import_module("lacc.layers").layer(self)  # which stands far right of this module

    def _sort(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arguments of the variant by name, and the keywords of the API."""
        options = {name: x for name, x in kwargs.items() if name in OPTIONS}
        named = {name: x for name, x in kwargs.items() if name not in OPTIONS}
        return bind(self.signature, args, named), options

    def _moded(self, options: dict[str, Any]) -> dict[str, Any]:
        if options.get("mode") is None and options.get("chunk") is None:
            options = {**options, **self._defaults}
        asked, _ = chosen(options.get("mode", "auto"), options.get("chunk"))
        if asked in self.missing:
            raise LaccError([self.missing[asked]])
        return options

    def __reduce__(self) -> Any:
        """How it was compiled: a process that reads it compiles it again, or finds it compiled."""
        if self.asked is None:
            raise TypeError(f"{self!r}: only what lacc.compile gives can be pickled")
        return partial(import_module("lacc.driver").compile, self.spec, **self.asked), ()

    def __deepcopy__(self, _: Any) -> Kernel:
        return self  # nothing in it changes

    def __repr__(self) -> str:
        names = ", ".join(a.name for a in self.signature.arguments)
        return f"<lacc kernel {self.signature.name}({names}) on {self.target}>"


BEGUN: Mapping[str, Any] = {"initial_state": None, "mode": "auto", "chunk": None}
FORWARD = {**BEGUN, **dict.fromkeys(("cu_seqlens", "valid", "state_dtype")), "debug": False}
PULLED = {**BEGUN, **dict.fromkeys(("cotangent", "state_cotangent"))}
BACK = {**PULLED, **dict.fromkeys(("cu_seqlens", "valid"))}
"""What keywords that are not given mean, in calls past the public functions of a target."""

OPTIONS = (
    "initial_state",
    "cu_seqlens",
    "valid",
    "mode",
    "chunk",
    "debug",
    "state_dtype",
    "state",
    "out",
    "state_indices",
    "cotangent",
    "state_cotangent",
)


def bind(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arrays:
    """Arguments by name from those of a call; TypeError for too many, unknown or doubled ones."""
    names = [a.name for a in signature.arguments]
    takes = f"{signature.name} takes {', '.join(names)}"
    if len(args) > len(names):
        raise TypeError(f"{takes}: expected at most {len(names)} arguments, got {len(args)}")
    bound = dict(zip(names, args))
    for name, x in kwargs.items():
        if name not in names:
            raise TypeError(f"{takes}: no argument is called {name!r}")
        if name in bound:
            raise TypeError(f"{name}: given twice, by position and by name")
        bound[name] = x
    return bound


def from_core(
    signature: Signature, core: Core
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """The functions of a kernel that runs ``core`` through the contract."""
    forward = partial(calls.forward, signature, core)
    return forward, partial(calls.step, signature, core), partial(calls.vjp, signature, core)


def load(name: str, source: str, path: Path | None = None) -> dict[str, Any]:
    """What an emitted module defines, loaded from its text, which stands at ``path`` if anywhere;
    tracebacks show its lines."""
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    module = types.ModuleType(f"lacc.emitted.{name}_{digest}")
    module.__file__ = str(path) if path else f"<lacc {name} {digest}>"
    sys.modules[module.__name__] = module  # dataclasses look their module up
    lines = source.splitlines(keepends=True)
    linecache.cache[module.__file__] = (len(source), None, lines, module.__file__)
    exec(compile(source, module.__file__, "exec"), module.__dict__)
    return module.__dict__


def from_source(
    name: str, source: str
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """The functions of an emitted module that are called ``name``: forward, step, vjp."""
    loaded = load(name, source)

    def by_name(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda arguments, **options: function(**arguments, **options)

    found = (loaded[name + ending] for ending in ("", "_step", "_vjp"))
    forward, step, vjp = map(by_name, found)
    return forward, step, vjp
