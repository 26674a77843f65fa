"""Hugging Face models end to end: tiny random ones from the released transformers, and stand-ins of
Ouro's and Huginn's shape. `make test-slow` runs these."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from blindspot.audit import Settings, audit
from blindspot.audit.command import run
from blindspot.audit.options import Options
from blindspot.errors import BlindspotError

pytestmark = pytest.mark.extra
transformers = pytest.importorskip("transformers")

from blindspot.audit import hub  # noqa: E402

V = 60
SETTINGS = Settings(tokens=96, length=24, powers=(-1, 1), beyond=2)


def stream(n=300):
    return np.random.default_rng(1).integers(V, size=n)


def alive(model):
    """Random weights of a size at which layers do something; without this some start at zero."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1 or "query" in name:
                p.copy_(torch.randn(p.shape, generator=generator) * p.shape[-1] ** -0.5)
    return model.eval().requires_grad_(False)


def dory(loops=3):
    config = transformers.DoryConfig(
        vocab_size=V,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        n_input_layers=1,
        n_recurrent_layers=2,
        n_output_layers=1,
        n_recurrent_loops=loops,
        sliding_window=8,
    )
    return alive(transformers.DoryForCausalLM(config))


def hrm_text(loops=3):
    config = transformers.HrmTextConfig(
        vocab_size=V,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        head_dim=8,
        H_cycles=loops,
        L_cycles=2,
    )
    return alive(transformers.HrmTextForCausalLM(config))


def inkling(loops=3):
    from transformers.models.inkling2_loop import configuration_inkling2_loop as configuration
    from transformers.models.inkling2_loop import modeling_inkling2_loop as modeling

    config = configuration.Inkling2LoopTextConfig(
        vocab_size=V + 4,
        unpadded_vocab_size=V,
        hidden_size=32,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        swa_num_attention_heads=4,
        swa_num_key_value_heads=2,
        swa_head_dim=8,
        sliding_window_size=8,
        d_rel=4,
        rel_extent=16,
        moe_intermediate_size=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_layers_per_attn_res_block=2,
        loop_layer_index_start=2,
        loop_layer_index_end=6,
        loop_num_passes=loops,
        loop_gate_rank=4,
        eos_token_id=None,
    )
    return alive(modeling.Inkling2LoopForCausalLM(config))


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(width))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight, 1e-6)


class Layer(nn.Module):
    """Pre-norm: a causal mean of the past, and an MLP."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.mix, self.out = (
            Norm(width),
            nn.Linear(width, width),
            nn.Linear(width, width),
        )

    def forward(self, x):
        y = self.norm(x)
        past = y.cumsum(1) / torch.arange(1, y.shape[1] + 1)[:, None]
        return x + self.out(F.silu(self.mix(y + past)))


class OuroInner(nn.Module):
    def __init__(self, width, loops):
        super().__init__()
        self.embed_tokens = nn.Embedding(V, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.norm, self.total_ut_steps = Norm(width), loops


class Ouro(nn.Module):
    """A stand-in of Ouro's shape: its hidden states are a list from behind the norm."""

    def __init__(self, width=24, loops=3):
        super().__init__()
        self.config = SimpleNamespace(model_type="mine", max_position_embeddings=64)
        self.model, self.lm_head = OuroInner(width, loops), nn.Linear(width, V, bias=False)

    def get_input_embeddings(self):
        return self.model.embed_tokens

    def forward(self, input_ids=None, inputs_embeds=None, use_cache=None):
        assert use_cache is False
        x = self.model.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        states = []
        for _ in range(self.model.total_ut_steps):
            for layer in self.model.layers:
                x = layer(x)
            x = self.model.norm(x)
            states.append(x)
        return SimpleNamespace(logits=self.lm_head(x), hidden_states=states)


class Huginn(nn.Module):
    """A stand-in of Huginn's shape: its initial state is random."""

    def __init__(self, width=24, loops=3):
        super().__init__()
        self.config = SimpleNamespace(model_type="mine", mean_recurrence=loops, block_size=64)
        self.wte, self.ln_f = nn.Embedding(V, width), Norm(width)
        self.adapter, self.core = nn.Linear(2 * width, width), Layer(width)
        self.after, self.coda = Norm(width), Layer(width)
        self.lm_head = nn.Linear(width, V, bias=False)

    def embed_inputs(self, ids):
        return self.wte(ids), torch.tensor(0)

    def initialize_state(self, prelude):
        return torch.randn_like(prelude)

    def iterate_one_step(self, prelude, state, block_idx=None, current_step=0):
        block_idx += 1
        x = self.after(self.core(self.adapter(torch.cat([state, prelude], -1))))
        return x, block_idx, current_step + 1

    def predict_from_latents(self, latents):
        return SimpleNamespace(logits=self.lm_head(self.ln_f(self.coda(self.ln_f(latents)))))

    def forward(self, input_ids, input_states=None, num_steps=None, use_cache=None):
        prelude, block = self.embed_inputs(input_ids)
        x = self.initialize_state(prelude) if input_states is None else input_states
        for step in range(int(num_steps[0])):
            x, block, _ = self.iterate_one_step(prelude, x, block, step)
        return self.predict_from_latents(x)


def stand_in(kind, **more):
    torch.manual_seed(3)
    return kind(**more).eval().requires_grad_(False)


MODELS = {
    "dory": dory,
    "hrm_text": hrm_text,
    "inkling2_loop": inkling,
    "ouro": lambda loops=3: stand_in(Ouro, loops=loops),
    "huginn": lambda loops=3: stand_in(Huginn, loops=loops),
}
#: Visible, carried at the boundaries between loops.
KNOWN = {
    "dory": (None, "no"),
    "hrm_text": (True, "no"),
    "inkling2_loop": (None, "no"),
    "ouro": (False, "no"),
    "huginn": (False, None),
}


@pytest.mark.parametrize("kind", MODELS)
def test_the_four_functions_are_the_model(kind):
    """Stepped exits equal those of the model with its own number of loops set, at every depth."""
    ids = torch.from_numpy(stream(48).reshape(2, 24))
    model = MODELS[kind]()
    looped = hub.adapt(kind, model)
    assert looped.loops == 3
    context, state = looped.init(ids)
    for k in range(1, 5):
        state = looped.loop(context, state, k)
        whole = hub.adapt(kind, model, loops=k).whole(ids)
        assert whole.shape == (2, 24, V)
        assert torch.allclose(looped.read(context, state, k), whole, atol=2e-5), k
    assert looped.scale(state, 2.0) is not state
    assert hub.adapt(kind, model).loops == 3  # counts that were set for a moment are back


@pytest.mark.parametrize("kind", MODELS)
def test_an_audit_end_to_end(kind):
    report, _ = audit(hub.adapt(kind, MODELS[kind]()), stream(), SETTINGS)
    visible, carried = KNOWN[kind]
    assert [b.k for b in report.boundaries] == [1, 2]
    for boundary in report.boundaries:
        assert visible is None or boundary.visible is visible
        assert carried is None or boundary.carried == carried
    assert len(report.depths) == 6
    assert report.model.parameters == sum(p.numel() for p in MODELS[kind]().parameters())


def test_ouros_states_are_those_before_the_norm():
    model = stand_in(Ouro)
    ids = torch.from_numpy(stream(24)[None])
    seen = []
    with model.model.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0])):
        normed = model(input_ids=ids, use_cache=False).hidden_states
    looped = hub.adapt("ouro", model)
    context, state = looped.init(ids)
    assert len(seen) == 3
    for k, (before, after) in enumerate(zip(seen, normed, strict=True), start=1):
        state = looped.loop(context, state, k)
        assert torch.allclose(state, before, atol=1e-5)
        assert not torch.allclose(state, after, atol=1e-2)


def test_a_hook_that_sees_another_number_of_loops():
    class Deaf(Ouro):
        def forward(self, input_ids=None, inputs_embeds=None, use_cache=None):
            self.model.total_ut_steps = 3
            return super().forward(input_ids, inputs_embeds, use_cache)

    with pytest.raises(BlindspotError, match="asked for 1 loops, and its norm was reached 3"):
        audit(hub.adapt("deaf", stand_in(Deaf)), stream(), SETTINGS)


def test_huginns_state_is_drawn_once_and_leaves_the_generator_alone():
    looped = hub.adapt("huginn", stand_in(Huginn))
    ids = torch.from_numpy(stream(48).reshape(2, 24))
    torch.manual_seed(1)
    a = looped.init(ids)[1]
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(1))
    assert torch.equal(a, looped.init(ids)[1])
    assert torch.equal(a[0], looped.init(ids[1:])[1][0])


def test_scaling_the_normed_state_would_be_another_intervention():
    """Ouro's list of hidden states is from behind the norm: its scale is visible, ours is not."""
    model = stand_in(Ouro)
    ids = torch.from_numpy(stream(24)[None])
    normed = model(input_ids=ids, use_cache=False).hidden_states[0]
    assert not torch.allclose(model.lm_head(2 * normed), model.lm_head(normed), atol=1e-2)
    looped = hub.adapt("ouro", model)
    context, state = looped.init(ids)
    state = looped.loop(context, state, 1)
    assert torch.allclose(
        looped.read(context, 2 * state, 1), looped.read(context, state, 1), atol=1e-5
    )


# --- folders ---------------------------------------------------------------------------------


def saved(model, folder, words=None):
    """A folder with a tokenizer of single letters."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    model.save_pretrained(folder)
    letters = words or [chr(97 + i) for i in range(26)]
    vocabulary = {"<unk>": 0} | {letter: i + 1 for i, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    fast.save_pretrained(folder)
    return folder


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the state of a loop is what it hands to the next " * 8)
    return path


def test_a_model_folder(tmp_path, text):
    folder = saved(hrm_text(), tmp_path / "My-HRM")
    options = Options(text=text, device="cpu")
    out = run(str(folder), options, Settings.quick(), tmp_path / "audit")
    report = json.loads((out / "audit.json").read_text())
    assert out.name == "My-HRM"
    assert report["model"]["loops"] == 3
    assert report["verdict"]["visible_at"] == [1, 2]
    assert report["verdict"]["blind"] == "no"


def test_in_bfloat16(tmp_path, text):
    folder = saved(dory(), tmp_path / "dory")
    options = Options(text=text, device="cpu", dtype="bfloat16", loops=2)
    out = run(str(folder), options, Settings.quick(), tmp_path / "audit")
    report = json.loads((out / "audit.json").read_text())
    assert (report["model"]["dtype"], report["model"]["loops"]) == ("bfloat16", 2)
    assert report["boundaries"][0]["noise_kl"]["value"] > 1e-9


def test_a_model_that_does_not_loop(tmp_path, text):
    config = transformers.GPT2Config(vocab_size=V, n_positions=32, n_embd=16, n_layer=1, n_head=2)
    folder = saved(transformers.GPT2LMHeadModel(config), tmp_path / "gpt2")
    with pytest.raises(BlindspotError, match=r"no adapter for model_type gpt2 .* no blind spot"):
        hub.find(str(folder), Options(text=text, device="cpu"))


def test_one_loop_is_none(tmp_path):
    with pytest.raises(BlindspotError, match=r"loops: 1; .* at least twice"):
        audit(hub.adapt("dory", dory(loops=1)), stream(), SETTINGS)


def test_a_wrong_number_of_loops_is_seen():
    model = dory()
    looped = hub.adapt("dory", model, loops=4)
    model.forward = lambda **inputs: SimpleNamespace(logits=looped_logits(model, inputs))
    with pytest.raises(BlindspotError, match="after 4 loops the adapter's logits differ"):
        audit(looped, stream(), SETTINGS)


def looped_logits(model, inputs):
    """What a model would say that loops three times whatever its configuration says."""
    model.config.n_recurrent_loops = 3
    return type(model).forward(model, **inputs).logits


def test_a_tokenizer_of_another_vocabulary(tmp_path, text):
    folder = saved(dory(), tmp_path / "dory", [f"w{i}" for i in range(100)] + list("abcdefgh"))
    with pytest.raises(BlindspotError, match=r"ends at 59; .* another model's tokenizer"):
        run(str(folder), Options(text=text, device="cpu"), SETTINGS, tmp_path / "audit")


def test_nan_in_a_checkpoint(tmp_path, text):
    model = dory()
    model.model.layers[2].mlp.up_proj.weight[0, 0] = torch.nan
    folder = saved(model, tmp_path / "dory")
    with pytest.raises(BlindspotError, match=r"model\.layers\.2\.mlp\.up_proj\.weight holds NaN"):
        run(str(folder), Options(text=text, device="cpu"), SETTINGS, tmp_path / "audit")


def test_remote_code_only_when_allowed(tmp_path, text):
    folder = tmp_path / "remote"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "mine",
                "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"},
            }
        )
    )
    (folder / "code.py").write_text("raise RuntimeError('it ran')")
    with pytest.raises(BlindspotError, match="give --trust-remote-code"):
        hub.find(str(folder), Options(text=text, device="cpu"))
    with pytest.raises(BlindspotError, match="it ran"):
        hub.find(str(folder), Options(text=text, device="cpu", trust_remote_code=True))


OURS = """
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

class C(PretrainedConfig):
    model_type = "mine"
    def __init__(self, total_ut_steps=3, **more):
        self.total_ut_steps = total_ut_steps
        super().__init__(**more)

class Inner(PreTrainedModel):
    config_class = C
    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(60, 16)
        self.layers = nn.ModuleList([nn.Linear(16, 16)])
        self.norm = nn.LayerNorm(16)
        self.total_ut_steps = config.total_ut_steps
        self.post_init()

    def forward(self, x):
        for _ in range(self.total_ut_steps):
            for layer in self.layers:
                x = x + layer(x)
            x = self.norm(x)
        return x

class M(PreTrainedModel):
    config_class = C
    def __init__(self, config):
        super().__init__(config)
        self.model, self.lm_head = Inner(config), nn.Linear(16, 60, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.model.embed_tokens

    def forward(self, input_ids=None, inputs_embeds=None, use_cache=None):
        x = self.model.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        return CausalLMOutput(logits=self.lm_head(self.model(x)))
"""


def remote(folder, code, **more):
    """A model folder with code of its own and random weights."""
    from safetensors.torch import save_file

    folder.mkdir()
    names = {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}
    values = {"model_type": "mine", "auto_map": names, "architectures": ["M"]} | more
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "code.py").write_text(code)
    random = torch.Generator().manual_seed(0)
    shapes = {
        "model.embed_tokens.weight": (60, 16),
        "model.layers.0.weight": (16, 16),
        "model.layers.0.bias": (16,),
        "model.norm.weight": (16,),
        "model.norm.bias": (16,),
        "lm_head.weight": (60, 16),
    }
    tensors = {name: torch.randn(shape, generator=random) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_model_with_code_of_its_own(tmp_path, text):
    """Of Ouro's shape under another name; the tokenizer is given."""
    folder = remote(tmp_path / "theirs", OURS)
    tokenizer = saved(dory(), tmp_path / "dory") / "tokenizer.json"
    options = Options(text=text, device="cpu", tokenizer=tokenizer, trust_remote_code=True)
    out = run(str(folder), options, Settings.quick(), tmp_path / "audit")
    report = json.loads((out / "audit.json").read_text())
    assert (report["model"]["loops"], report["model"]["parameters"]) == (3, 2224)
    assert "before model.norm" in report["model"]["point"]
    assert [b["carried"] for b in report["boundaries"]] == ["no", "no"]


def test_code_of_another_transformers(tmp_path, text):
    code = OURS.replace("nn.LayerNorm(16)", "gone(16)")
    folder = remote(tmp_path / "theirs", code, transformers_version="4.55.0")
    with pytest.raises(BlindspotError, match=r"'gone' .* the time of transformers 4\.55\.0"):
        hub.find(str(folder), Options(text=text, device="cpu", trust_remote_code=True))


def test_what_is_no_model(tmp_path):
    with pytest.raises(BlindspotError, match=r"has no config\.json"):
        hub.find(str(tmp_path), Options())
    with pytest.raises(BlindspotError, match="could not be loaded"):
        hub.find("nobody/nothing", Options())
    with pytest.raises(BlindspotError, match=r"nowhere: no such folder, and no owner/name"):
        hub.find(str(tmp_path / "nowhere"), Options())
    with pytest.raises(BlindspotError, match="--dtype int8: use auto"):
        hub._dtype("int8")
