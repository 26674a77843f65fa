"""Ouro-shaped models: layers, then `model.norm`, over and over; each normed state is read.

    loop k     H_k = layers(norm(H_{k-1}))         H_0 = embeddings, not normed
    read       lm_head(norm(H_k))

The state is what enters `model.norm`, seen by a forward pre-hook. (The list of hidden states that
the model returns is from behind the norm: scaling those is another intervention.) A loop is the
model itself, told to loop once, on the normed state in the place of embeddings.
"""

from typing import Any

from torch import Tensor

from blindspot.audit.looped import Looped
from blindspot.errors import BlindspotError


def adapt(name: str, model: Any, loops: int | None = None) -> Looped:
    inner = model.model
    trained = loops or inner.total_ut_steps

    def run(steps: int, **inputs: Tensor) -> tuple[Any, list[Tensor]]:
        """The model with so many loops, and what entered its norm at each."""
        seen: list[Tensor] = []
        hook = inner.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        before, inner.total_ut_steps = inner.total_ut_steps, steps
        try:
            output = model(**inputs, use_cache=False)
        finally:
            hook.remove()
            inner.total_ut_steps = before
        if len(seen) != steps:
            raise BlindspotError(
                f"{name}: asked for {steps} loops, and its norm was reached {len(seen)} times; "
                f"this adapter is for models that loop `total_ut_steps` times"
            )
        return output, seen

    def init(ids: Tensor) -> tuple[None, Tensor]:
        return None, model.get_input_embeddings()(ids)

    def loop(_: None, state: Tensor, k: int) -> Tensor:
        entering = state if k == 1 else inner.norm(state)
        return run(1, inputs_embeds=entering)[1][0]

    return Looped(
        name=name,
        init=init,
        loop=loop,
        read=lambda _, state, k: model.lm_head(inner.norm(state)),
        loops=trained,
        vocab_size=model.lm_head.out_features,
        point="the last layer's output, before model.norm (which both the readout and the next "
        "loop go through)",
        context=getattr(model.config, "max_position_embeddings", None),
        whole=lambda ids: run(trained, input_ids=ids)[0].logits,
        module=model,
    )
