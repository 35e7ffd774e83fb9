"""A spec, a target and a dtype in, what was measured of them on this machine out: records of
`lacc tune`, and the table of choices that a plan takes from them.

A record is of one `bucket` of calls, forward or backward. It holds rounds, in each of which
candidates took turns, so that what one took is compared with what another took at the same time.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from lacc import __version__
from lacc.plan.choose import Wanted
from lacc.plan.plan import Bucket, Choice, Plan
from lacc.runtime import entries, machines
from lacc.spec.model import Spec

KIND = "tuned"
"""The kind of `entries` that records are."""
WAYS = ("forward", "backward")
MARGIN = 0.02
"""By how much of its time the model's choice must be beaten to be given up."""
EMITTING = ("backends", "templates", "tile", "plan", "runtime")
"""Packages that a kernel is made by."""


@dataclass(frozen=True, slots=True)
class Key:
    """What a record is of: calls of a spec, on a target and a machine."""

    variant: str
    spec: str
    emitter: str
    target: str
    device: str
    dtype: str

    @property
    def begins(self) -> str:
        """How the names of its entries begin."""
        return f"{self.variant}-{entries.digest(*map(str, asdict(self).values()))}-"


def key_of(spec: Spec, target: str, dtype: str) -> Key:
    """The key of a spec, with what was set from outside, on this machine."""
    text = [spec.text, *(f"{name}={value}" for name, value in sorted(spec.overrides.items()))]
    device = entries.digest(*machines.device(target).values())
    return Key(spec.ascii, entries.digest(*text), emitter(), target, device, dtype)


@cache
def emitter() -> str:
    """The digest of all that writes kernels: where it changes, what was measured says nothing."""
    texts = [__version__]
    for package in EMITTING:
        folder = files(f"lacc.{package}")
        for path in sorted(Path(str(folder)).rglob("*")):
            if path.suffix in (".py", ".j2", ".c"):
                texts += [path.name, path.read_text("utf-8")]
    return entries.digest(*texts)


@dataclass(slots=True)
class Record:
    """What was measured of one bucket of calls: ``model`` is the choice without it, ``errors`` the
    largest error of each candidate that was checked, ``wrong`` why one was left out, ``rounds``
    the seconds that each took in turn; ``done`` once no more are needed."""

    key: Key
    way: str
    bucket: Bucket
    shape: Mapping[str, int]
    device: str
    model: Choice
    errors: dict[Choice, float] = field(default_factory=dict)
    wrong: dict[Choice, str] = field(default_factory=dict)
    rounds: list[dict[Choice, float]] = field(default_factory=list)
    done: bool = False
    when: str = ""

    @property
    def name(self) -> str:
        """What its entry is called."""
        return f"{self.key.begins}{self.way}-{entries.digest(repr(self.bucket))}"

    @property
    def yardstick(self) -> Choice | None:
        """What others are compared with: the model's choice, or what stands in where that is
        wrong."""
        measured = [choice for taken in self.rounds for choice in taken]
        return self.model if self.model in measured else next(iter(measured), None)

    def times(self, choice: Choice) -> list[float]:
        """Seconds of a candidate, a number a round."""
        return [taken[choice] for taken in self.rounds if choice in taken]

    def relative(self) -> dict[Choice, float]:
        """How many times as long as the yardstick each took, the median of its rounds; those first
        that took least."""
        base, found = self.yardstick, dict[Choice, list[float]]()
        for taken in self.rounds:
            for choice, seconds in taken.items():
                if base in taken:
                    found.setdefault(choice, []).append(seconds / taken[base])
        medians = {choice: statistics.median(ratios) for choice, ratios in found.items()}
        return dict(sorted(medians.items(), key=lambda one: one[1]))

    @property
    def best(self) -> Choice:
        """The candidate to run: the fastest of those that were in nearly all rounds, one that left
        early may have been lucky; the yardstick where none is faster by `MARGIN`."""
        base = self.yardstick
        if base is None:
            return self.model
        enough = 0.7 * len(self.times(base))
        relative = {c: r for c, r in self.relative().items() if len(self.times(c)) >= enough}
        first = next(iter(relative), base)
        return first if relative.get(first, 1.0) < 1 - MARGIN else base

    @property
    def gain(self) -> float:
        """How many times as fast as the yardstick the best is."""
        return 1 / self.relative().get(self.best, 1.0)

    def entry(self) -> entries.Entry:
        """All of it as JSON has it."""
        return {
            **asdict(self.key),
            "way": self.way,
            "bucket": list(self.bucket),
            "shape": dict(self.shape),
            "machine": self.device,
            "model": list(self.model),
            "best": list(self.best),
            "gain": round(self.gain, 4),
            "errors": {named(c): error for c, error in self.errors.items()},
            "wrong": {named(c): why for c, why in self.wrong.items()},
            "rounds": [{named(c): s for c, s in taken.items()} for taken in self.rounds],
            "done": self.done,
            "when": self.when,
        }


def named(choice: Choice) -> str:
    """``chunk 64``."""
    mode, tokens = choice
    return f"chunk {tokens}" if mode == "chunk" else mode


def choice_named(name: str) -> Choice:
    """The choice that `named` calls so."""
    mode, _, tokens = name.partition(" ")
    return mode, int(tokens or 1)


def record_of(entry: entries.Entry) -> Record:
    """The record that an entry holds. Raises ValueError, KeyError or TypeError where it holds
    none."""
    key = Key(**{name: str(entry[name]) for name in Key.__slots__})
    T, heads, *dims = entry["bucket"]
    mode, tokens = entry["model"]
    return Record(
        key,
        str(entry["way"]),
        (int(T), int(heads), *((str(name), int(size)) for name, size in dims)),
        {name: int(size) for name, size in entry["shape"].items()},
        str(entry["machine"]),
        (str(mode), int(tokens)),
        {choice_named(c): float(error) for c, error in entry["errors"].items()},
        {choice_named(c): str(why) for c, why in entry["wrong"].items()},
        [{choice_named(c): float(s) for c, s in taken.items()} for taken in entry["rounds"]],
        bool(entry["done"]),
        str(entry["when"]),
    )


def kept(begins: str = "") -> Iterator[Record]:
    """All records whose names begin so."""
    for entry in entries.every(KIND, begins):
        if record := _readable(entry):
            yield record


def read(name: str) -> Record | None:
    """The record called so, if it is kept."""
    return _readable(entries.read(KIND, name))


def _readable(entry: entries.Entry | None) -> Record | None:
    """The record of an entry; none where another version of lacc wrote it otherwise."""
    try:
        return None if entry is None else record_of(entry)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def save(record: Record) -> Record:
    """Puts a record where others find it, with the rounds that another process added to it
    meanwhile. Raises OSError."""

    def merged(before: entries.Entry | None) -> entries.Entry:
        nonlocal record
        if known := _readable(before):
            record = joined(known, record)
        return record.entry()

    entries.change(KIND, record.name, merged)
    return record


def joined(one: Record, other: Record) -> Record:
    """What both know: rounds of both, each once."""
    rounds = list(one.rounds)
    rounds += [taken for taken in other.rounds if taken not in one.rounds]
    return replace(
        other,
        errors=one.errors | other.errors,
        wrong=one.wrong | other.wrong,
        rounds=rounds,
        done=one.done or other.done,
        when=max(one.when, other.when),
    )


def applied(plan: Plan, spec: Spec, target: str, wanted: Wanted) -> Plan:
    """A plan that takes what was measured of ``spec`` first, and says so. Raises ValueError for a
    file that holds no such table, or one of another spec."""
    key = key_of(spec, target, wanted.dtype)
    if isinstance(wanted.tuned, str):
        records = read_table(Path(wanted.tuned), key)
        where = f"in {wanted.tuned}"
    else:
        records = [record for record in kept(key.begins) if record.rounds]
        where = "on this machine"
    table: dict[str, dict[Bucket, Choice]] = {way: {} for way in WAYS}
    why = []
    for record in records:
        table[record.way][record.bucket] = record.best
        why.append(_said(record))
    if not records:
        why.append(f"nothing was measured of this spec {where}: `lacc tune` does")
    return replace(plan.measured(table), why=(*plan.why, *why))


def _said(record: Record) -> str:
    """What a record changes, in a sentence."""
    best, model = named(record.best), named(record.model)
    beats = f"{record.gain:.2f} times as fast as {model}, the model's choice"
    if record.best == record.model:
        beats = "the model's choice, too"
    gradients = "with gradients, " if record.way == "backward" else ""
    when = f"measured on {record.when[:10]}" if record.when else "measured"
    return f"{gradients}{sizes(record.bucket)}: {best}, {beats}, {when}"


def sizes(bucket: Bucket) -> str:
    """A bucket in words."""
    T, heads, *dims = bucket
    each = ", ".join(f"{dim[0]} = {dim[1]}" for dim in dims if isinstance(dim, tuple))
    return f"T up to {T} and heads up to {heads}{f' ({each})' if each else ''}"


def table_text(records: Iterable[Record], key: Key) -> str:
    """A table of records as a file that ships beside a kernel, and that plans are made with."""
    head = {"by": f"Written by lacc {__version__}", **asdict(key)}
    whole = head | {"records": [record.entry() for record in records]}
    return json.dumps(whole, indent=1).replace("\n ", "", 1) + "\n"


def read_table(path: Path, key: Key) -> list[Record]:
    """The records of a file that `table_text` is of, of the spec, target and dtype of ``key``;
    another machine's count as well, that is what the file is for."""
    try:
        whole = json.loads(path.read_text("utf-8"))
        records = [record_of(entry) for entry in whole["records"]]
    except OSError as problem:
        raise ValueError(f"tuned: cannot read {path}: {problem.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"tuned: {path} is no table that `lacc tune --export` wrote") from None
    for name in ("spec", "target", "dtype"):
        if getattr(key, name) != whole[name]:
            raise ValueError(
                f"tuned: {path} was measured for {_differs(name, whole)}, not this {name}"
            )
    return [record for record in records if record.rounds]


def _differs(name: str, whole: Mapping[str, Any]) -> str:
    return f"another spec, {whole['variant']}" if name == "spec" else f"{name} {whole[name]}"
