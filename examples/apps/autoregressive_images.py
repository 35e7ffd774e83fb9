"""Images of digits go in, models that draw them pixel by pixel and a plot of the costs come out.

    python examples/apps/autoregressive_images.py            a few minutes, writes images.png
    python examples/apps/autoregressive_images.py --quick    seconds, tiny sizes

The claim of the Linear Transformer (Katharopoulos et al. 2020): drawing images pixel by pixel is
thousands of times faster, since a token takes constant time and memory. Two models are trained on
the 8 x 8 digits of scikit-learn, alike but for what mixes tokens: `examples/linear_transformer.la`
through the C target, and softmax attention (PyTorch's). Each draws digits and completes halves.
Then both decode sequences of up to 16,384 tokens with random weights, batch 1, one thread: the
linear model with `kernel.stepper`, softmax attention with a cache of keys and values, and without
one, when every token takes a forward over all before it. A length whose run would take too long is
computed from tokens measured at three places along it (Gauss's), and drawn hollow.

It takes torch and scikit-learn, and matplotlib for the picture: `pip install -e '.[examples]'`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

for name in ("OMP_NUM_THREADS", "LACC_THREADS"):
    os.environ.setdefault(name, "1")

try:
    import numpy as np
    import torch
    from sklearn.datasets import load_digits
    from torch import nn
    from torch.nn import functional as F
except ImportError as missing:
    sys.exit(f"this example needs {missing.name}: pip install -e '.[examples]'")

import lacc  # noqa: E402

SIDE, LEVELS, CLASSES = 8, 16, 10
PIXELS = SIDE * SIDE
SPEC = Path(__file__).parents[1] / "linear_transformer.la"
WAYS = ("linear, step", "softmax, cache", "softmax, no cache")


class Mixing(nn.Module):
    """What mixes the tokens of a layer; ``kernel``: the compiled spec, None: softmax attention."""

    def __init__(self, width, heads, kernel):
        super().__init__()
        self.heads, self.kernel = heads, kernel
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def split(self, x):
        """Queries, keys and values [..., H, D] of x [..., width]."""
        return self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(-3)

    def forward(self, x):
        """All tokens [B, T, width]."""
        q, k, v = self.split(x)
        if self.kernel is not None:
            return self.out(self.kernel(q, k, v)[0].flatten(-2))
        q, k, v = (a.transpose(1, 2) for a in (q, k, v))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(o.transpose(1, 2).flatten(-2))

    def step(self, x, held, t):
        """Token t [B, width]; what is ``held`` goes on: a stepper, or room for keys and values."""
        q, k, v = self.split(x)
        if self.kernel is not None:
            return self.out(held[0](q, k, v).flatten(-2))
        keys, values = held  # [B, H, T, D]
        keys[:, :, t], values[:, :, t] = k, v
        seen = (a[:, :, : t + 1] for a in (keys, values))
        return self.out(F.scaled_dot_product_attention(q.unsqueeze(2), *seen).flatten(1))


class Layer(nn.Module):
    """Mixing, then two maps of each token, both beside the residual."""

    def __init__(self, width, heads, kernel):
        super().__init__()
        self.before, self.mixing = nn.LayerNorm(width), Mixing(width, heads, kernel)
        wide = 3 * width
        self.maps = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width)
        )

    def forward(self, x):
        x = x + self.mixing(self.before(x))
        return x + self.maps(x)

    def step(self, x, held, t):
        x = x + self.mixing.step(self.before(x), held, t)
        return x + self.maps(x)


class Model(nn.Module):
    """Tokens [B, T] in, logits of the next pixel [B, T, LEVELS] out. Token 0 is the digit's class,
    LEVELS + c; the others are pixels."""

    def __init__(self, sizes, length, kernel):
        super().__init__()
        self.sizes, self.linear = sizes, kernel is not None
        self.embed = nn.Embedding(LEVELS + CLASSES, sizes.width)
        self.place = nn.Parameter(0.02 * torch.randn(length, sizes.width))
        self.layers = nn.ModuleList(
            Layer(sizes.width, sizes.heads, kernel) for _ in range(sizes.layers)
        )
        self.last = nn.Sequential(nn.LayerNorm(sizes.width), nn.Linear(sizes.width, LEVELS))

    def forward(self, tokens):
        x = self.embed(tokens) + self.place[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.last(x)

    def step(self, token, held, t):
        """Logits [B, LEVELS] behind token t [B]."""
        x = self.embed(token) + self.place[t]
        for layer, own in zip(self.layers, held):
            x = layer.step(x, own, t)
        return self.last(x)

    def holds(self, batch, length):
        """What is held of ``length`` tokens, by layer: a stepper, or rooms for keys and values."""
        heads, size = self.sizes.heads, self.sizes.width // self.sizes.heads
        if self.linear:
            kernel = self.layers[0].mixing.kernel
            token = torch.zeros(batch, 3, heads, size).unbind(1)  # as `split` has them
            return [[kernel.stepper(*token)] for _ in self.layers]
        room = (batch, heads, length, size)
        return [[torch.zeros(room), torch.zeros(room)] for _ in self.layers]


@dataclass(frozen=True)
class Sizes:
    """Of models, of training and of the lengths that are decoded."""

    width: int = 96
    heads: int = 6
    layers: int = 3
    batch: int = 48
    steps: int = 600
    lengths: tuple[int, ...] = (64, 256, 1024, 4096, 16384)
    longest: float = 8.0  # seconds of a run that is measured whole


QUICK = Sizes(width=32, heads=2, layers=1, batch=8, steps=8, lengths=(16, 64, 256), longest=0.1)


def digits():
    """Training and held-out tokens [N, 1 + PIXELS]: the class, then 16 grey levels row by row."""
    data = load_digits()
    pixels = np.minimum(data.images.reshape(-1, PIXELS), LEVELS - 1).astype(np.int64)
    tokens = torch.from_numpy(np.concatenate([LEVELS + data.target[:, None], pixels], 1))
    return tokens[:-297], tokens[-297:]


def loss_of(model, tokens):
    """Nats a pixel."""
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def train(name, model, tokens, held_out, sizes, generator):
    """Adam with a warm-up and a cosine decay; prints bits a pixel, and gives those held out."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.05)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda n: min(1, (n + 1) / 30) * (0.02 + 0.98 * np.cos(np.pi / 2 * n / sizes.steps) ** 2),
    )
    start = time.perf_counter()
    for step in range(1, sizes.steps + 1):
        rows = torch.randint(len(tokens), (sizes.batch,), generator=generator)
        loss = loss_of(model, tokens[rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        if step % max(1, sizes.steps // 6) == 0:
            with torch.no_grad():
                bits = loss_of(model, held_out).item() / np.log(2)
            seconds = time.perf_counter() - start
            print(f"  {name}: step {step}, {bits:.3f} bits a pixel, {seconds:.0f} s", flush=True)
    return bits


@torch.no_grad()
def draw(model, given, generator, temperature=0.8):
    """Tokens [B, 1 + PIXELS] that begin as ``given`` [B, n] does, the rest one step each."""
    held, tokens = model.holds(len(given), PIXELS), given
    for t in range(PIXELS):
        logits = model.step(tokens[:, t], held, t)
        if t + 1 == tokens.shape[1]:
            shares = torch.softmax(logits / temperature, -1)
            one = torch.multinomial(shares, 1, generator=generator)
            tokens = torch.cat([tokens, one], 1)
    return tokens


@torch.no_grad()
def steps_agree(model, tokens):
    """The largest difference of logits, token by token and in one forward."""
    held = model.holds(len(tokens), PIXELS)
    stepped = [model.step(tokens[:, t], held, t) for t in range(PIXELS)]
    return (torch.stack(stepped, 1) - model(tokens[:, :-1])).abs().max().item()


def seconds_of(run, tokens):
    """CPU seconds of a run."""
    start = time.process_time()
    run(tokens)
    return time.process_time() - start


@torch.inference_mode()
def decoding(model, way, length, longest):
    """(CPU seconds of ``length`` tokens, whether all were run): all where that takes less than
    ``longest``, else the integral over three places, exact where a token costs up to t^5."""
    token, held = torch.zeros(1, dtype=torch.int64), model.holds(1, length)
    prefix = torch.zeros(1, length, dtype=torch.int64)

    def run(tokens):
        for t in tokens:
            model(prefix[:, : t + 1]) if way == WAYS[2] else model.step(token, held, t)

    run(range(1))
    each = 1 if way == WAYS[2] else min(32, length // 8)  # tokens at a place
    seconds = 0.0
    for place, share in zip((-(0.6**0.5), 0, 0.6**0.5), (5 / 18, 8 / 18, 5 / 18)):
        at = int((length - each) * (1 + place) / 2)
        seconds += share * length * seconds_of(run, range(at, at + each)) / each
    if seconds > longest:
        return seconds, False
    return seconds_of(run, range(length)), True


def held_bytes(model, way, length):
    """What decoding holds of ``length`` tokens: states, caches, or the activations of a layer."""
    sizes = model.sizes
    if way == WAYS[2]:  # the residual, queries, keys, values and what is attended to
        return 4 * 5 * length * sizes.width
    every = (x for own in model.holds(1, length) for x in own)
    return sum(4 * x.numel() for held in every for x in (held.state if model.linear else (held,)))


def compare(kernel, sizes):
    """Rows (way, length, tokens a second, bytes, whether measured whole) of models that are not
    trained; printed as they come."""
    print(f"\n{'decoding':<20}{'T':>7}{'tokens/s':>11}{'held':>12}   linear is faster", flush=True)
    rows = []
    for length in sizes.lengths:
        fastest = None
        for way in WAYS:
            model = Model(sizes, length, kernel if way == WAYS[0] else None).eval()
            seconds, whole = decoding(model, way, length, sizes.longest)
            fastest = fastest or seconds
            rows.append((way, length, length / seconds, held_bytes(model, way, length), whole))
            mark = "" if whole else "  from 3 places"
            size = f"{rows[-1][3] / 1024:,.0f} KiB"
            print(
                f"{way:<20}{length:>7}{length / seconds:>11,.4g}{size:>12}"
                f"   {seconds / fastest:,.1f} x{mark}",
                flush=True,
            )
    return rows


def picture(path, rows, grids):
    """The plots and the drawn images as one file."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(11, 8.6), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(1, 1.25))
    panels = above.subplots(1, 2)
    for way, color in zip(WAYS, ("tab:blue", "tab:orange", "tab:red")):
        own = [row for row in rows if row[0] == way]
        lengths = [row[1] for row in own]
        for panel, column, scale in ((panels[0], 2, 1), (panels[1], 3, 2**20)):
            panel.loglog(lengths, [row[column] / scale for row in own], color=color, label=way)
            for row in own:
                hollow = "none" if column == 2 and not row[4] else color
                at = (row[1], row[column] / scale)
                panel.plot(*at, "o", color=color, markerfacecolor=hollow, markersize=6)
    panels[0].set(title="decoding, one sequence", ylabel="tokens a CPU second")
    panels[1].set(title="memory held while decoding", ylabel="MiB")
    for panel in panels:
        panel.set(xlabel="T, tokens of the sequence")
        panel.grid(alpha=0.3, which="both")
    panels[0].legend(title="hollow: from 3 places", fontsize=9, title_fontsize=8)
    cells = below.subplots(len(grids), CLASSES)
    for line, (title, images) in zip(cells, grids.items()):
        for cell, image in zip(line, images):
            cell.imshow(image, cmap="gray_r", vmin=0, vmax=LEVELS - 1)
            cell.set(xticks=[], yticks=[])
        line[0].set_ylabel(title, rotation=0, ha="right", va="center", fontsize=10)
    figure.savefig(path, dpi=80)


def images_of(tokens):
    """[B, SIDE, SIDE] of tokens [B, 1 + n]; pixels that are not there stay white."""
    pixels = torch.zeros(len(tokens), PIXELS, dtype=torch.int64)
    pixels[:, : tokens.shape[1] - 1] = tokens[:, 1:]
    return pixels.reshape(-1, SIDE, SIDE)


def main():
    """Train, draw, compare, and put it into a picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    parser.add_argument("--steps", type=int, help=f"of training, {Sizes.steps} if absent")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("images.png"), help="the picture")
    options = parser.parse_args()
    if options.steps is not None and options.steps < 1:
        parser.error("--steps takes a positive number")
    if not options.out.parent.is_dir():
        parser.error(f"--out: there is no folder {options.out.parent}")
    sizes = QUICK if options.quick else Sizes()
    if options.steps:
        sizes = Sizes(**{**sizes.__dict__, "steps": options.steps})
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    size = sizes.width // sizes.heads
    try:
        kernel = lacc.compile(SPEC, target="c", K=size, V=size)
    except lacc.LaccError as problem:
        sys.exit(str(problem))
    tokens, held_out = digits()
    print(f"{len(tokens)} digits of {PIXELS} pixels, {LEVELS} grey levels", flush=True)
    real = torch.stack([held_out[held_out[:, 0] == LEVELS + c][0] for c in range(CLASSES)])
    grids = {"real": images_of(real)}
    for name, own in (("linear", kernel), ("softmax", None)):
        torch.manual_seed(options.seed)
        model = Model(sizes, PIXELS, own)
        bits = train(name, model, tokens, held_out, sizes, generator)
        print(f"  {name}: {bits:.3f} bits a pixel held out; steps and a forward differ by ", end="")
        print(f"{steps_agree(model, held_out[:8]):.1e}", flush=True)
        grids[f"drawn, {name}"] = images_of(draw(model, real[:, :1], generator))
        half = real[:, : 1 + PIXELS // 2]
        grids["upper half"] = images_of(half)
        grids[f"completed, {name}"] = images_of(draw(model, half, generator, 0.6))
    rows = compare(kernel, sizes)
    order = ("real", "drawn, linear", "drawn, softmax", "upper half", "completed, linear")
    try:
        picture(options.out, rows, {name: grids[name] for name in order})
    except ImportError:
        print("\nno picture: matplotlib is not installed (pip install -e '.[examples]')")
    else:
        print(f"\n{options.out} shows it")


if __name__ == "__main__":
    main()
