"""A group of ranks goes in; what they tell each other comes out: bytes from one to the next or to
all, and whether all are well.

What goes wrong on one rank is an error on all of them. Before ranks rely on one another they
`agree`: each says, in two numbers, whether it failed and what its call is like.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any

Like = tuple[tuple[int, ...], Any]
"""The shape and dtype of a tensor."""


class Trouble:
    """What went wrong first in the blocks that it was entered for; they end there, and whoever
    entered goes on, to tell the others."""

    problem: Exception | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        _: TracebackType | None,
    ) -> bool:
        if not isinstance(problem, Exception):
            return False
        self.problem = self.problem or problem
        return True


@dataclass
class Meetings:
    """What this process knows of a group: in how many blocks of `together` it is, whether a rank
    has left the innermost, how many seconds it waits there (None: as long as the group does), how
    often its ranks have met, and whether they can no more."""

    together: int = 0
    left: bool = False
    timeout: float | None = None
    count: int = 0
    lost: bool = False


MEETINGS: dict[Any, Meetings] = {}
"""Of each group."""


@dataclass
class Ranks:
    """The ranks of a group, of `torch.distributed` (None: the default group), and this one among
    them. ``sent`` counts the bytes of states and cotangents that it sent to others; ``doing`` says
    what it is at, for those who wait for it."""

    group: Any
    sent: int = 0
    doing: str = ""
    _on_the_way: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        import torch
        import torch.distributed as dist

        self.rank, self.count = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.before = self.rank - 1 if self.rank else None
        self.after = self.rank + 1 if self.rank + 1 < self.count else None
        self.meetings = MEETINGS.setdefault(self.group or dist.group.WORLD, Meetings())
        nccl = "nccl" in str(dist.get_backend(self.group))
        self.device = torch.device("cuda", torch.cuda.current_device()) if nccl else "cpu"

    def agree(
        self,
        what: str,
        problem: Exception | None = None,
        mine: str = "",
        number: int = 0,
        leaves: bool = False,
    ) -> list[int]:
        """The ``number`` of every rank. Raises on all ranks where one has a ``problem``, which is
        raised on itself, or where ``mine``, what a rank says of its call, is not alike:
        RuntimeError and ValueError that name the ranks. By a problem a rank may leave the block
        that they are in ``together``: the others meet there no more."""
        import torch
        import torch.distributed as dist

        digest = int.from_bytes(hashlib.sha256(mine.encode()).digest()[:7])
        if self.meetings.left:
            raise problem or RuntimeError(f"{what}: a rank has left the block of together")
        failed = 2 * leaves or int(problem is not None)
        told = torch.tensor([failed, digest, number], device=self.device)
        heard = [torch.empty_like(told) for _ in range(self.count)]
        self._arrive()
        self._wait(dist.all_gather(heard, told, group=self.group, async_op=True))
        seen = [x.tolist() for x in heard]
        if not any(failed or other != digest for failed, other, _ in seen):
            return [n for _, _, n in seen]
        self.meetings.left = any(failed == 2 for failed, *_ in seen)
        said: list[Any] = [None] * self.count
        failure = "" if problem is None else f"{type(problem).__name__}: {problem}"
        dist.all_gather_object(said, (failure, mine), group=self.group)
        if problem is not None:
            raise problem
        problems = [f"rank {rank}: {why}" for rank, (why, _) in enumerate(said) if why]
        if problems:
            raise RuntimeError(f"{what}: {'; '.join(problems)}")
        rank, other = next((r, other) for r, (_, other) in enumerate(said) if other != said[0][1])
        raise ValueError(f"{what}: rank 0 has {said[0][1]}; rank {rank} has {other}")

    # ---- to all ---------------------------------------------------------------------------------

    def gathered(self, tensors: Sequence[Any]) -> list[list[Any]]:
        """The ``tensors`` of every rank, which have the same shapes and dtypes on all of them."""
        import torch
        import torch.distributed as dist

        body = self._packed(tensors)
        bodies = [torch.empty_like(body) for _ in range(self.count)]
        if body.numel():
            self._wait(dist.all_gather(bodies, body, group=self.group, async_op=True))
        self.sent += body.numel() * (self.count - 1)
        like = [(tuple(x.shape), x.dtype) for x in tensors]
        device = tensors[0].device if tensors else self.device
        return [self.unpacked(one, like, device) for one in bodies]

    def _packed(self, tensors: Sequence[Any]) -> Any:
        import torch

        flat = (x.new_empty(x.numel()).copy_(x.reshape(-1)) for x in tensors if x.numel())
        parts = [x.view(torch.uint8).to(self.device) for x in flat]
        empty = torch.zeros(0, dtype=torch.uint8, device=self.device)
        return torch.cat(parts) if parts else empty

    def unpacked(self, body: Any, like: Sequence[Like], device: Any) -> list[Any]:
        """Tensors of the shapes and dtypes ``like`` from their bytes. Raises ValueError where
        these are not as many."""
        import torch

        found = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in like]
        sizes = [x.numel() * x.element_size() for x in found]
        if sum(sizes) != body.numel():
            raise ValueError(f"a state of {body.numel()} bytes came where one of {sum(sizes)} fits")
        at = 0
        for x, size in zip(found, sizes):
            if size:
                x.copy_(body[at : at + size].clone().view(x.dtype).view(x.shape))
            at += size
        return found

    # ---- from one to the next -------------------------------------------------------------------

    def send(
        self, to: int, head: Sequence[int], tensors: Sequence[Any], size: int | None = None
    ) -> None:
        """Starts sending ``head`` and tensors, which `finish` waits for. Where the receiver knows
        the ``size`` of the tensors in bytes it is one message, with no tensors too."""
        import torch
        import torch.distributed as dist

        body = self._packed(tensors)
        first = torch.tensor([*head, body.numel()], dtype=torch.int64, device=self.device)
        first = first.view(torch.uint8)
        rest = body.new_zeros((size or 0) - body.numel() if size and not body.numel() else 0)
        messages = (first, body) if size is None else (torch.cat([first, body, rest]),)
        for message in messages:
            if message.numel():
                work = dist.isend(message, group=self.group, group_dst=to)
                self._on_the_way.append((work, message))
        self.sent += body.numel()

    def received(self, source: int, length: int, size: int | None = None) -> tuple[list[int], Any]:
        """The ``length`` numbers that a message begins with, and the bytes of its tensors, of which
        there are ``size`` if any."""
        import torch

        head = 8 * (length + 1)
        whole = self._got(source, head + (size or 0))
        *numbers, count = map(int, whole[:head].view(torch.int64).tolist())
        if size is None:
            return numbers, self._got(source, count)
        return numbers, whole[head : head + count]

    def _got(self, source: int, size: int) -> Any:
        """So many bytes of a rank."""
        import torch
        import torch.distributed as dist

        body = torch.empty(size, dtype=torch.uint8, device=self.device)
        if size:
            self._wait(dist.irecv(body, group=self.group, group_src=source))
        return body

    def finish(self) -> None:
        """Waits for what was sent."""
        for work, _ in self._on_the_way:
            self._wait(work)
        self._on_the_way.clear()

    # ---- waiting --------------------------------------------------------------------------------

    def _wait(self, work: Any) -> None:
        """Waits for others. Raises TimeoutError that says for whom, and at what."""
        meetings = self.meetings
        try:
            if meetings.timeout is None:
                work.wait()
            else:
                work.wait(timedelta(seconds=meetings.timeout))
        except RuntimeError as problem:
            meetings.lost = True
            if meetings.timeout is None:
                raise
            raise TimeoutError(f"{self.doing}: {self._missed(meetings.timeout)}") from problem

    def _store(self) -> Any:
        import torch.distributed as dist

        group: Any = self.group or dist.group.WORLD
        return group.get_group_store()

    def _arrive(self) -> None:
        """Tells those who may time out where this rank is."""
        self.meetings.count += 1
        if self.meetings.timeout is not None:
            self._store().set(f"lacc/{self.rank}", f"{self.meetings.count} {self.doing}")

    def _missed(self, seconds: float) -> str:
        """Whom this rank waited for, and what they were at last."""
        store, found = self._store(), []
        for rank in (rank for rank in range(self.count) if rank != self.rank):
            key = f"lacc/{rank}"
            said = store.get(key).decode() if store.check([key]) else "0"
            count, _, doing = said.partition(" ")
            if int(count) < self.meetings.count:
                found.append(f"rank {rank}, " + (f"last seen at {doing}" if doing else "not seen"))
        if not found:
            return f"rank {self.rank} lost the others, which may have waited too long"
        return f"rank {self.rank} waited {seconds:g} s for {'; '.join(found)}"
