"""Huginn-shaped models: a prelude, a core block that sees it at every step, and a coda.

    loop k     H_k = core(adapter([H_{k-1}, prelude]))       `iterate_one_step`
    read       head(ln_f(coda(ln_f(H_k))))                   `predict_from_latents`

The state is what the core block gives, before `ln_f`. The model draws its initial state at random;
here it is drawn once, from a fixed seed, so that the same audit gives the same numbers.
"""

from typing import Any

import torch
from torch import Tensor

from blindspot.audit.looped import Looped


def adapt(name: str, model: Any, loops: int | None = None) -> Looped:
    trained = loops or int(model.config.mean_recurrence)

    def init(ids: Tensor) -> tuple[Any, Tensor]:
        prelude, block = model.embed_inputs(ids)
        with torch.random.fork_rng(devices=[ids.device] if ids.is_cuda else []):
            torch.manual_seed(0)
            # One window's draw for all windows: the numbers do not depend on the batch.
            state = model.initialize_state(prelude[:1]).expand_as(prelude).clone()
        return (prelude, block), state

    def loop(context: tuple[Tensor, Any], state: Tensor, k: int) -> Tensor:
        prelude, block = context
        # The step counts the blocks that ran in place, for a cache that is not used here.
        block = block.clone() if isinstance(block, Tensor) else block
        after: Tensor = model.iterate_one_step(prelude, state, block_idx=block, current_step=k - 1)[
            0
        ]
        return after

    def whole(ids: Tensor) -> Tensor:
        state = init(ids)[1]
        steps = torch.tensor([trained, 0])
        logits: Tensor = model(ids, input_states=state, num_steps=steps, use_cache=False).logits
        return logits

    return Looped(
        name=name,
        init=init,
        loop=loop,
        read=lambda context, state, k: model.predict_from_latents(state).logits,
        loops=trained,
        vocab_size=model.lm_head.out_features,
        point="the core block's output, before ln_f",
        context=getattr(model.config, "block_size", None),
        whole=whole,
        module=model,
    )
