"""Inkling 2: layers before the loop, looped layers, layers after it.

Every pass starts again from the state before the loop; what one pass hands to the next are
messages, read from its states through norms. The state is what a pass gives: its last hidden state
and its block states, which the layers after the loop read as well.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.models.inkling2_loop.modeling_inkling2_loop import get_relative_distance

from blindspot.audit.looped import Looped

State = tuple[Tensor, Tensor]


def adapt(name: str, model: Any, loops: int | None = None) -> Looped:
    config, inner = model.config, model.model
    trained = loops or config.loop_num_passes
    start, end = config.loop_layer_index_start, config.loop_layer_index_end

    def through(layers: Any, state: State, context: dict[str, Any], before: State | None) -> State:
        """Hidden state and block states behind `layers`; `before` are those of the last pass."""
        hidden, blocks = state
        for at, layer in enumerate(layers):
            kind = layer.attention_type
            common = {"attention_mask": context["masks"][kind], "conv_mask": None, "cache": None}
            common |= {"relative_distance": context["distances"][kind]}
            if before is not None:
                skipped = context["state"][1].shape[-2] + 1
                common["messages"] = inner.message_input(before[1][..., skipped:, :], before[0], at)
            after = layer(hidden, blocks, position_ids=context["positions"], **common)
            if layer.is_block_boundary:
                blocks = torch.cat([blocks, hidden.unsqueeze(-2)], dim=-2)
            hidden = after
        return hidden, blocks

    def init(ids: Tensor) -> tuple[dict[str, Any], State]:
        x = inner.embed_tokens(ids)
        positions = torch.arange(ids.shape[1], device=ids.device)[None]
        mask = {"config": config, "inputs_embeds": x, "attention_mask": None, "cache": None}
        mask["position_ids"] = positions
        full, sliding = "full_attention", "sliding_attention"
        masks = {full: create_causal_mask(**mask)}
        masks[sliding] = create_sliding_window_causal_mask(**mask)
        distances = {kind: get_relative_distance(x, None, kind == sliding) for kind in masks}
        context = {"positions": positions, "masks": masks, "distances": distances}
        blocks = x.new_zeros(*x.shape[:-1], 0, x.shape[-1])
        state = through(inner.layers[:start], (x, blocks), context, None)
        return context | {"state": state}, state

    def loop(context: dict[str, Any], state: State, k: int) -> State:
        before = None if k == 1 else state
        return through(inner.layers[start:end], context["state"], context, before)

    def read(context: dict[str, Any], state: State, k: int) -> Tensor:
        hidden, blocks = through(inner.layers[end:], state, context, None)
        normed = inner.norm(inner.final_input(blocks, hidden)[0]).to(state[0].dtype)
        logits: Tensor = model.logit_softcap(model.lm_head(normed).float())
        return logits

    def whole(ids: Tensor) -> Tensor:
        before, config.loop_num_passes = config.loop_num_passes, trained
        try:
            logits: Tensor = model(input_ids=ids, use_cache=False).logits
        finally:
            config.loop_num_passes = before
        return logits

    point = "a pass's last hidden state and block states; |H| is that of the hidden state"
    size, most = config.unpadded_vocab_size, config.max_position_embeddings
    facts: dict[str, Any] = {"whole": whole, "module": model, "context": most, "point": point}
    return Looped(name, init, loop, read, trained, size, **facts)
