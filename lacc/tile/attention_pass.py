"""An attention of a spec in, the pass over time that computes it out: the arrays it takes, by name,
and what of them a state holds from call to call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lacc.analysis.stages import Stage, at_hand
from lacc.ir.reach import Past
from lacc.spec.model import Expr, Spec
from lacc.spec.shapes import Shape
from lacc.tile.chunk import ChunkBuilder, attended_name
from lacc.tile.lower import Naming


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Values at all tokens: ``source`` is an input or stored ("": neither, where there is no chunk
    form), ``past`` what came before the call, ``shape`` that of one value."""

    source: str
    past: Past
    shape: Shape


@dataclass(frozen=True, slots=True)
class AttentionPass:
    """A pass that stores as ``output`` what each token's ``query`` attends to, among the last
    ``window`` tokens (None: all so far); ``sink`` names one more logit."""

    stage: Stage
    query: str
    keys: TokenRows
    values: TokenRows
    sink: str | None
    output: str
    window: int | None

    @property
    def sources(self) -> tuple[str, ...]:
        """What it takes, by name."""
        found = (self.query, self.keys.source, self.values.source, self.sink or "")
        return tuple(name for name in found if name)

    def __str__(self) -> str:
        window = "" if self.window is None else f", window={self.window}"
        sink = "" if self.sink is None else f", sink={self.sink}"
        takes = f"{self.query}, {self.keys.source}, {self.values.source}{window}{sink}"
        return f"{self.output} = attend({takes})"


class AttentionBuilder:
    """Builds stage ``number``; ``attentions`` numbers those of all attentions, ``home`` gives the
    arguments, ``pasts`` are those of keys and values."""

    def __init__(
        self,
        spec: Spec,
        number: int,
        stage: Stage,
        naming: Naming,
        home: ChunkBuilder | None,
        attentions: Mapping[Expr, int],
        pasts: tuple[Past, Past],
    ) -> None:
        self.spec, self.number, self.stage, self.naming = spec, number, stage, naming
        self.home, self.attentions, self.pasts = home, attentions, pasts

    def build(self) -> AttentionPass:
        """The pass; what it takes and is not there is stored by its home."""
        node = self.stage.attend
        assert node is not None
        query, keys, values, *sink = (self._named(arg) for arg in node.args)
        return AttentionPass(
            self.stage,
            query,
            TokenRows(keys, self.pasts[0], node.args[1].shape),
            TokenRows(values, self.pasts[1], node.args[2].shape),
            sink[0] if sink else None,
            attended_name(self.number),
            node.value,
        )

    def _named(self, arg: Expr) -> str:
        if arg.op == "attend":
            return attended_name(self.attentions[arg])
        if at_hand(self.spec, arg):
            return self.spec.arg(arg.reference[0]).ascii
        assert self.home is not None
        return self.home.store(self.home.lower(arg), self.naming.axes(arg.shape))
