"""A looped language model of the blindspot study, for transformers. Needs no other package of it.

    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    model(ids).logits                       after the trained number of loops
    model(ids, loops=2).logits              read after loop 2; more loops than trained may be asked
    model(ids, output_exits=True).exits     (K, B, T, V): read after each loop
    model.generate(ids, loops=2)            each token with two loops
    model.generate(ids, halt=0.5)           each token stops looping once the probability of its
                                            best next token leads the second's by 0.5

With `halt` the loops that are left are not computed; a batch loops until its last row has stopped,
and each row is read where it stopped. There is no cache: a new token computes its window again,
which is the last `context` ids. Dropout is not here; it is for evaluation.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput


class BlindspotConfig(PretrainedConfig):
    """Shape, loops and readout; names are those of the study's ModelSpec."""

    model_type = "blindspot"
    attribute_map = {  # noqa: RUF012
        "hidden_size": "d_model",
        "num_attention_heads": "heads",
        "num_hidden_layers": "layers",
        "max_position_embeddings": "context",
    }

    def __init__(
        self,
        vocab_size: int = 512,
        d_model: int = 64,
        layers: int = 1,
        heads: int = 2,
        loops: int = 4,
        context: int = 64,
        readout: str = "rms",
        interloop: str = "none",
        norm_eps: float = 1e-6,
        alpha: float | None = None,
        **kwargs: Any,
    ) -> None:
        self.vocab_size, self.d_model, self.layers, self.heads = vocab_size, d_model, layers, heads
        self.loops, self.context, self.readout = loops, context, readout
        self.interloop, self.norm_eps, self.alpha = interloop, norm_eps, alpha
        kwargs.setdefault("use_cache", False)
        super().__init__(**kwargs)


@dataclass
class LoopedOutput(ModelOutput):
    """`exits` (K, B, T, V) where asked for; `stopped` (B,): the loop after which each row was read,
    with `halt`."""

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    exits: torch.Tensor | None = None
    stopped: torch.Tensor | None = None


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, config: BlindspotConfig) -> None:
        super().__init__()
        self.heads, d = config.heads, config.d_model
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d, bias=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        B, T, d = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.out(y.transpose(1, 2).reshape(B, T, d))


class SwiGLU(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.gate = nn.Linear(d, 4 * d, bias=False)
        self.up = nn.Linear(d, 4 * d, bias=False)
        self.down = nn.Linear(4 * d, d, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, config: BlindspotConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.d_model, config.norm_eps)
        self.attention = Attention(config)
        self.mlp_norm = RMSNorm(config.d_model, config.norm_eps)
        self.mlp = SwiGLU(config.d_model)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), mask)
        return x + self.mlp(self.mlp_norm(x))


class Readout(nn.Module):
    """What is read of the state after loop k, before the tied head."""

    def __init__(self, config: BlindspotConfig) -> None:
        super().__init__()
        self.kind, self.loops, self.eps = config.readout, config.loops, config.norm_eps
        self.alpha = 1.0 if config.alpha is None else config.alpha
        if self.kind != "raw":
            self.gain = nn.Parameter(torch.ones(config.d_model))

    def forward(self, x: torch.Tensor, k: int) -> torch.Tensor:
        if self.kind == "raw" or (self.kind == "final-only-rms" and k < self.loops):
            return x
        if self.kind == "layernorm":
            return F.layer_norm(x, x.shape[-1:], self.gain, None, self.eps)
        if self.kind == "power":
            size = x.square().mean(-1, keepdim=True) + self.eps
            return x * size ** (-self.alpha / 2) * self.gain
        return F.rms_norm(x, x.shape[-1:], self.gain, self.eps)


class BlindspotForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = BlindspotConfig
    _no_split_modules = ["Block"]  # noqa: RUF012

    def __init__(self, config: BlindspotConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.position = nn.Embedding(config.context, config.d_model)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.readout = Readout(config)
        if config.interloop == "rms-gain":
            self.interloop_gain = nn.Parameter(torch.ones(config.d_model))
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> None:
        return None  # the head is the embedding itself

    def loop(self, x: torch.Tensor, k: int, mask: torch.Tensor | None) -> torch.Tensor:
        """The state after loop k, from the one after loop k - 1."""
        if self.config.interloop != "none" and k > 1:
            gain = self.interloop_gain if self.config.interloop == "rms-gain" else None
            x = F.rms_norm(x, x.shape[-1:], gain, self.config.norm_eps)
        for block in self.blocks:
            x = block(x, mask)
        return x

    def read(self, x: torch.Tensor, k: int) -> torch.Tensor:
        """Logits of states (..., d) after loop k."""
        return F.linear(self.readout(x, k), self.embedding.weight)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        loops: int | None = None,
        halt: float | None = None,
        output_exits: bool = False,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> LoopedOutput:
        T = input_ids.shape[1]
        if self.config.context < T:
            raise ValueError(f"{T} tokens; this model reads at most {self.config.context}")
        loops = self.config.loops if loops is None else loops
        if loops < 1:
            raise ValueError(f"loops {loops}: at least 1")
        positions = torch.arange(T, device=input_ids.device)[None]
        mask = None
        if attention_mask is not None and not attention_mask.bool().all():
            # Padding on the left: it is not attended to, and positions begin behind it.
            there = attention_mask.bool()
            positions = (there.cumsum(1) - 1).clamp(min=0)
            causal = torch.ones(T, T, dtype=torch.bool, device=input_ids.device).tril()
            # Each token sees itself at least, so that no row is empty.
            itself = torch.eye(T, dtype=torch.bool, device=input_ids.device)
            mask = (causal & there[:, None, None, :]) | itself
        x = self.embedding(input_ids) + self.position(positions)
        if halt is not None:
            return self._halted(x, mask, loops, halt)
        exits = []
        for k in range(1, loops + 1):
            x = self.loop(x, k, mask)
            if output_exits:
                exits.append(self.read(x, k))
        logits = exits[-1] if exits else self.read(x, loops)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return LoopedOutput(loss=loss, logits=logits, exits=torch.stack(exits) if exits else None)

    def _halted(
        self, x: torch.Tensor, mask: torch.Tensor | None, loops: int, halt: float
    ) -> LoopedOutput:
        """Logits (B, 1, V) of the last position, each row's from the loop at which it stopped."""
        logits: torch.Tensor | None = None
        stopped = torch.zeros(len(x), dtype=torch.long, device=x.device)
        for k in range(1, loops + 1):
            x = self.loop(x, k, mask)
            here = self.read(x[:, -1:], k)
            best = here.float().softmax(-1).topk(2).values[:, 0]
            sure = (best[:, 0] - best[:, 1] >= halt) | (k == loops)
            now = sure & (stopped == 0)
            logits = here if logits is None else torch.where(now[:, None, None], here, logits)
            stopped = torch.where(now, k, stopped)
            if bool((stopped > 0).all()):
                break
        return LoopedOutput(logits=logits, stopped=stopped)

    def prepare_inputs_for_generation(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        loops: int | None = None,
        halt: float | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        window = slice(-self.config.context, None)
        inputs: dict[str, Any] = {"input_ids": input_ids[:, window], "loops": loops}
        if attention_mask is not None:
            inputs["attention_mask"] = attention_mask[:, window]
        return inputs | {"halt": halt}
