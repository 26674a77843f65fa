"""Where a model to audit comes from.

0.1m/perloop-rms/seed42-1f2e3d4c    a finished run of this project
my_model.py:looped                  a function in a Python file that gives a `Looped`
path/to/folder, owner/name          a Hugging Face model (`hub.py`)
"""

import importlib.util
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from blindspot.audit.hub import find as find_on_hub
from blindspot.audit.looped import Looped
from blindspot.audit.options import Options
from blindspot.audit.texts import encode_file, read_text
from blindspot.errors import BlindspotError
from blindspot.lm import device as devices
from blindspot.lm.model import LoopedLM
from blindspot.measure.finished import NAME, Finished


@dataclass(frozen=True)
class Subject:
    """A model, and a stream of token ids for it."""

    model: Looped
    stream: np.ndarray
    text: str
    source: str


def find(name: str, options: Options) -> Subject:
    """The model of that name with its text. Raises `BlindspotError` where there is none."""
    if NAME.fullmatch(name):
        return _run(name, options)
    if ".py:" in name:
        return _python(name, options)
    model, encode = find_on_hub(name, options)
    path, text = read_text(options.text)
    return Subject(_with_loops(model, options), encode(text, path), path, "Hugging Face")


def looped(name: str, model: LoopedLM) -> Looped:
    """A model of this project as the audit sees it: the state before any inter-loop norm."""
    return Looped(
        name=name,
        init=lambda ids: (None, model.embed(ids)),
        loop=lambda _, state, k: model.loop(state, k),
        read=lambda _, state, k: model.logits(state, k),
        loops=model.spec.loops,
        vocab_size=model.spec.vocab_size,
        point="the last block's output, before any inter-loop norm and before the readout",
        context=model.spec.context,
        whole=lambda ids: model.logits(model(ids)[-1], model.spec.loops),
        module=model,
    )


def _with_loops(model: Looped, options: Options) -> Looped:
    return model if options.loops is None else replace(model, loops=options.loops)


# --- a run of this project -------------------------------------------------------------------


def _run(name: str, options: Options) -> Subject:
    if options.loops is not None:
        raise BlindspotError(
            f"--loops {options.loops}: a run knows its number of loops; loops beyond it are "
            f"--beyond"
        )
    run = Finished(name, options.results, options.work)
    model = run.model(devices.resolve(options.device))
    if options.dtype != "auto":
        model = model.to(getattr(torch, options.dtype))
    if options.text is None:
        text = f"validation split of {run.tokens.meta['corpus']}"
        stream: np.ndarray = run.tokens.split("validation")
    else:
        text, content = read_text(options.text)
        tokenizer = options.tokenizer or run.tokens.folder / "tokenizer.json"
        stream = encode_file(tokenizer, content, text)
    return Subject(looped(name, model), stream, text, "run")


# --- a function in a Python file -------------------------------------------------------------


def _python(name: str, options: Options) -> Subject:
    path, _, function = name.rpartition(":")
    made = _module(Path(path), name).get(function)
    if not callable(made):
        raise BlindspotError(f"{name}: {path} has no function {function}")
    model = made()
    if not isinstance(model, Looped):
        raise BlindspotError(
            f"{name}: {function}() gave a {type(model).__name__}; it has to give a "
            f"blindspot.audit.Looped"
        )
    if options.tokenizer is None:
        raise BlindspotError(
            f"{name}: which ids stand for a text? Give --tokenizer PATH/tokenizer.json, or call "
            f"blindspot.audit.audit(model, ids) from Python"
        )
    text, content = read_text(options.text)
    stream = encode_file(options.tokenizer, content, text)
    return Subject(_with_loops(model, options), stream, text, "Python file")


def _module(path: Path, name: str) -> dict[str, Any]:
    if not path.is_file():
        raise BlindspotError(f"{name}: {path}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return vars(module)
