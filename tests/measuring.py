"""A toy run to measure: random weights with gains off 1, random token streams, no files."""

import numpy as np
import torch

from blindspot.config.spec import Measurement, RunSpec
from blindspot.declared import FILES
from blindspot.lm.model import LoopedLM
from blindspot.measure.subject import Subject
from toys import toy_model, toy_objective


class ToyTokens:
    """What measurements ask of `Tokens`, from arrays."""

    def __init__(self, splits, vocab_size, kind="words", folder=None):
        self.splits, self.vocab_size, self.folder = splits, vocab_size, folder
        self.meta = {"tokenizer": kind, "unk": None, "lossless": True, "data": {"corpus": {}}}

    def split(self, name):
        return self.splits[name]

    def counts(self, name):
        return {"words": 101, "bytes": 503}

    def spans(self, name):
        """(bytes, words) by token; they sum to what `counts` says."""
        spans = np.zeros((len(self.splits[name]), 2), dtype=np.uint32)
        spans[1:] = 5, 1
        spans[-1] += np.array([503, 101], dtype=np.uint32) - spans.sum(axis=0, dtype=np.uint32)
        return spans


def streams(vocab, length=100, seed=5):
    rng = np.random.default_rng(seed)
    names = ("train", "validation", "test")
    return {name: rng.integers(vocab, size=length).astype("<u2") for name in names}


def subject(cell="perloop-rms", dtype=torch.float64, tokens=None, settings=None, **changes):
    """A `Subject`; its model is float64 unless told, so that tests see through rounding."""
    spec = toy_model(cell, **changes)
    torch.manual_seed(0)
    model = LoopedLM(spec).to(dtype).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter += torch.rand(parameter.shape).to(dtype)
        elif "blocks" in name:
            parameter *= 2  # loops that move the state by about its own size
    run = RunSpec(
        data={},
        windows={"length": spec.context, "stride": spec.context},
        model=spec,
        objective=toy_objective(cell),
        training={"steps": 1},
        batch=4,
        seed=1,
    )
    values = {"min_context": 5, "depths_beyond": [5]} | (settings or {})
    tokens = tokens or ToyTokens(streams(spec.vocab_size), spec.vocab_size)
    return Subject(model, run, Measurement.model_validate(values), tokens)


def parameters(s):
    """The model's parameters by name, for the plain reference."""
    return dict(s.model.named_parameters())


def table(name, rows):
    """Rows of a CSV as dictionaries, each value a number where it is one."""
    columns = FILES[name].header

    def value(text):
        try:
            return float(text)
        except ValueError:
            return text

    assert all(len(row) == len(columns) for row in rows)
    return [{c: value(str(v)) for c, v in zip(columns, row, strict=True)} for row in rows]
