"""HRM-Text: two states, a slow one (z_H) and a fast one (z_L), which a loop updates in turn.

    loop k     L_cycles times z_L = L_module(z_L + z_H), then z_H = H_module(z_H + z_L)
    read       lm_head(z_H)

Each module ends in a norm without a gain, which belongs to the loop: the readout and the next loop
both get the normed state. So the state is the pair (z_H, z_L) as the modules give it; its scale is
read, since the head is raw, and the norm at the next loop's end takes it away.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import create_causal_mask

from blindspot.audit.looped import Looped


def adapt(name: str, model: Any, loops: int | None = None) -> Looped:
    config, inner = model.config, model.model
    trained = loops or config.H_cycles

    def init(ids: Tensor) -> tuple[dict[str, Any], tuple[Tensor, Tensor]]:
        slow = inner.embed_tokens(ids) * inner.embedding_scale
        fast = inner.z_L_init.to(slow).expand_as(slow).contiguous()
        positions = torch.arange(ids.shape[1], device=ids.device)[None]
        mask = create_causal_mask(
            config=config,
            inputs_embeds=slow,
            attention_mask=None,
            cache=None,
            position_ids=positions,
        )
        context = {
            "attention_mask": mask,
            "position_ids": positions,
            "position_embeddings": inner.rotary_emb(slow, positions),
            "cache": None,
        }
        return context, (slow, fast)

    def loop(
        context: dict[str, Any], state: tuple[Tensor, Tensor], k: int
    ) -> tuple[Tensor, Tensor]:
        slow, fast = state
        for _ in range(config.L_cycles):
            fast = inner.L_module(fast + slow, **context)
        return inner.H_module(slow + fast, **context), fast

    def whole(ids: Tensor) -> Tensor:
        before, config.H_cycles = config.H_cycles, trained
        try:
            logits: Tensor = model(input_ids=ids, use_cache=False).logits
        finally:
            config.H_cycles = before
        return logits

    return Looped(
        name=name,
        init=init,
        loop=loop,
        read=lambda context, state, k: model.lm_head(state[0]),
        loops=trained,
        vocab_size=config.vocab_size,
        point="(z_H, z_L) as H_module and L_module give them, behind the norms that end both; |H| "
        "is that of z_H",
        context=config.max_position_embeddings,
        whole=whole,
        module=model,
    )
