"""`lacc.compat.transformers`: small models of random weights, on their own functions and on kernels
of lacc: logits, gradients, generation with a cache, padding on the left."""

from __future__ import annotations

import copy
import importlib
import inspect
import types
from collections.abc import Iterator
from typing import Any

import pytest

from lacc.runtime.compiled import missing

torch = pytest.importorskip("torch")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed (the extra `hf` has it)"
)

from lacc.compat import mixers, scans  # noqa: E402
from lacc.compat.fla import kernel  # noqa: E402
from lacc.compat.rebinding import rebuilt  # noqa: E402
from lacc.compat.transformers import FUNCTIONS, LEFT, restore, use  # noqa: E402

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ATTENTION = {
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
DELTA = {
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention"],
}
SSD = {"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 2, "chunk_size": 16}
HYBRID_SSD = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 16,
}
LATENT = {
    **ATTENTION,
    "num_key_value_heads": 2,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": (
        "Qwen3Next",
        {**ATTENTION, **DELTA, **EXPERTS, "shared_expert_intermediate_size": 16},
    ),
    "mamba2": ("Mamba2", SSD),
    "mamba": ("Mamba", {"state_size": 8}),
    "falcon_mamba": ("FalconMamba", {"state_size": 8}),
    "recurrent_gemma": (
        "RecurrentGemma",
        {**ATTENTION, "lru_width": 32, "block_types": ["recurrent", "attention"]},
    ),
    "minimax": (
        "MiniMax",
        {
            **ATTENTION,
            "num_local_experts": 2,
            "block_size": 8,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    "rwkv": ("Rwkv", {"context_length": 64, "attention_hidden_size": 32}),
    "kimi_linear": (
        "KimiLinear",
        {
            **ATTENTION,
            "num_key_value_heads": 2,
            "head_dim": None,
            "linear_num_heads": 2,
            "linear_head_dim": 16,
            "moe_intermediate_size": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    "olmo_hybrid": ("OlmoHybrid", {**ATTENTION, **DELTA}),
    "qwen3_5": ("Qwen3_5", {**ATTENTION, **DELTA}),
    "xlstm": (  # the least whose cache is of the sizes of its layers
        "xLSTM",
        {
            "hidden_size": 128,
            "embedding_dim": 128,
            "num_heads": 4,
            "num_blocks": 2,
            "chunk_size": 16,
        },
    ),
    "bamba": ("Bamba", {**ATTENTION, **HYBRID_SSD, "attn_layer_indices": [1]}),
    "falcon_h1": ("FalconH1", {**ATTENTION, **HYBRID_SSD, "mamba_d_ssm": 64}),
    "granitemoehybrid": (
        "GraniteMoeHybrid",
        {
            **ATTENTION,
            **HYBRID_SSD,
            "layer_types": ["mamba", "attention"],
            "num_local_experts": 2,
            "shared_intermediate_size": 16,
        },
    ),
    "nemotron_h": (
        "NemotronH",
        {
            **ATTENTION,
            "layers_block_type": ["mamba", "attention"],
            "ssm_state_size": 8,
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "chunk_size": 16,
        },
    ),
    "zamba2": (
        "Zamba2",
        {
            **ATTENTION,
            "layers_block_type": ["mamba", "hybrid"],
            "num_key_value_heads": 2,
            "mamba_d_state": 8,
            "mamba_ngroups": 2,
            "n_mamba_heads": 4,
            "chunk_size": 16,
            "adapter_rank": 4,
        },
    ),
    "jamba": (
        "Jamba",
        {
            **ATTENTION,
            "mamba_d_state": 8,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 2,
        },
    ),
    "zamba": (
        "Zamba",
        {
            **ATTENTION,
            "num_hidden_layers": 4,
            "layers_block_type": ["mamba", "hybrid"] * 2,
            "num_key_value_heads": 2,
            "mamba_d_state": 8,
        },
    ),
    "bailing_hybrid": (
        "BailingHybrid",
        {
            **LATENT,
            "num_experts_per_tok": 2,
            "num_local_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    "lara_mini": ("LaraMini", {**ATTENTION, **DELTA, **EXPERTS}),
    "qwen4_exp": (
        "Qwen4Exp",
        {
            **ATTENTION,
            **DELTA,
            **EXPERTS,
            "indexer_n_heads": 2,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 16,
            "indexer_budget": 16,
            "indexer_compress_ratio": 4,
        },
    ),
    "qwen3_5_moe": ("Qwen3_5Moe", {**ATTENTION, **DELTA, **EXPERTS}),
    "glm5_next": (
        "Glm5Next",
        {
            "text_config": {
                **SMALL,
                **TOKENS,
                **LATENT,
                "n_routed_experts": 4,
                "num_experts_per_tok": 2,
                "q_lora_rank": 16,
                "qk_rope_head_dim": 0,
                "head_dim": 0,
                "linear_head_dim": 16,
                "linear_num_heads": 2,
                "index_head_dim": 16,
                "index_n_heads": 2,
                "index_topk": 16,
                "index_kpool": 4,
                "layer_types": ["linear_attention", "full_attention"],
            },
            "vision_config": {
                "depth": 1,
                "hidden_size": 32,
                "num_heads": 2,
                "out_hidden_size": 32,
                "intermediate_size": 32,
                "projection_intermediate_size": 32,
            },
        },
    ),
}
KNOWN = {
    "rwkv": ("RwkvConfig", "RwkvForCausalLM"),
    "qwen3_5": ("Qwen3_5TextConfig", None),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", None),
    "qwen4_exp": ("Qwen4ExpTextConfig", None),
    "glm5_next": ("Glm5NextConfig", "Glm5NextForConditionalGeneration"),
}
QUICK = ("qwen3_next", "mamba2")
PADDED = [name for name in FAMILIES if name not in ("rwkv", "xlstm")]  # which look at no mask


def marked(names: Any) -> list[Any]:
    return [pytest.param(n, marks=() if n in QUICK else (pytest.mark.full,)) for n in names]


@pytest.fixture(autouse=True)
def pytorch_functions(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Functions of transformers in PyTorch, where other packages would take their place."""
    asked = getattr(request.node, "callspec", None)
    if request.node.get_closest_marker("as_installed") is None:
        for name in [asked.params["name"]] if asked else ("mamba", "mamba2"):
            in_pytorch(name, monkeypatch)
    yield


def in_pytorch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions of a family as transformers itself has them."""
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    for word in (*FUNCTIONS, *LEFT):
        function = getattr(module, word, None)
        if function is not None:
            monkeypatch.setattr(module, word, inspect.unwrap(function))


def in_doubles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions of a family in PyTorch, with float64 where they say float32."""
    doubles = types.SimpleNamespace(**vars(torch) | {"float32": torch.float64})
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    for word in FUNCTIONS:
        if hasattr(module, word):
            function = inspect.unwrap(getattr(module, word))
            monkeypatch.setattr(module, word, rebuilt(function, {"torch": doubles}))


def small(name: str) -> Any:
    stem, options = FAMILIES[name]
    torch.manual_seed(0)
    configuration, model = KNOWN.get(name, (f"{stem}Config", None))
    config = getattr(transformers, configuration)(
        **(options if "text_config" in options else SMALL | TOKENS | options)
    )
    config._experts_implementation = "eager"  # the other one has no float64
    made = getattr(transformers, model or f"{stem}ForCausalLM")(config).eval()
    for p in made.parameters():  # biases and gates away from where they start
        p.data += 0.05 * torch.randn(p.shape)
    return made


def apart(x: Any, y: Any) -> float:
    return float((x - y).abs().max() / y.abs().max())


def run(model: Any, ids: Any, **options: Any) -> tuple[Any, list[Any]]:
    model.zero_grad()
    logits = model(input_ids=ids, **options).logits
    logits.square().mean().backward()
    return logits.detach(), [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", marked(FAMILIES))
@pytest.mark.parametrize("training", [False, True])
def test_logits_and_gradients(name: str, training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = small(name), torch.randint(3, 64, (2, 37))
    model.train(training)
    expected, slopes = run(model, ids, use_cache=False)
    asked: list[str] = []
    for module in (scans, mixers):
        monkeypatch.setattr(module, "kernel", lambda spec: asked.append(spec) or kernel(spec))
    with use(model) as report:
        found, ours = run(model, ids, use_cache=False)
    specs = {x.by.removesuffix(".la") for x in report.replaced if x.by.endswith(".la")}
    whole = {"delta_mixer"} & specs  # what the others are to it, only pieces of a text ask for
    assert set(asked) == (whole or specs)
    assert apart(found, expected) < 1e-5
    assert len(ours) == len(slopes)
    if max(map(apart, ours, slopes)) > 1e-5:  # whose error is it?
        monkeypatch.undo()
        in_doubles(name, monkeypatch)
        _, exact = run(small(name).train(training).double(), ids, use_cache=False)
        for x, y, z in zip(ours, slopes, exact):
            assert apart(x, y) < 1e-5 or apart(x, z) < 1e-5 < apart(y, z)


@pytest.mark.parametrize("name", marked(FAMILIES))
def test_generation_with_a_cache(name: str) -> None:
    model, ids = small(name), torch.randint(3, 64, (2, 21))
    asked = {
        "max_new_tokens": 6,
        "do_sample": False,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    expected = model.generate(ids, **asked)
    with use(model):
        found = model.generate(ids, **asked)
    assert torch.equal(found.sequences, expected.sequences)
    for x, y in zip(found.logits, expected.logits):
        assert apart(x, y) < 1e-5


@pytest.mark.parametrize("name", ["qwen3_next"])
def test_a_text_in_pieces_with_a_cache_is_the_whole(name: str) -> None:
    """Pieces shorter than the convolution, one token, several behind some."""
    model, ids = small(name), torch.randint(3, 64, (2, 18))
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits
        with use(model):
            for cuts in ((2, 9, 10, 18), (9, 10, 18)):
                found, past, at = [], None, 0
                for stop in cuts:
                    out = model(input_ids=ids[:, at:stop], past_key_values=past, use_cache=True)
                    found, past, at = [*found, out.logits], out.past_key_values, stop
                assert apart(torch.cat(found, 1), expected) < 1e-5


@pytest.mark.parametrize("name", marked(PADDED))
def test_padding_on_the_left(name: str) -> None:
    model, ids = small(name), torch.randint(3, 64, (2, 21))
    mask = torch.ones_like(ids)
    mask[1, :8] = 0
    other = torch.where(mask.bool(), ids, 5)
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        with use(model):
            found = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
            leaked = model(input_ids=other, attention_mask=mask, use_cache=False).logits
    assert apart(found[mask.bool()], expected[mask.bool()]) < 1e-5
    if name != "recurrent_gemma":  # where padding reaches the convolution
        assert apart(leaked[mask.bool()], found[mask.bool()]) < 1e-6


def test_one_token_goes_by_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """And writes to the cache in place; what looks at a module in between sees it called."""
    model, ids = small("qwen3_next").eval(), torch.randint(3, 64, (2, 9))
    asked: list[str] = []
    with torch.no_grad(), use(model):
        past = model(input_ids=ids, use_cache=True).past_key_values
        layer = past.layers[0]
        before = layer.recurrent_states[0].data_ptr(), layer.recurrent_states[0].clone()
        monkeypatch.setattr(mixers, "kernel", lambda spec: asked.append(spec) or kernel(spec))
        model(input_ids=ids[:, :1], past_key_values=past, use_cache=True)
        assert asked == ["delta_mixer"]
        assert layer.recurrent_states[0].data_ptr() == before[0]
        assert not torch.equal(layer.recurrent_states[0], before[1])
        seen: list[int] = []
        hook = model.model.layers[0].linear_attn.norm.register_forward_hook(
            lambda *_: seen.append(1)
        )
        model(input_ids=ids[:, :1], past_key_values=past, use_cache=True)
        assert len(asked) == 1 and len(seen) == 1
        hook.remove()
        model(input_ids=ids[:, :1], past_key_values=past, use_cache=True)
        assert len(asked) == 1  # the stepper that the cache's layer has


@pytest.mark.parametrize("name", ["qwen3_next"])
def test_a_cache_is_copied_and_reordered_between_tokens(name: str) -> None:
    """And weights change: what one token goes through is not that of another cache or weight."""
    model, ids = small(name).eval(), torch.randint(3, 64, (2, 16))
    weights = copy.deepcopy(model.state_dict())

    def run() -> list[Any]:
        model.load_state_dict(weights)
        found, past = [], model(input_ids=ids[:, :9], use_cache=True).past_key_values
        for t in range(9, 16):
            one = model(input_ids=ids[:, t : t + 1], past_key_values=past, use_cache=True)
            found.append(one.logits)
            if t == 11:
                twin = copy.deepcopy(past)
                model(input_ids=ids[:, :1], past_key_values=past, use_cache=True)
                past = twin
            if t == 12:
                past.reorder_cache(torch.tensor([1, 0]))
            if t == 13:
                mixer = model.model.layers[0].linear_attn
                for p in (mixer.A_log, mixer.conv1d.weight, mixer.norm.weight):
                    p.mul_(1.5)
        return found

    with torch.no_grad():
        expected = run()
        with use(model):
            found = run()
    for x, y in zip(found, expected):
        assert apart(x, y) < 1e-5


@pytest.mark.full
@pytest.mark.as_installed
@pytest.mark.parametrize("name", ["qwen3_next", "kimi_linear", "olmo_hybrid", "qwen3_5"])
def test_where_other_kernels_are_installed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fla-core transformers calls its kernels, which fail on a CPU; none of them is called."""
    pytest.importorskip("fla")
    model, ids = small(name), torch.randint(3, 64, (2, 21))
    with torch.no_grad(), pytest.raises(Exception, match=r"active drivers|[Tt]riton"):
        model(input_ids=ids)
    asked = {"max_new_tokens": 4, "do_sample": False}
    with use(model):
        found = model.generate(ids, **asked)
        logits, slopes = run(model, ids, use_cache=False)
    with monkeypatch.context() as plainly:
        in_pytorch(name, plainly)
        assert torch.equal(found, model.generate(ids, **asked))
        expected, wanted = run(model, ids, use_cache=False)
    assert apart(logits, expected) < 1e-5 and len(slopes) == len(wanted)


@pytest.mark.full
@pytest.mark.as_installed
@pytest.mark.parametrize("grads", [False, True])
def test_a_mixer_is_one_graph(grads: bool) -> None:
    """Of `torch.compile`: a sequence, with gradients too, and a token behind it."""
    model = small("qwen3_next")
    mixer, x = model.model.layers[0].linear_attn, torch.randn(2, 21, 32, requires_grad=grads)
    with torch.set_grad_enabled(grads), use(model):
        compiled = torch.compile(mixer, fullgraph=True, backend="aot_eager")
        y, z = compiled(x), mixer(x)
        assert apart(y, z) < 1e-6
        if grads:
            wanted = torch.autograd.grad(z.square().sum(), x)[0]
            assert apart(torch.autograd.grad(y.square().sum(), x)[0], wanted) < 1e-6
            return
        past = [transformers.DynamicCache(config=model.config) for _ in range(2)]
        for c in past:
            mixer(x[:, :9], cache=c)
        one = [f(x[:, 9:10], cache=c) for f, c in zip((compiled, mixer), past)]
        assert apart(*one) < 1e-6
        states = [c.get_recurrent_state(0) for c in past]
        assert apart(*states) < 1e-6


def test_what_it_says() -> None:
    model = small("mamba2")
    report = use(model)
    text = str(report)
    assert "mamba2_chunk_scan -> ssd.la (2 modules)" in text
    assert "causal_conv1d_update -> a sum of products (2 modules)" in text
    with pytest.raises(ValueError, match="forward is replaced on the module already"):
        use(model)
    twin = copy.deepcopy(model)
    assert vars(twin.backbone.layers[0].mixer)["forward"].__self__ is twin.backbone.layers[0].mixer
    restore(model)
    assert not any("forward" in vars(module) for module in model.modules())


def test_what_is_left() -> None:
    with use(small("mamba")) as report:
        text = str(report)
    assert "mamba_selective_state_update: PyTorch takes less time for one token" in text


def test_what_is_not_known() -> None:
    with pytest.raises(ValueError, match="nothing in Linear is known here"):
        use(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module, got str"):
        use("gpt2")  # type: ignore[arg-type]
