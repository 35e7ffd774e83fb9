"""Runtimes for inference as contestants: ONNX Runtime, OpenVINO, and ggml through ctypes."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from cpu_canonical import Roles, contestant

from lacc.bench.case import Array, Case, Unfit

INFERENCE = "forward decode"


def imported(name: str) -> Any:
    """A module. Raises Unfit where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        raise Unfit(f"not installed ({problem})") from None


def _tokens_first(roles: Roles) -> dict[str, Array]:
    found = {"q": roles.q, "k": roles.k, "v": roles.v, "g": roles.g, "b": roles.beta}
    return {n: np.ascontiguousarray(x) for n, x in found.items() if x is not None}


def onnx_linear_attention(case: Case, roles: Roles) -> Any:
    """com.microsoft.LinearAttention, whose rows are [B, T, H D]; feature map and normaliser as
    nodes around it."""
    helper, proto = imported("onnx.helper"), imported("onnx").TensorProto
    imported("onnxruntime")
    (B, T, H, K), V = roles.q.shape, roles.v.shape[-1]
    feed = {n: x.reshape(B, T, -1) for n, x in _tokens_first(roles).items()}
    feed["s"] = roles.started()
    nodes, constants = [], []
    names = {"q": "q", "k": "k"}
    if roles.phi:
        constants.append(helper.make_tensor("one", proto.FLOAT, [], [1.0]))
        for n in "qk":
            nodes.append(helper.make_node("Elu", [n], [f"{n}_elu"]))
            nodes.append(helper.make_node("Add", [f"{n}_elu", "one"], [f"{n}_phi"]))
            names[n] = f"{n}_phi"
    optional = ["g" if "g" in feed else "", "b" if "b" in feed else ""]
    nodes.append(
        helper.make_node(
            "LinearAttention",
            [names["q"], names["k"], "v", "s", *optional],
            ["sum" if roles.phi else "o", "end"],
            domain="com.microsoft",
            q_num_heads=H,
            kv_num_heads=H,
            update_rule=roles.rule,
            scale=roles.scale,
        )
    )
    if roles.phi:
        sums = np.zeros((B, H, K), np.float32) if roles.sums is None else roles.sums
        feed["z"] = sums.reshape(B, 1, H * K)
        ints = {"time": [1], "last": [3], "keys": [B, T, H, K], "values": [B, T, H, V]}
        ints["flat"] = [B, T, H * V]
        constants += [helper.make_tensor(n, proto.INT64, [len(x)], x) for n, x in ints.items()]
        for op, ins, out in (
            ("CumSum", ["k_phi", "time"], "k_sum"),
            ("Add", ["k_sum", "z"], "k_all"),
            ("Mul", ["q_phi", "k_all"], "each"),
            ("Reshape", ["each", "keys"], "each4"),
            ("ReduceSum", ["each4", "last"], "divisor"),
            ("Reshape", ["sum", "values"], "sum4"),
            ("Div", ["sum4", "divisor"], "o4"),
            ("Reshape", ["o4", "flat"], "o"),
        ):
            nodes.append(helper.make_node(op, ins, [out]))
    shapes = {"o": [B, T, H * V], "end": [B, H, K, V]}
    return _session(case, nodes, constants, feed, shapes, (B, T, H, V))


def onnx_gated_delta_net(case: Case, roles: Roles) -> Any:
    """com.microsoft.GatedDeltaNet, whose states are [V, K]."""
    helper = imported("onnx.helper")
    imported("onnxruntime")
    if roles.phi or roles.scale != roles.q.shape[-1] ** -0.5:
        raise Unfit("it has no such scale")
    (B, T, H, K), V = roles.q.shape, roles.v.shape[-1]
    feed = _tokens_first(roles) | {"s": roles.started().swapaxes(-1, -2)}
    optional = ["g" if "g" in feed else "", "b" if "b" in feed else ""]
    ins = ["q", "k", "v", "", *optional, "s"]
    node = helper.make_node(
        "GatedDeltaNet", ins, ["o", "end"], domain="com.microsoft", update_rule=roles.rule
    )
    shapes = {"o": [B, T, H, V], "end": [B, H, V, K]}
    return _session(case, [node], [], feed, shapes, (B, T, H, V))


def _session(
    case: Case,
    nodes: list[Any],
    constants: list[Any],
    feed: Mapping[str, Array],
    shapes: Mapping[str, list[int]],
    shape: tuple[int, ...],
) -> tuple[Callable[[], Any], Callable[[Any], Array]]:
    """A graph on buffers that are bound once, so that a call copies nothing."""
    helper, proto = imported("onnx.helper"), imported("onnx").TensorProto
    onnxruntime = imported("onnxruntime")
    described = [
        [helper.make_tensor_value_info(n, proto.FLOAT, s) for n, s in each.items()]
        for each in ({n: x.shape for n, x in feed.items()}, shapes)
    ]
    graph = helper.make_graph(nodes, "peer", *described, constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = case.threads, 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    value = onnxruntime.OrtValue.ortvalue_from_numpy
    bound = session.io_binding()
    given = {n: value(np.ascontiguousarray(x)) for n, x in feed.items()}
    made = {n: value(np.zeros(s, np.float32)) for n, s in shapes.items()}
    for n, x in given.items():
        bound.bind_ortvalue_input(n, x)
    for n, x in made.items():
        bound.bind_ortvalue_output(n, x)

    def call() -> Any:
        session.run_with_iobinding(bound)
        return made["o"], given

    return call, lambda found: found[0].numpy().reshape(shape)


def openvino_gated_delta_net(case: Case, roles: Roles) -> Any:
    """OpenVINO's internal operation, which only a model as text can name."""
    openvino = imported("openvino")
    if roles.rule != "gated_delta" or roles.g is None or roles.g.ndim != 3 or roles.phi:
        raise Unfit("it has the gated delta rule with a gate a head only")
    core = openvino.Core()
    core.get_property("CPU", "FULL_DEVICE_NAME")  # loads the plugin, which knows the operation
    x = _tokens_first(roles)
    feed = [x["q"], x["k"], x["v"], roles.started(), x["g"], x["b"]]
    model = core.read_model(_described([a.shape for a in feed]).encode(), b"")
    compiled = core.compile_model(
        model,
        "CPU",
        {
            "INFERENCE_NUM_THREADS": case.threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",
        },
    )
    request = compiled.create_infer_request()
    feed = [np.ascontiguousarray(a) for a in feed]  # the tensors only borrow them
    for n, a in enumerate(feed):
        request.set_input_tensor(n, openvino.Tensor(a, shared_memory=True))

    def call() -> Any:
        request.start_async()
        request.wait()
        return request.get_output_tensor(0), feed

    return call, lambda found: np.array(found[0].data)


def _described(shapes: list[tuple[int, ...]]) -> str:
    """A model of one operation in OpenVINO's XML."""

    def port(number: int, shape: tuple[int, ...]) -> str:
        dims = "".join(f"<dim>{d}</dim>" for d in shape)
        return f'<port id="{number}" precision="FP32">{dims}</port>'

    layers, edges = [], []
    for n, shape in enumerate(shapes):
        size = ",".join(map(str, shape))
        layers.append(
            f'<layer id="{n}" name="x{n}" type="Parameter" version="opset1"><data shape="{size}" '
            f'element_type="f32"/><output>{port(0, shape)}</output></layer>'
        )
        edges.append(f'<edge from-layer="{n}" from-port="0" to-layer="6" to-port="{n}"/>')
    ins = "".join(port(n, shape) for n, shape in enumerate(shapes))
    outs = [(6, shapes[2]), (7, shapes[3])]
    layers.append(
        '<layer id="6" name="peer" type="GatedDeltaNet" version="extension"><data/>'
        f"<input>{ins}</input><output>{''.join(port(*out) for out in outs)}</output></layer>"
    )
    for n, (number, shape) in enumerate(outs, 7):
        layers.append(
            f'<layer id="{n}" name="y{n}" type="Result" version="opset1">'
            f"<input>{port(0, shape)}</input></layer>"
        )
        edges.append(f'<edge from-layer="6" from-port="{number}" to-layer="{n}" to-port="0"/>')
    body = f"<layers>{''.join(layers)}</layers><edges>{''.join(edges)}</edges>"
    return f'<?xml version="1.0"?><net name="peer" version="11">{body}</net>'


class _Begin(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("none", ctypes.c_bool))


class _Plan(ctypes.Structure):
    _fields_ = (
        ("work_size", ctypes.c_size_t),
        ("work_data", ctypes.c_void_p),
        ("threads", ctypes.c_int),
        ("pool", ctypes.c_void_p),
        ("abort", ctypes.c_void_p),
        ("abort_data", ctypes.c_void_p),
        ("plain", ctypes.c_bool),
    )


POINTER, COUNT = ctypes.c_void_p, ctypes.c_int64
SIGNATURES: dict[str, tuple[list[Any], Any]] = {
    "ggml_init": ([_Begin], POINTER),
    "ggml_free": ([POINTER], None),
    "ggml_get_data": ([POINTER], POINTER),
    "ggml_new_tensor_4d": ([POINTER, ctypes.c_int, *[COUNT] * 4], POINTER),
    "ggml_new_graph": ([POINTER], POINTER),
    "ggml_build_forward_expand": ([POINTER, POINTER], None),
    "ggml_gated_linear_attn": ([POINTER] * 6 + [ctypes.c_float], POINTER),
    "ggml_rwkv_wkv6": ([POINTER] * 7, POINTER),
    "ggml_rwkv_wkv7": ([POINTER] * 8, POINTER),
    "ggml_gated_delta_net": ([POINTER] * 7 + [COUNT], POINTER),
    "ggml_ssm_scan": ([POINTER] * 8 + [COUNT], POINTER),
}


@cache
def _ggml() -> tuple[Any, Any]:
    """The libraries of the package libggml-python: the one that builds graphs, the one that runs
    them."""
    spec = importlib.util.find_spec("libggml")
    if spec is None or spec.origin is None:
        raise Unfit("not installed (libggml-python)")
    folder = next(Path(spec.origin).parent.rglob("libggml-base.so")).parent
    base = ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
    run = ctypes.CDLL(str(folder / "libggml-cpu.so"))
    for name, (arguments, result) in SIGNATURES.items():
        if hasattr(base, name):
            getattr(base, name).argtypes, getattr(base, name).restype = arguments, result
    run.ggml_graph_plan.argtypes = [POINTER, ctypes.c_int, POINTER]
    run.ggml_graph_plan.restype = _Plan
    run.ggml_graph_compute.argtypes = [POINTER, ctypes.POINTER(_Plan)]
    run.ggml_cpu_init()
    return base, run


def _graph(
    case: Case, op: str, arrays: list[Array], shape: tuple[int, ...], *more: Any
) -> tuple[Callable[[], Any], Callable[[Any], Array]]:
    """One operation of ggml on copies of arrays; its result begins with the output."""
    base, run = _ggml()
    if not hasattr(base, op):
        raise Unfit(f"this libggml has no {op}")
    size = 3 * sum(x.nbytes for x in arrays) + 4 * int(np.prod(shape)) * 2 + (64 << 20)
    context = base.ggml_init(_Begin(size, None, False))

    def put(x: Array) -> Any:
        kind = {"float32": 0, "int32": 26}[x.dtype.name]
        dims = (*x.shape[::-1], 1, 1, 1, 1)[:4]
        made = base.ggml_new_tensor_4d(context, kind, *dims)
        x = np.ascontiguousarray(x)
        ctypes.memmove(base.ggml_get_data(made), x.ctypes.data, x.nbytes)
        return made

    node = getattr(base, op)(context, *(put(x) for x in arrays), *more)
    graph = base.ggml_new_graph(context)
    base.ggml_build_forward_expand(graph, node)
    plan = run.ggml_graph_plan(graph, case.threads, None)
    work = ctypes.create_string_buffer(plan.work_size + 64)
    plan.work_data = (ctypes.addressof(work) + 63) & ~63

    def call() -> Any:
        if run.ggml_graph_compute(graph, ctypes.byref(plan)):
            raise RuntimeError("ggml_graph_compute failed")
        return work

    def out(_: Any) -> Array:
        count = int(np.prod(shape))
        kept = (ctypes.c_float * count).from_address(base.ggml_get_data(node))
        return np.frombuffer(kept, np.float32).reshape(shape).copy()

    return call, out


def ggml(case: Case, roles: Roles) -> Any:
    """The operation of llama.cpp for a recurrence, one token after another."""
    (B, T, H, K), V = roles.q.shape, roles.v.shape[-1]
    if case.spec.ascii == "mamba1":
        return _ggml_scan(case, roles)
    if B != 1 or roles.phi:
        raise Unfit("it has no such update")
    shape, state = (B, T, H, V), roles.started()
    q, k, v = roles.q, roles.k, roles.v
    if roles.a is not None and roles.b is not None and roles.g is not None:
        arrays = [q[0], np.exp(roles.g[0]), k[0], v[0], roles.a[0], roles.b[0]]
        flat = state.swapaxes(-1, -2).reshape(1, -1)
        return _graph(case, "ggml_rwkv_wkv7", [*arrays, flat], shape)
    if K != V:
        raise Unfit("it needs K = V")
    if roles.u is not None and roles.g is not None:
        arrays = [k[0], v[0], q[0], roles.u, np.exp(roles.g[0]), state.reshape(1, -1)]
        return _graph(case, "ggml_rwkv_wkv6", arrays, shape)
    if roles.beta is not None:
        if roles.g is None:
            raise Unfit("it has no delta rule without a gate")
        g = roles.g if roles.g.ndim == 4 else roles.g[..., None]
        arrays = [q, k, v, g, roles.beta[..., None], state.swapaxes(-1, -2)]
        return _graph(case, "ggml_gated_delta_net", arrays, shape, 1)
    g = np.zeros(q.shape[:3], np.float32) if roles.g is None else roles.g
    decay = np.broadcast_to(np.exp(g if g.ndim == 4 else g[..., None]), k.shape)
    arrays = [k[0], v[0], q[0], decay[0], state.reshape(1, -1)]
    return _graph(case, "ggml_gated_linear_attn", arrays, shape, roles.scale)


def _ggml_scan(case: Case, roles: Roles) -> Any:
    """ssm_scan as llama.cpp calls it for Mamba-1: every channel is a head of one."""
    x = roles.raw
    assert x is not None
    B, T, H, D = x["x"].shape
    N = x["B"].shape[-1]
    if H != 1:
        raise Unfit("it shares B and C among all channels: one head here")
    state = np.zeros((B, D, 1, N), np.float32)
    if roles.state is not None:
        state = roles.state.reshape(B, D, 1, N)
    raw = (x["dt"] + x["dt_bias"])[:, :, 0]
    arrays = [
        state,
        x["x"].reshape(B, T, D, 1),
        raw.reshape(B, T, D),
        x["A"][0],
        x["B"],
        x["C"],
        np.zeros(B, np.int32),
    ]
    call, out = _graph(case, "ggml_ssm_scan", arrays, (B, T, 1, D), 1)
    gate = x["z"] / (1 + np.exp(-x["z"]))
    return call, lambda found: (out(found) + x["skip"] * x["x"]) * gate


PEERS = [
    contestant("onnxruntime LinearAttention", onnx_linear_attention, INFERENCE),
    contestant("onnxruntime GatedDeltaNet", onnx_gated_delta_net, INFERENCE),
    contestant("openvino GatedDeltaNet", openvino_gated_delta_net, INFERENCE),
    contestant("ggml", ggml, INFERENCE),
]
