"""Dory: input layers, recurrent layers run n_recurrent_loops times, output layers.

    loop k     H_k = recurrent(norm(H_{k-1}) + norm(input section))
    read       lm_head(norm(output layers(H_k)))

The state is what the last recurrent layer gives, before the norm that begins the next loop.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

from blindspot.audit.looped import Looped


def adapt(name: str, model: Any, loops: int | None = None) -> Looped:
    config, inner = model.config, model.model
    trained = loops or config.n_recurrent_loops
    start = config.n_input_layers
    end = start + config.n_recurrent_layers

    def through(layers: Any, state: Tensor, context: dict[str, Any]) -> Tensor:
        for layer in layers:
            kind = layer.attention_type
            state = layer(
                state,
                attention_mask=context["masks"][kind],
                position_embeddings=context["positions"][kind],
                cache=None,
            )
        return state

    def init(ids: Tensor) -> tuple[dict[str, Any], Tensor]:
        embedded = inner.embed_tokens(ids)
        positions = torch.arange(ids.shape[1], device=ids.device)[None]
        inputs = {"config": config, "inputs_embeds": embedded, "position_ids": positions}
        inputs |= {"attention_mask": None, "cache": None}
        kinds = {layer.attention_type for layer in inner.layers}
        context = {
            "masks": {
                "full_attention": create_causal_mask(**inputs),
                "sliding_attention": create_sliding_window_causal_mask(**inputs),
            },
            "positions": {kind: inner.rotary_emb(embedded, positions, kind) for kind in kinds},
        }
        state = through(inner.layers[:start], embedded, context)
        return context | {"prelude": inner.norm(state)}, state

    def loop(context: dict[str, Any], state: Tensor, k: int) -> Tensor:
        return through(inner.layers[start:end], inner.norm(state) + context["prelude"], context)

    def read(context: dict[str, Any], state: Tensor, k: int) -> Tensor:
        state = through(inner.layers[end:], state, context)
        logits: Tensor = model.lm_head(inner.norm(state))
        return logits

    def whole(ids: Tensor) -> Tensor:
        before, config.n_recurrent_loops = config.n_recurrent_loops, trained
        try:
            logits: Tensor = model(input_ids=ids, use_cache=False).logits
        finally:
            config.n_recurrent_loops = before
        return logits

    point = "the last recurrent layer's output, before the norm that begins the next loop"
    return Looped(
        name,
        init,
        loop,
        read,
        trained,
        config.vocab_size,
        point=point,
        context=config.max_position_embeddings,
        whole=whole,
        module=model,
    )
