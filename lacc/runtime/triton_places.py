"""Numbers of programs in, the sequence, chunk and tokens that they work at out: device functions
that the emitted Triton kernels call.

Never imported by lacc: emitted files hold copies of what they use. Sequences are the rows of a
batch, T tokens each (``cu`` None), or stretches of one row, from token cu[n] to cu[n + 1]; then
firsts[n] is the number of the first chunk of sequence n, and table[c] the sequence of chunk c and
its place in it.
"""

import triton
import triton.language as tl


@triton.jit
def sequence_at(sequence, T, CHUNK: tl.constexpr, cu, firsts):
    """The row of a sequence, its first token, its tokens, and the number of its first chunk."""
    if cu is None:
        return sequence, sequence * 0, sequence * 0 + T, sequence * tl.cdiv(T, CHUNK)
    else:
        first = tl.load(cu + sequence)
        tokens = tl.load(cu + sequence + 1) - first
        return sequence * 0, first, tokens, tl.load(firsts + sequence).to(tl.int64)


@triton.jit
def chunk_at(chunk, T, CHUNK: tl.constexpr, table):
    """The sequence of a chunk, and the number of the chunk in it."""
    if table is None:
        each = tl.cdiv(T, CHUNK)
        return chunk // each, chunk % each
    else:
        sequence = tl.load(table + 2 * chunk).to(tl.int64)
        return sequence, tl.load(table + 2 * chunk + 1).to(tl.int64)


@triton.jit
def seen_before(position, sequence):
    """The tokens of a sequence before the first one of the call."""
    if position is None:
        return sequence * 0
    else:
        return tl.load(position + sequence)
