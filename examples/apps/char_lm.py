"""A spec goes in, a small character language model trained through its kernel comes out.

    python examples/apps/char_lm.py [SPEC]    any causal spec with one output; examples/gla.la

The text is Python's own documentation. In each of two layers every input of the spec is a linear
map of the normalised embedding, squashed into what the spec promises of it. Forward and gradients
of the recurrence are the kernel's; the sample is made token by token with `kernel.step`.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from pydoc_data.topics import topics

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small matrices: threads only wait

import numpy as np

import lacc

WIDTH, HEADS, LAYERS, BATCH, LENGTH, DIM, PROMPT, SAMPLE = 96, 4, 2, 8, 96, 24, 32, 320
TEXT = "\n".join(topics[name] for name in sorted(topics))


def squash(x, arg):
    """``x`` moved to where ``arg`` promises to be, and the function that takes a gradient back."""
    low, high, norm = -np.inf, np.inf, np.inf
    for promise in arg.promises:
        left, right, less = promise.left, promise.right, "<" in promise.cmp
        if left.op == "const":
            left, right, less = right, left, not less
        norm = right.value if left.op == "sum" else norm
        low, high = (low, right.value) if less else (right.value, high)
    s = 1 / (1 + np.exp(-np.clip(x, -30, 30)))
    if np.isfinite(norm):
        r, c = 1 / np.sqrt(np.square(x).sum(-1, keepdims=True) + 1e-3), norm**0.5
        return c * x * r, lambda d: c * r * (d - x * r * (d * x * r).sum(-1, keepdims=True))
    if np.isfinite(low) and np.isfinite(high):
        return low + (high - low) * s, lambda d: d * (high - low) * s * (1 - s)
    if np.isfinite(high):  # the log of a gate: slow to forget
        return high - np.logaddexp(0, x) / 8, lambda d: -d * s / 8
    return (low + np.logaddexp(0, x), lambda d: d * s) if np.isfinite(low) else (x, lambda d: d)


def normalize(x):
    """``x`` over its root mean square, and the way back."""
    r = 1 / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-6)
    return x * r, lambda d: r * (d - x * r * (d * x * r).mean(-1, keepdims=True))


def rows(x):
    """All leading axes of ``x`` as one."""
    return x.reshape(-1, x.shape[-1])


class Model:
    """Weights by name, and the forward pass with its way back."""

    def __init__(self, kernel, characters, rng):
        self.kernel, spec = kernel, kernel.spec
        dims = {name: dim.default for name, dim in spec.dims.items()}
        lead = {"head": (HEADS,), "group": (1,), "layer": (), "position": (LENGTH,)}
        self.args = [a for a in spec.args if a.role != "buffer" and a.default is None]
        self.shape, shapes = {}, {"embed": (characters, WIDTH), "out": (WIDTH, characters)}
        for a in (*self.args, *spec.outputs):
            self.shape[a.ascii] = lead[a.per] + tuple(size.evaluate(dims) for size in a.shape)
        for n in range(LAYERS):
            shapes[f"{n} mix"] = (int(np.prod(self.shape[spec.outputs[0].ascii])), WIDTH)
            for a in self.args:
                flat = (WIDTH, int(np.prod(self.shape[a.ascii])))
                shapes[f"{n} {a.ascii}"] = flat if a.role == "input" else self.shape[a.ascii]
        draw = lambda s: np.float32(rng.standard_normal(s) * s[-2:][0] ** -0.5)  # noqa: E731
        self.w = {name: draw(shape) for name, shape in shapes.items()}

    def forward(self, tokens, states=None):
        """Logits [..., characters]; cotangent of the logits -> gradients; each layer's state."""
        w, x, carried, tape = self.w, self.w["embed"][tokens], [], []
        for n in range(LAYERS):
            h, from_h = normalize(x)
            values, pulls = {}, {}
            for a in self.args:
                raw = w[f"{n} {a.ascii}"]
                if a.role == "input":
                    raw = (h @ raw).reshape(tokens.shape + self.shape[a.ascii])
                values[a.ascii], pulls[a.ascii] = squash(raw, a)
            one = None if states is None else {"state": states[n]}
            o, state = self.kernel(**values) if one is None else self.kernel.step(**values, **one)
            y, from_y = normalize(o)
            x = x + y.reshape(*tokens.shape, -1) @ w[f"{n} mix"]
            carried.append(state)
            tape.append((h, from_h, values, pulls, y, from_y))
        last, from_last = normalize(x)

        def backward(d):
            grads, dx = {"out": rows(last).T @ rows(d)}, from_last(d @ w["out"].T)
            for n in reversed(range(LAYERS)):
                h, from_h, values, pulls, y, from_y = tape[n]
                grads[f"{n} mix"] = y.reshape(tokens.size, -1).T @ rows(dx)
                do = from_y((dx @ w[f"{n} mix"].T).reshape(y.shape))
                found, dh = self.kernel.vjp(**values, cotangent=do), 0
                for a in self.args:
                    name, g = f"{n} {a.ascii}", pulls[a.ascii](found[a.ascii])
                    if a.role == "input":
                        g = g.reshape(*tokens.shape, -1)
                        dh, g = dh + g @ w[name].T, rows(h).T @ rows(g)
                    grads[name] = g
                dx = dx + from_h(dh)
            return grads | {"embed": np.eye(len(w["embed"]))[tokens.ravel()].T @ rows(dx)}

        return last @ w["out"], backward, carried


def train(model, text, steps, rng):
    """Adam with a warm-up and a cosine decay on windows of ``text``; prints bits a character."""
    mean, square = ({name: 0 * w for name, w in model.w.items()} for _ in "ms")
    start = time.perf_counter()
    for step in range(1, steps + 1):
        at = rng.integers(0, len(text) - LENGTH - 1, BATCH)[:, None] + np.arange(LENGTH)
        logits, backward, _ = model.forward(text[at])
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        one = np.eye(p.shape[-1], dtype=np.float32)[text[at + 1]]
        rate = 6e-3 * min(1, step / 20) * (0.02 + np.cos(np.pi / 2 * step / steps) ** 2)
        for name, g in backward((p - one) / at.size).items():
            mean[name] += 0.1 * (g - mean[name])
            square[name] += 0.02 * (g * g - square[name])
            scale = np.sqrt(square[name] / (1 - 0.98**step)) + 1e-8
            model.w[name] -= (rate * mean[name] / (1 - 0.9**step) / scale).astype(np.float32)
        if step == 1 or step % max(1, steps // 10) == 0:
            loss, seconds = -np.log2((p * one).sum(-1)).mean(), time.perf_counter() - start
            print(f"step {step:4}  {loss:.3f} bits a character  {seconds:.1f} s", flush=True)


def generate(model, prompt, rng):
    """``prompt`` and SAMPLE more tokens, one `step` each, with the logits after every one."""
    states, tokens, seen = [None] * LAYERS, list(prompt), []
    while len(tokens) < len(prompt) + SAMPLE:
        logits, _, states = model.forward(np.array([tokens[len(seen)]]), states)
        seen.append(logits[0])
        if len(seen) == len(tokens):
            p = np.exp((logits[0] - logits[0].max()) / 0.6)
            tokens.append(int(rng.choice(len(p), p=p / p.sum())))
    return np.array(tokens), np.array(seen)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spec", nargs="?", default=Path(__file__).parents[1] / "gla.la")
    parser.add_argument("--steps", type=int, default=400)
    options, rng = parser.parse_args(), np.random.default_rng(0)
    try:
        plain = [d.name for d in lacc.load(options.spec).dims.values() if str(d.size) == d.name]
        kernel = lacc.compile(options.spec, target="numpy", **dict.fromkeys(plain, DIM))
    except (lacc.LaccError, OSError) as problem:
        sys.exit(str(problem))
    if "step" in kernel.missing or len(kernel.spec.outputs) > 1:
        sys.exit(f"{options.spec}: a language model takes a causal spec with one output")
    alphabet = sorted(set(TEXT))
    text = np.array([alphabet.index(c) for c in TEXT])
    model = Model(kernel, len(alphabet), rng)
    train(model, text, options.steps, rng)
    tokens, seen = generate(model, text[2000 : 2000 + PROMPT], rng)
    print("\n" + "".join(alphabet[i] for i in tokens))
    apart = np.abs(model.forward(tokens[None, : len(seen)])[0][0] - seen).max()
    print(f"\ndecoding and one forward: logits differ by {apart:.1e}, of {np.abs(seen).max():.0f}")
