"""On a GPU every tensor of a step must be made there; these tests see it on any machine.

torch's default device is set to one whose tensors hold nothing ("meta"), and the parameters lie
where they always do: a tensor that is made without naming a device, or is meant for the CPU alone,
meets the others and torch refuses.
"""

import sys

import pytest
import torch

from blindspot.config.execution import Execution
from blindspot.training.engine import Engine
from toys import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu.bench import Reference
from gpu.plan import CELLS, TINY

CPU = torch.device("cpu")


def batch(spec):
    shape = (spec.batch, spec.windows.length + 1)
    return torch.randint(spec.model.vocab_size, shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_a_step_makes_its_tensors_beside_its_parameters(cell, recompute):
    spec = TINY.run("44m", cell)
    made, ids = Engine(spec, CPU, Execution(compile=False, recompute=recompute)), batch(spec)
    before = [p.detach().clone() for p in made.parameters]
    with torch.device("meta"):
        assert torch.ones(1).is_meta
        for step in range(2):
            made.step(ids, step, look=True)
        skipped = made.harvest()
    assert skipped == ([], None)
    assert made.seen().table.shape == (spec.model.loops + 1, 5)
    assert not any(torch.equal(p, old) for p, old in zip(made.parameters, before, strict=True))


@pytest.mark.parametrize("cell", CELLS)
def test_the_reference_makes_its_tensors_beside_its_parameters(cell):
    """It is what a GPU's results are checked against, so it runs there too."""
    spec = TINY.run("44m", cell)
    plain, ids = Reference(spec, CPU, "bf16"), batch(spec)
    with torch.device("meta"):
        loss, found = plain.gradients(ids)
    assert loss > 0
    assert all(gradient.device == CPU for gradient in found.values())
