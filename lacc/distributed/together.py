"""Ranks of a group and a block of a program go in; an exception on one rank in it, or a rank that
does not come, is an error on all.

    with together(timeout=60):
        o, state = gla(q, k, v, g)          # of `context_parallel`
        loss(o).backward()

Calls of `context_parallel` tell each other what goes wrong in them. What goes wrong between them,
on one rank, would leave the others waiting in their next call: here they hear of it there, at its
gradients, or at the end of the block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lacc.distributed.ranks import Ranks


@contextmanager
def together(group: Any = None, *, timeout: float | None = None) -> Iterator[None]:
    """All ranks of ``group`` (of `torch.distributed`; None: the default group) go through the block
    together. Where one leaves it by an exception, others raise RuntimeError with its words when
    they next wait for it in a call of `context_parallel`, or leave the block themselves.

    ``timeout`` is how many seconds a rank waits for others in the block (None: as long as the group
    does); then it raises TimeoutError that names them, and what they were at last. The group
    is of no use afterwards. Raises ValueError where ``timeout`` is not positive, or ranks are at
    different things.
    """
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout: expected a positive number of seconds, got {timeout}")
    ranks = Ranks(group)
    meetings = ranks.meetings
    before = meetings.timeout, meetings.left
    meetings.timeout, meetings.left = timeout or meetings.timeout, False
    try:
        ranks.doing = "the beginning of a block of together"
        ranks.agree("together", mine=ranks.doing)
        meetings.together += 1
        ranks.doing = "the end of a block of together"
        try:
            yield
        except Exception as problem:
            _tell(ranks, problem)
            raise
        except SystemExit as problem:
            _tell(ranks, RuntimeError(f"SystemExit: {problem}"))
            raise
        else:
            ranks.agree("together", mine=ranks.doing)
        finally:
            meetings.together -= 1
    finally:
        meetings.timeout, meetings.left = before


def _tell(ranks: Ranks, problem: Exception) -> None:
    """Tells the others, where they can still be told, what went wrong here."""
    if ranks.meetings.lost or ranks.meetings.left:
        return
    try:
        ranks.agree("together", problem, leaves=True)
    except Exception as raised:
        if raised is not problem:
            raise
