"""Floating-point operations and parameters of a looped decoder, by formula; a multiply-add is two.

A lookup in the embedding costs nothing; the tied head costs one product a decoded depth. Attention
is causal: token t attends to t tokens, T/2 on average. Norms, activations and softmax (under 2 % at
the paper's sizes) are left out, as is usual. A backward pass costs two forward passes.
"""

from blindspot.config.spec import ModelSpec, Objective


def parameters(spec: ModelSpec) -> int:
    """The number of trainable parameters (no tensors are made)."""
    d = spec.d_model
    stack = spec.layers * (16 * d * d + 2 * d)
    gains = spec.gained + (spec.interloop == "rms-gain") + 2 * spec.layers * spec.sandwich
    return spec.vocab_size * d + spec.context * d + stack + gains * d + spec.learned_alpha


def forward_per_token(
    model: ModelSpec, loops: int | None = None, heads: int = 1, causal: bool = True
) -> float:
    """FLOPs a token of a forward pass of `loops` loops that decodes `heads` depths.

    `causal=False` counts full T x T attention, as a profiler of the mathematical form does.
    """
    loops = model.loops if loops is None else loops
    d, T = model.d_model, model.context
    matrices = 2 * 16 * d * d
    attention = 2 * 2 * d * T * (0.5 if causal else 1.0)
    return loops * model.layers * (matrices + attention) + heads * 2 * d * model.vocab_size


def training_per_token(model: ModelSpec, objective: Objective) -> float:
    """FLOPs a trained token: forward and backward, a head at each supervised depth. Where each step
    draws its K, the mean over steps."""
    drawn = range(1, model.loops + 1) if objective.random_loops else (model.loops,)
    each = [
        3 * forward_per_token(model, K, heads=1 if objective.loss == "terminal" else K)
        for K in drawn
    ]
    return sum(each) / len(each)
