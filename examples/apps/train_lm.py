"""A spec goes in, a byte-level language model trained on one device or many comes out.

    python examples/apps/train_lm.py                                    one process
    torchrun --nproc-per-node 2 examples/apps/train_lm.py               each has its own sequences
    torchrun --nproc-per-node 2 examples/apps/train_lm.py --context     they share each sequence
    torchrun --nproc-per-node 8 examples/apps/train_lm.py --context --length 131072

On GPUs the ranks talk by NCCL and the kernels are Triton's, on CPUs by Gloo and C's. Gradients of
weights are averaged by DistributedDataParallel either way. The text is Python's own documentation,
or any file.
"""

import argparse
import os
import time
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import lacc
from lacc.distributed import context_parallel

SPEC = Path(__file__).parents[1] / "gla.la"


class Block(nn.Module):
    """A layer of the variant and a gated MLP, each on the normalised stream."""

    def __init__(self, layer, width, heads):
        super().__init__()
        self.mix_norm, self.mix = nn.RMSNorm(width), layer(width, heads)
        self.mlp_norm = nn.RMSNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)

    def rest(self, x, mixed):
        x = x + mixed
        a, b = self.up(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down(F.silu(a) * b)

    def forward(self, x):
        return self.rest(x, self.mix(self.mix_norm(x))[0])

    def step(self, x, cache):
        mixed, cache = self.mix.step(self.mix_norm(x), cache, in_place=True)
        return self.rest(x, mixed), cache


class Model(nn.Module):
    """Bytes to the logits of the next byte."""

    def __init__(self, layer, width, heads, depth):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(Block(layer, width, heads) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 256)
        nn.init.zeros_(self.head.weight)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    @torch.no_grad()
    def sample(self, prompt, count):
        """``count`` bytes after ``prompt``, one step a byte."""
        caches, tokens = [None] * len(self.blocks), list(prompt)
        for i in range(len(prompt) + count - 1):
            x = self.embed(torch.tensor([tokens[i]], device=self.embed.weight.device))
            for n, block in enumerate(self.blocks):
                x, caches[n] = block.step(x, caches[n])
            if i >= len(prompt) - 1:
                chances = F.softmax(self.head(self.norm(x))[0] / 0.7, -1)
                tokens.append(int(torch.multinomial(chances, 1)))
        return bytes(tokens)


def batches(text, args, rank, ranks):
    """Tokens and the bytes after them, [B, T of this rank]: every rank draws all and keeps its."""
    rows = args.batch * (1 if args.context else ranks)
    draw = torch.Generator().manual_seed(args.seed)
    if len(text) < args.length + 2:
        raise SystemExit(f"the text has {len(text)} bytes, fewer than a sequence: --length")
    while True:
        starts = torch.randint(len(text) - args.length - 1, (rows,), generator=draw)
        whole = torch.stack([text[s : s + args.length + 1] for s in starts.tolist()]).long()
        if args.context:
            a, b = (args.length * r // ranks for r in (rank, rank + 1))
            part = whole[:, a : b + 1]
        else:
            part = whole[rank * args.batch : (rank + 1) * args.batch]
        yield part[:, :-1], part[:, 1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spec", nargs="?", default=SPEC, help="a causal spec")
    parser.add_argument("--text", type=Path, help="a file to train on")
    parser.add_argument("--context", action="store_true", help="the ranks share each sequence")
    parser.add_argument("--length", type=int, default=512, help="tokens of a whole sequence")
    for name, number in (("batch", 4), ("steps", 60), ("width", 128), ("heads", 4), ("depth", 2)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    many = "RANK" in os.environ
    if many:
        dist.init_process_group("nccl" if cuda else "gloo")
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if many else (0, 1)
    if args.context and not many:
        parser.error("--context is for several ranks: start it with torchrun")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else "cpu"
    if cuda:
        torch.cuda.set_device(device)
    elif many:
        torch.set_num_threads(1)

    kernel = lacc.compile(args.spec, target="auto")
    torch.manual_seed(args.seed)
    model = Model(kernel.layer, args.width, args.heads, args.depth).to(device)
    if args.context:
        shared = context_parallel(kernel, dist.new_group())  # apart from that of the weights
        for block in model.blocks:
            block.mix.run = shared
    trained = nn.parallel.DistributedDataParallel(model) if many else model
    optimizer = torch.optim.AdamW(trained.parameters(), lr=args.rate, betas=(0.9, 0.95))
    text = args.text.read_bytes() if args.text else "\n".join(topics.values()).encode()
    data = batches(torch.frombuffer(bytearray(text), dtype=torch.uint8), args, rank, ranks)
    if rank == 0:
        what = "sharing each sequence" if args.context else "with sequences of their own"
        count = sum(x.numel() for x in model.parameters())
        print(f"{kernel.spec.name}, {count:,} weights, {ranks} ranks {what}", flush=True)

    begun, seen = time.perf_counter(), 0
    for step in range(1, args.steps + 1):
        tokens, after = (x.to(device) for x in next(data))
        loss = F.cross_entropy(trained(tokens).flatten(0, 1), after.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = args.rate * min(1, step / 10)
        optimizer.step()
        seen += args.batch * args.length * (1 if args.context else ranks)
        if step in (1, args.steps) or step % 10 == 0:
            mean = loss.detach()
            if many:
                dist.all_reduce(mean)
                mean = mean / ranks
            if rank == 0:
                rate = seen / (time.perf_counter() - begun)
                print(f"step {step:4d}  loss {mean:.4f}  {rate:,.0f} tokens/s", flush=True)
    if rank == 0:
        print(model.sample(b"The ", 120).decode("utf-8", "replace"))
    if many:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
