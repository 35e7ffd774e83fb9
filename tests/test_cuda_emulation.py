"""The emulation of CUDA: what instructions compute, and that mistakes show."""

from __future__ import annotations

import shutil
from typing import Any

import emulated
import numpy as np
import pytest

KERNELS = """
KERNEL(matrices, if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    float *rows = (float *)shared_memory();
    for (int i = lane; i < 128; i += 32) rows[i] = p[1][i];
    warp_barrier();
    uint32_t out[4];
    load_matrices(out, rows + 4 * (31 - lane));
    for (int i = 0; i < 4; i++) p[0][i * 32 + lane] = float_of(out[i]); })
KERNEL(shuffles, if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    p[0][lane] = across(p[1][lane], n[0]);
    const double other = across(p[1][lane] + 1e-12, n[0]);
    p[0][32 + lane] = (float)(other * 1e12 - p[1][lane ^ n[0]] * 1e12); })
#define MULTIPLIED(name, per, pack) KERNEL(name, if (threadIdx.x < 32) { \\
    const int lane = threadIdx.x, g = lane / 4, k = lane % 4 * per, K = 8 * per; \\
    float c[4]; \\
    uint32_t a[4], b[2]; \\
    for (int i = 0; i < 4; i++) { \\
        const float *at = p[1] + (g + i % 2 * 8) * K + k + i / 2 * 4 * per; \\
        a[i] = pack(at[0], at[per - 1]); \\
        c[i] = p[3][(g + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2]; \\
    } \\
    for (int i = 0; i < 2; i++) { \\
        const float *at = p[2] + (k + i * 4 * per) * 8 + g; \\
        b[i] = pack(at[0], at[(per - 1) * 8]); \\
    } \\
    name(c, a, b[0], b[1]); \\
    for (int i = 0; i < 4; i++) p[0][(g + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = c[i]; })
#define FIRST(x, y) tf32_of(x)
MULTIPLIED(multiply_bf16, 2, pair_bf16)
MULTIPLIED(multiply_fp16, 2, pair_fp16)
MULTIPLIED(multiply_tf32, 1, FIRST)
KERNEL(rounding, for (int i = threadIdx.x; i < n[0]; i += THREADS) {
    const float x = p[1][i];
    p[0][i] = float_of(pair_bf16(x, 0) << 16);
    p[0][n[0] + i] = from_fp16((uint16_t)(pair_fp16(0, x) >> 16));
    p[0][2 * n[0] + i] = float_of(tf32_of(x)); })
KERNEL(copied, {
    float *at = (float *)shared_memory() + threadIdx.x * 4;
    for (int i = 0; i < 4; i++) at[i] = 1;
    copy_later<16>(at, p[1] + threadIdx.x * 4);
    end_group();
    p[0][threadIdx.x] = at[0];
    float *other = at + 4 * THREADS;
    copy_later<4>(other, p[1] + 4 * THREADS);
    end_group();
    wait_groups<1>();
    p[0][THREADS + threadIdx.x] = at[0] + at[2];
    p[0][2 * THREADS + threadIdx.x] = other[0];
    wait_groups<0>();
    p[0][3 * THREADS + threadIdx.x] = other[0]; })
KERNEL(reversed, float *all = (float *)shared_memory();
    p[0][THREADS + threadIdx.x] = all[threadIdx.x];
    all[threadIdx.x] = p[1][threadIdx.x];
    barrier();
    p[0][threadIdx.x] = all[THREADS - 1 - threadIdx.x];)
KERNEL(numbered, if (threadIdx.x == 0) {
    p[0][blockIdx.x] = float(blockIdx.x + 100 * gridDim.x + 10000 * (blockDim.x == THREADS));
    p[1][0] = float(threadIdx.x); } else p[1][0] = float(threadIdx.x);)
KERNEL(ended, if (threadIdx.x < 5) return; barrier();)
KERNEL(parted, if (threadIdx.x < 64) one_barrier(); else other_barrier();)
KERNEL(alone, if (threadIdx.x != 3) across(1.0f, 1);)
KERNEL(unlike, uint32_t out[4];
    if (threadIdx.x < 3) across(1.0f, 1); else load_matrices(out, shared_memory());)
KERNEL(waiting, if (threadIdx.x == 40) barrier(); else if (threadIdx.x / 32 == 1) across(1.0f, 1);)
KERNEL(beyond, uint32_t out[4]; load_matrices(out, shared_memory() + 16 * threadIdx.x + n[0]);)
KERNEL(behind, ((float *)shared_memory())[n[0]] = 1;)
KERNEL(far_copy, copy_later<16>(shared_memory() + n[0], p[0]);)
KERNEL(shifted, float *all = (float *)shared_memory();
    all[threadIdx.x] = p[1][threadIdx.x];
    if (n[0]) barrier();
    p[0][threadIdx.x] = all[(threadIdx.x + n[1]) % THREADS];
    if (n[2]) barrier();
    all[threadIdx.x] = 0;)
KERNEL(warps, float *all = (float *)shared_memory();
    all[threadIdx.x] = p[1][threadIdx.x];
    if (n[0]) warp_barrier();
    p[0][threadIdx.x] = across(all[(threadIdx.x + n[1]) % THREADS], 1);)
KERNEL(outputs, p[0][threadIdx.x / n[0] + n[1] * blockIdx.x] = 1;)
KERNEL(inputs, p[0][blockIdx.x * THREADS + threadIdx.x] = p[1][threadIdx.x / n[0]];)
KERNEL(halves, ((uint16_t *)p[0])[threadIdx.x] = (uint16_t)threadIdx.x;)
KERNEL(outside, p[0][threadIdx.x] = p[1][threadIdx.x + n[0]];)
KERNEL(beside, ((float *)shared_memory())[n[0] + threadIdx.x] = 1;)
KERNEL(stirred, float *all = (float *)shared_memory();
    all[threadIdx.x] = 1;
    one_barrier();
    all[threadIdx.x ^ n[0]] = 2;
    other_barrier();
    all[threadIdx.x ^ n[1]] = 3;)
KERNEL(sent, unsigned char *at = shared_memory() + 16 * threadIdx.x;
    copy_later<16>(at, p[1] + 4 * threadIdx.x);
    end_group();
    if (n[0] == 1) barrier();
    if (n[0] == 2) wait_groups<0>();
    if (n[0] == 3) { wait_groups<0>(); barrier(); }
    const int other = (threadIdx.x + n[1]) % THREADS;
    p[0][threadIdx.x] = ((float *)shared_memory())[4 * other];)
KERNEL(loaded, chunks(shared_memory() + 16 * (threadIdx.x ^ n[0]), n[1]);)
"""
HELPERS = """
INLINE void one_barrier() {
    barrier();
}
INLINE void other_barrier() {
    barrier();
}
INLINE void chunks(unsigned char *at, int64_t waits) {
    *(float *)at = 1;
    if (waits) warp_barrier();
    uint32_t out[4];
    load_matrices(out, shared_memory() + 16 * threadIdx.x);
}
"""
SOURCE = emulated.source(HELPERS + KERNELS, ("primitives",))


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> emulated.Emulated:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    return emulated.built(tmp_path_factory.mktemp("emulation"), SOURCE, {"THREADS": 128}, ())


@pytest.fixture(scope="module")
def watched(machine: emulated.Emulated, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same, which finds races."""
    return emulated.built(tmp_path_factory.mktemp("watched"), SOURCE, {"THREADS": 128})


@pytest.fixture(params=list(emulated.ORDERS), autouse=True)
def order(request: pytest.FixtureRequest, machine: emulated.Emulated) -> Any:
    machine.order(request.param)
    return request.param


def empty(*shape: int) -> Any:
    return np.full(shape, -1, np.float32)


def numbers(*shape: int) -> Any:
    """Numbers of few digits, whose products and sums are exact in every type."""
    return np.random.default_rng(0).integers(-8, 9, shape).astype(np.float32)


def test_matrices_come_as_words_of_rows(machine: emulated.Emulated) -> None:
    given, out = np.arange(128, dtype=np.float32), empty(4, 8, 4)
    machine("matrices", [out, given])
    np.testing.assert_array_equal(out, given.reshape(32, 4)[::-1].reshape(4, 8, 4))


def test_shuffles(machine: emulated.Emulated) -> None:
    given, out = np.arange(32, dtype=np.float32), empty(2, 32)
    for mask in (1, 5, 16):
        machine("shuffles", [out, given], [mask])
        np.testing.assert_array_equal(out[0], given[np.arange(32) ^ mask])
        np.testing.assert_allclose(out[1], 1, rtol=0.1)  # digits that a float has not


@pytest.mark.parametrize(("name", "K"), [("bf16", 16), ("fp16", 16), ("tf32", 8)])
def test_products_of_a_warp(machine: emulated.Emulated, name: str, K: int) -> None:
    a, b, c, out = numbers(16, K), numbers(K, 8), numbers(16, 8), empty(16, 8)
    machine(f"multiply_{name}", [out, a, b, c])
    np.testing.assert_array_equal(out, a @ b + c)


def test_rounding_is_to_the_nearest(machine: emulated.Emulated) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(0)
    x = rng.standard_normal(500) * 10.0 ** rng.integers(-9, 6, 500)
    ties = [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 2.0**-25, 3 * 2.0**-25]
    ends = [0.0, -0.0, np.inf, -np.inf, 65519.0, 65520.0, 3.4e38, -3.4e38, 2.0**-140]
    x = np.array([*x, *ties, *ends], np.float32)
    out = empty(3, len(x))
    machine("rounding", [out, x], [len(x)])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(out[0], x.astype(ml_dtypes.bfloat16).astype(np.float32))
        np.testing.assert_array_equal(out[1], x.astype(np.float16).astype(np.float32))
    kept, finite = out[2], np.isfinite(out[2])
    assert (kept[finite].view(np.uint32) & 0x1FFF == 0).all()
    assert (np.abs(kept[finite] - x[finite]) <= np.abs(x[finite]) * 2.0**-11 + 2.0**-136).all()
    assert np.isfinite(x[~finite]).sum() <= 2
    machine("rounding", [out, np.full_like(x, np.nan)], [len(x)])
    assert np.isnan(out).all()


def test_copies_arrive_when_they_are_waited_for(machine: emulated.Emulated) -> None:
    given, out = np.arange(4 * 128 + 1, dtype=np.float32), empty(4, 128)
    machine("copied", [out, given])
    assert np.isnan(out[0]).all()
    np.testing.assert_array_equal(out[1], given[:-1:4] + given[2:-1:4])
    assert np.isnan(out[2]).all()
    assert (out[3] == given[-1]).all()


def test_shared_memory_is_poisoned(machine: emulated.Emulated) -> None:
    given, out = numbers(128), empty(2, 128)
    machine("reversed", [out, given])
    np.testing.assert_array_equal(out[0], given[::-1])
    assert np.isnan(out[1]).all()


def test_a_barrier_that_is_left_out_shows(machine: emulated.Emulated) -> None:
    given, out = numbers(128), empty(2, 128)
    caught = []
    for line in emulated.barriers(SOURCE):
        machine.library.emulation_skip(line)
        machine.launch("reversed", [out, given])
        caught += [line] * (not np.array_equal(out[0], given[::-1]))
    machine.library.emulation_skip(-1)
    assert len(caught) == 1


def test_blocks_and_the_order_of_threads(machine: emulated.Emulated, order: str) -> None:
    out, last = empty(3), empty(1)
    assert machine.launch("numbered", [out, last], blocks=3) == 0
    np.testing.assert_array_equal(out, [10300, 10301, 10302])
    assert order == "shuffled" or last[0] == {"ascending": 127, "descending": 0}[order]


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        ("ended", [], "but thread"),
        ("parted", [], "different barriers"),
        ("alone", [], "waits in vain"),
        ("unlike", [], "different instructions"),
        ("waiting", [], "waits in vain"),
        ("beyond", [24576 - 15 * 16], "outside"),
        ("beyond", [-16], "outside"),
        ("beyond", [4], "no multiple of 16"),
        ("behind", [24576 // 4], "written behind"),
        ("behind", [-1], "written before"),
        ("far_copy", [24576], "outside"),
    ],
)
def test_mistakes_end_a_launch(
    machine: emulated.Emulated, name: str, numbers: list[int], message: str
) -> None:
    out = empty(128)
    assert machine.launch(name, [out], numbers) == 719
    assert message in machine.message
    machine("numbered", [out, out[4:]])


def test_sizes_that_no_device_has(machine: emulated.Emulated) -> None:
    assert machine.launch("numbered", [empty(1), empty(1)], blocks=0) == 1
    machine.shared, kept = 232449, machine.shared
    assert machine.launch("numbered", [empty(1), empty(1)]) == 1
    machine.shared = kept


# ---- races

RACES: list[tuple[str, list[int], str]] = [
    ("shifted", [1, 1, 1], ""),
    ("shifted", [0, 0, 0], ""),  # each its own
    ("shifted", [0, 1, 1], "no barrier"),
    ("shifted", [1, 1, 0], "no barrier"),
    ("shifted", [1, 0, 0], ""),
    ("warps", [1, 0], ""),
    ("warps", [0, 0], ""),
    ("warps", [0, 1], "no barrier"),  # a shuffle orders nothing in memory
    ("warps", [1, 1], "no barrier"),  # the next warp's
    ("outputs", [1, 128], ""),
    ("outputs", [2, 128], "no barrier"),
    ("outputs", [1, 64], "of block"),
    ("inputs", [3], ""),
    ("halves", [], "of block"),
    ("sent", [3, 1], ""),
    ("sent", [2, 0], ""),
    ("sent", [2, 1], "no barrier"),
    ("sent", [1, 0], "not waited for"),
    ("sent", [1, 1], "not waited for"),
    ("sent", [0, 0], "not waited for"),
    ("loaded", [0, 1], ""),
    ("loaded", [0, 0], "no barrier"),
    ("loaded", [1, 1], ""),
    ("loaded", [32, 1], "no barrier"),
]


@pytest.mark.parametrize(("name", "numbers", "message"), RACES)
def test_races(watched: emulated.Emulated, name: str, numbers: list[int], message: str) -> None:
    """In every order of threads, whether or not the numbers differ."""
    blocks = 2 if name in ("outputs", "inputs", "halves") else 1
    error = watched.launch(name, [empty(512), empty(512)], numbers, blocks)
    assert error == (719 if message else 0), watched.message
    assert message in watched.message


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        ("outside", [384], ""),
        ("outside", [385], "reads 4 bytes of global memory, 0 bytes behind the end of p[1], at "),
        ("outside", [-1], "reads 4 bytes of global memory, 4 bytes before p[1], at "),
        ("beside", [24576 // 4 - 127], "writes 4 bytes of global memory, "),
    ],
)
def test_memory_outside_of_all_arrays_is_not_touched(
    watched: emulated.Emulated, name: str, numbers: list[int], message: str
) -> None:
    error = watched.launch(name, [empty(128), empty(512)], numbers)
    assert error == (719 if message else 0)
    assert message in watched.message


def test_launches_follow_each_other(watched: emulated.Emulated) -> None:
    out = empty(256)
    for _ in range(3):
        watched("outputs", [out], [1, 128])
    watched("halves", [out])


@pytest.mark.parametrize(
    ("numbers", "needed"), [((0, 0), ()), ((1, 0), (0, 1)), ((1, 1), (0,)), ((0, 32), (1,))]
)
def test_barriers_that_alone_order_accesses_are_known(
    watched: emulated.Emulated, numbers: list[int], needed: tuple[int, ...]
) -> None:
    """And without these alone there are races."""
    lines = [n for n in emulated.barriers(SOURCE) if SOURCE.splitlines()[n - 1] == "    barrier();"]
    known = watched.needed()
    known[:] = [False] * len(known)
    watched("stirred", [], numbers)
    assert [n for n, alone in enumerate(known) if alone] == [lines[k] for k in needed]
    for k, line in enumerate(lines):
        watched.library.emulation_skip(line)
        assert (watched.launch("stirred", [], numbers) == 0) == (k not in needed)
    watched.library.emulation_skip(-1)
