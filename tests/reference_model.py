"""A plain looped language model to check the real one against, by eye and by number.

Explicit attention, full logits, one loop after another; no nn.Module, no fused operation. It takes
parameters as a dictionary under the model's own names and works in their type (float64 in tests).
"""

import math

import torch


def rms(x, gain, eps):
    normed = x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)
    return normed if gain is None else normed * gain


def attention(x, qkv, out, heads):
    T, d = x.shape[1:]
    q, k, v = (x @ qkv.T).split(d, dim=-1)
    causal = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
    mixed = []
    for h in range(heads):
        part = slice(h * d // heads, (h + 1) * d // heads)
        scores = q[..., part] @ k[..., part].transpose(1, 2) / math.sqrt(d // heads)
        scores = scores.masked_fill(~causal, -math.inf)
        weights = torch.exp(scores - scores.max(-1, keepdim=True).values)
        mixed.append(weights / weights.sum(-1, keepdim=True) @ v[..., part])
    return torch.cat(mixed, dim=-1) @ out.T


def batched_attention(x, qkv, out, heads):
    """The same with all heads in one product, as most plain code has it; for benchmarks."""
    B, T, d = x.shape
    q, k, v = (x @ qkv.T).view(B, T, 3, heads, d // heads).permute(2, 0, 3, 1, 4)
    causal = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
    scores = (q @ k.mT / math.sqrt(d // heads)).masked_fill(~causal, -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, d) @ out.T


def states(p, tokens, spec, loops=None, attend=attention):
    """H_0..H_K for token ids (B, T)."""
    eps = spec.norm_eps
    h = p["embedding.weight"][tokens] + p["position.weight"][: tokens.shape[1]]
    found = [h]
    for k in range(1, (loops or spec.loops) + 1):
        if spec.interloop == "reset":
            h = spec.interloop_scale * rms(h, None, eps)
        elif spec.interloop != "none" and k > 1:
            h = rms(h, p.get("interloop_gain"), eps)
        if spec.inject and k > 1:
            h = h + found[0]
        received = h
        for i in range(spec.layers):
            b = f"blocks.{i}."
            x = rms(h, p[b + "attention_norm.weight"], eps)
            y = attend(x, p[b + "attention.qkv.weight"], p[b + "attention.out.weight"], spec.heads)
            h = h + written(p, y, b + "attention_post.weight", spec)
            x = rms(h, p[b + "mlp_norm.weight"], eps)
            gate = x @ p[b + "mlp.gate.weight"].T
            inner = gate * torch.sigmoid(gate) * (x @ p[b + "mlp.up.weight"].T)
            y = inner @ p[b + "mlp.down.weight"].T
            h = h + written(p, y, b + "mlp_post.weight", spec)
        if spec.carry is not None:
            h = spec.carry * received + (h - received)
        if spec.clamp != "none" and k > 1:
            factor = found[1].norm(dim=-1, keepdim=True) / h.norm(dim=-1, keepdim=True)
            h = h * (factor.detach() if spec.clamp == "stopped" else factor)
        found.append(h)
    return found


def written(p, y, post, spec):
    """What a branch adds to the stream."""
    y = rms(y, p[post], spec.norm_eps) if spec.sandwich else y
    return y / spec.loops if spec.divide_branches else y


def read(p, h, k, spec):
    """r(H_k)."""
    if spec.readout == "raw" or (spec.readout == "final-only-rms" and k < spec.loops):
        return h
    if spec.readout == "layernorm":
        centred = h - h.mean(-1, keepdim=True)
        return rms(centred, p["readout.gain"], spec.norm_eps)
    if spec.readout == "power":
        size = torch.sqrt((h * h).mean(-1, keepdim=True) + spec.norm_eps)
        alpha = torch.sigmoid(p["readout.logit"]) if spec.learned_alpha else spec.alpha
        return h / size**alpha * p["readout.gain"]
    return rms(h, p["readout.gain"], spec.norm_eps)


def log_z(p, h, k, spec):
    """log of the sum of exp(logits), and the logits."""
    logits = read(p, h, k, spec) @ p["embedding.weight"].T
    top = logits.max(-1, keepdim=True).values
    return top.squeeze(-1) + torch.log(torch.exp(logits - top).sum(-1)), logits


def token_nll(p, h, k, targets, spec):
    """-log p(target) in nats, shape (B, T)."""
    z, logits = log_z(p, h, k, spec)
    return z - logits.gather(-1, targets[..., None]).squeeze(-1)


def total_loss(p, tokens, targets, spec, objective, attend=attention, loops=None):
    """The training objective."""
    K = loops or spec.loops
    hs = states(p, tokens, spec, K, attend=attend)
    depths = [K] if objective.loss == "terminal" else range(1, K + 1)
    weights = objective.weights or [1] * len(depths)
    total = sum(
        w * token_nll(p, hs[k], k, targets, spec).mean()
        for w, k in zip(weights, depths, strict=True)
    ) / sum(weights)
    if objective.z_loss:
        squares = [log_z(p, hs[k], k, spec)[0].square().mean() for k in depths]
        shares = [w / sum(weights) for w in weights]
        total = total + objective.z_loss * sum(w * z for w, z in zip(shares, squares, strict=True))
    if objective.penalty is not None:
        means = []
        for h in hs[1:]:
            squares = (h * h).sum(-1)
            if objective.penalty.kind == "target":
                squares = ((squares / spec.d_model).sqrt() - objective.penalty.target) ** 2
            elif objective.penalty.kind == "mean-square":
                squares = squares / spec.d_model
            means.append(squares.mean())
        total = total + objective.penalty.weight * sum(means) / K
    return total


def train_steps(p, batches, spec, rates=None):
    """Parameters after one AdamW step a batch (B, T + 1), gradients clipped by their norm; `rates`
    has the learning rate of each step where it is not constant."""
    t = spec.training
    beta1, beta2 = t.betas
    m = {n: torch.zeros_like(x) for n, x in p.items()}
    v = {n: torch.zeros_like(x) for n, x in p.items()}
    for step, batch in enumerate(batches, start=1):
        leaves = {n: x.detach().requires_grad_() for n, x in p.items()}
        total = total_loss(leaves, batch[:, :-1], batch[:, 1:], spec.model, spec.objective)
        gradients = torch.autograd.grad(total, list(leaves.values()))
        norm = torch.sqrt(sum(g.square().sum() for g in gradients))
        rate = rates[step - 1] if rates else t.learning_rate
        for n, g in zip(p, gradients, strict=True):
            g = g * min(1.0, t.clip / (norm.item() + 1e-6))
            m[n] = beta1 * m[n] + (1 - beta1) * g
            v[n] = beta2 * v[n] + (1 - beta2) * g * g
            root = (v[n] / (1 - beta2**step)).sqrt() + 1e-8
            shrunk = p[n].detach() * (1 - rate * t.weight_decay)
            p[n] = shrunk - rate * m[n] / (1 - beta1**step) / root
    return p
