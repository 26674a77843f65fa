"""Hugging Face models: loading, and the adapter that fits.

An adapter is one file in `adapters/` with a function `adapt(name, model, loops)`, which gives the
`Looped` and says which point of the model it takes as the state.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from blindspot.audit.looped import Looped
from blindspot.audit.options import Options
from blindspot.audit.texts import encode_file
from blindspot.errors import BlindspotError
from blindspot.lm import device as devices

#: `model_type` of a configuration to the adapter. They are imported when they are needed: an older
#: transformers lacks what some of them need.
ADAPTERS = {
    "dory": "dory",
    "hrm_text": "hrm_text",
    "huginn_raven": "huginn",
    "inkling2_loop_text": "inkling2_loop",
    "ouro": "ouro",
}
#: Parts by which a model of another type is known to have an adapter's shape.
SHAPES = {
    "huginn": ("embed_inputs", "initialize_state", "iterate_one_step", "predict_from_latents"),
    "ouro": ("model.layers", "model.norm", "model.total_ut_steps", "lm_head"),
}
DTYPES = ("float32", "bfloat16", "float16", "float64")
Encode = Callable[[str, str], np.ndarray]


def find(name: str, options: Options) -> tuple[Looped, Encode]:
    """The model, and what encodes a text (text, its name) for it."""
    try:
        import transformers
    except ImportError:
        raise BlindspotError(
            f"{name}: is it a Hugging Face model? For these, pip install 'blindspot[audit]'. A run "
            f"of this project is named like 0.1m/perloop-rms/seed42-1f2e3d4c, a model of your own "
            f"like my_model.py:looped"
        ) from None
    transformers.utils.logging.disable_progress_bar()
    folder = Path(name)
    if not folder.exists() and (name.startswith(("/", ".", "~")) or name.count("/") != 1):
        raise BlindspotError(
            f"{name}: no such folder, and no owner/name of a model on the Hugging Face hub"
        )
    if folder.exists() and not (folder / "config.json").is_file():
        raise BlindspotError(f"{name}: has no config.json, so it is no Hugging Face model")
    # Without this, remote code asks on the terminal.
    remote = {"trust_remote_code": options.trust_remote_code}
    config = _load(transformers.AutoConfig.from_pretrained, name, remote)
    if config.model_type == "inkling2_loop":
        config = config.get_text_config()
    dtype = _dtype(options.dtype)
    device = devices.resolve(options.device)
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = _load(load, name, remote | {"config": config, "dtype": dtype}, _age(config))
    model = model.to(device).eval().requires_grad_(False)
    shown = folder.resolve().name if folder.exists() else name
    return adapt(shown, model, options.loops), _encoder(name, options, remote)


def adapt(name: str, model: Any, loops: int | None = None) -> Looped:
    """The audit's view of a Hugging Face model, by the adapter that fits."""
    kind = model.config.model_type
    adapter = ADAPTERS.get(kind)
    for shape, parts in SHAPES.items():
        if adapter is None and all(_has(model, part) for part in parts):
            adapter = shape
    if adapter is None:
        raise BlindspotError(
            f"{name}: no adapter for model_type {kind} ({type(model).__name__}). Known are "
            f"{', '.join(sorted(ADAPTERS))}. If this model loops, docs/audit.md shows how to audit "
            f"it in ten lines; if it does not, it has no state between loops, and no blind spot to "
            f"look for"
        )
    module = importlib.import_module(f"blindspot.audit.adapters.{adapter}")
    looped: Looped = module.adapt(name, model, loops)
    return looped


def _has(model: Any, path: str) -> bool:
    for part in path.split("."):
        if not hasattr(model, part):
            return False
        model = getattr(model, part)
    return True


def _dtype(name: str) -> Any:
    if name != "auto" and name not in DTYPES:
        raise BlindspotError(f"--dtype {name}: use auto, {', '.join(DTYPES)}")
    return name if name == "auto" else getattr(torch, name)


def _age(config: Any) -> str:
    """Why code that comes with a model may fail: it was written for another transformers."""
    import transformers

    made, here = getattr(config, "transformers_version", None), transformers.__version__
    same = not made or made.split(".")[0] == here.split(".")[0]
    if same or not getattr(config, "auto_map", None):
        return ""
    return (
        f"; its code is from the time of transformers {made}, this is {here}: install that one for "
        f"this audit (pip install 'transformers=={made}')"
    )


def _load(load: Callable[..., Any], name: str, options: dict[str, Any], hint: str = "") -> Any:
    """Call a `from_pretrained`; its many errors become one message."""
    try:
        return load(name, **options)
    except Exception as error:  # transformers and its libraries raise many unrelated types
        reason = (str(error).strip().splitlines() or [""])[0]
        if "trust_remote_code" in str(error):
            reason, hint = (
                "it comes with Python code of its own",
                ("; read that code, then give --trust-remote-code to run it"),
            )
        raise BlindspotError(
            f"{name}: could not be loaded ({type(error).__name__}: {reason}){hint}"
        ) from None


def _encoder(name: str, options: Options, remote: dict[str, Any]) -> Encode:
    if options.tokenizer is not None:
        path = options.tokenizer
        return lambda text, label: encode_file(path, text, label)

    def encode(text: str, label: str) -> np.ndarray:
        import transformers

        tokenizer = _load(transformers.AutoTokenizer.from_pretrained, name, remote)
        # A length beyond the model's context is no fault here: windows are cut afterwards.
        return np.array(tokenizer(text, verbose=False)["input_ids"], dtype=np.int64)

    return encode
