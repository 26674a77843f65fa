"""An exported run: the folder's files, and (with transformers) the same logits at every exit."""

import json
import re
import subprocess
import sys
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
import yaml
from safetensors import safe_open

from blindspot.declared import FILES
from blindspot.errors import BlindspotError
from blindspot.export import card
from blindspot.export.export import config, export
from blindspot.files import to_csv
from blindspot.lm.model import LoopedLM
from blindspot.measure.finished import Finished
from blindspot.training.train import train
from toys import CELLS, toy_model
from training import typed_job, weights


@pytest.fixture(scope="module")
def run(tokens, tmp_path_factory):
    """A trained toy run with a measured exit."""
    where = tmp_path_factory.mktemp("study")
    job = typed_job(tokens, where, "perloop-rms-penalty", steps=6)
    job.out = where / "results" / "toy" / "runs" / job.name
    train(job)
    (where / "work" / "tokens").mkdir()
    (where / "work" / "tokens" / "toy").symlink_to(tokens[0])
    rows = [
        [split, protocol, k, 300, 90, 400, 900.0, 3.0 - 0.1 * k, 20.0 - k, 99.0, 2.0, 3, 0, 1]
        for split in ("validation", "test")
        for protocol in ("full", "paper")
        for k in (1, 2, 3, 8)
    ]
    (job.out / "measure-1" / "exits").mkdir(parents=True)
    (job.out / "measure-1" / "exits" / "exits.csv").write_text(to_csv(FILES["exits"].header, rows))
    return Finished(job.name, where / "results", where / "work"), job


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("export") / "model"
    export(run[0], out)
    return out


def test_the_folder(folder, run):
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "modeling_blindspot.py",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    finished, job = run
    told = json.loads((folder / "config.json").read_text())
    assert told["model_type"] == "blindspot"
    for key in ("loops", "readout", "interloop", "d_model", "norm_eps"):
        assert told[key] == getattr(job.spec.model, key)
    original = finished.tokens.folder / "tokenizer.json"
    assert (folder / "tokenizer.json").read_bytes() == original.read_bytes()


def test_weights_are_the_runs_with_their_specification(folder, run):
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        about = json.loads(file.metadata()["blindspot"])
        saved = weights(run[1])
        assert set(file.keys()) == set(saved)
        for name in file.keys():  # noqa: SIM118
            assert torch.equal(file.get_tensor(name), saved[name]), name
    assert about["hash"] == run[1].spec.hash
    assert about["spec"] == run[1].spec.identity()
    assert run[1].spec.hash == run[0].name[-8:]


def test_the_card(folder, run):
    text = (folder / "README.md").read_text()
    _, head, body = text.split("---\n", 2)
    (entry,) = yaml.safe_load(head)["model-index"]
    assert entry["name"] == run[0].name
    found = [
        (result["dataset"]["split"], metric["value"])
        for result in entry["results"]
        for metric in result["metrics"]
    ]
    splits = ("validation", "test")
    assert found == [(split, 20.0 - k) for split in splits for k in (1, 2, 3, 8)]
    assert "| test | 8 (beyond training) | 2.2000 | 12 |" in body
    assert "and a penalty on the state's norm" in body
    assert "12,784 parameters" in body
    from huggingface_hub import ModelCard

    results = ModelCard.load(folder / "README.md").data.eval_results
    assert [result.metric_value for result in results] == [value for _, value in found]


def test_a_run_that_was_not_measured(run, tmp_path):
    assert card.exits(tmp_path) == []
    assert "model-index" not in card.metadata(run[0], [])


def test_errors(run, folder, tmp_path):
    finished, job = run
    with pytest.raises(BlindspotError, match="is not empty; give a new folder"):
        export(finished, folder)
    gone = Finished(finished.name, finished.results, tmp_path)
    (tmp_path / "tokens").symlink_to(finished.work / "tokens")
    with pytest.raises(BlindspotError, match="the weights of this run are gone"):
        export(gone, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(BlindspotError, match=re.escape(f"there are {job.name}")):
        export(Finished("toy/a/seed1-00000000", finished.results, finished.work), tmp_path / "n")


# --- with transformers -----------------------------------------------------------------------

extra = pytest.mark.extra


def loaded(folder):
    transformers = pytest.importorskip("transformers")
    load = transformers.AutoModelForCausalLM.from_pretrained
    return load(folder, trust_remote_code=True).eval().requires_grad_(False)


def theirs(cell, **changes):
    """The exported code with weights of ours, for a cell."""
    pytest.importorskip("transformers")
    from blindspot.export import modeling_blindspot as code

    torch.manual_seed(0)
    ours = LoopedLM(toy_model(cell, **changes)).eval().requires_grad_(False)
    for parameter in ours.parameters():
        parameter += 0.3 * torch.rand(parameter.shape)
    known = config(ours.spec)
    fields = {k: known[k] for k in known if k not in ("architectures", "model_type", "auto_map")}
    model = code.BlindspotForCausalLM(code.BlindspotConfig(**fields))
    model.load_state_dict(ours.state_dict())
    return ours, model.eval().requires_grad_(False)


@extra
@pytest.mark.parametrize("cell", CELLS)
def test_logits_are_ours_at_every_exit(cell):
    ours, model = (m.double() for m in theirs(cell))
    ids = torch.randint(37, (2, 12), generator=torch.manual_seed(1))
    states = ours(ids, loops=5)
    exits = model(ids, loops=5, output_exits=True).exits
    for k in range(1, 6):
        expected = ours.logits(states[k], k)
        torch.testing.assert_close(exits[k - 1], expected, rtol=1e-9, atol=1e-9)
        assert torch.equal(model(ids, loops=k).logits, exits[k - 1])
    assert torch.equal(model(ids).logits, exits[2])


@extra
def test_the_folder_loads_with_the_runs_logits(folder, run):
    model = loaded(folder)
    assert model.config.hidden_size == 16
    ours = run[0].model(torch.device("cpu"))
    ids = torch.from_numpy(run[0].tokens.split("test")[:24].astype("int64")).view(2, 12)
    states = ours(ids)
    exits = model(ids, output_exits=True).exits
    for k in (1, 2, 3):
        torch.testing.assert_close(exits[k - 1], ours.logits(states[k], k), rtol=1e-5, atol=1e-4)
    loss = model(ids, labels=ids).loss
    expected = torch.nn.functional.cross_entropy(
        exits[-1][:, :-1].flatten(0, 1), ids[:, 1:].flatten()
    )
    assert loss == pytest.approx(float(expected))


@extra
def test_it_needs_nothing_of_this_package(folder):
    """In an interpreter that refuses to import blindspot."""
    code = (
        "import sys; sys.modules['blindspot'] = None\n"
        "import torch, transformers\n"
        f"m = transformers.AutoModelForCausalLM.from_pretrained({str(folder)!r}, "
        "trust_remote_code=True)\n"
        f"t = transformers.AutoTokenizer.from_pretrained({str(folder)!r}, "
        "trust_remote_code=True)\n"
        "ids = t('the norm of a state', return_tensors='pt').input_ids\n"
        "out = m.generate(ids, loops=2, max_new_tokens=20, do_sample=False)\n"
        "print(out.shape[1] - ids.shape[1], t.decode(ids[0]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[-2] == "20 the norm of a state"


@extra
def test_generation_with_a_number_of_loops(folder):
    """Greedy, by hand, over the last `context` ids."""
    model = loaded(folder)
    start = torch.randint(1, 270, (1, 5), generator=torch.manual_seed(3))
    for loops in (1, 3):
        ids = start
        for _ in range(15):
            logits = model(ids[:, -12:], loops=loops).logits[:, -1]
            ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)
        found = model.generate(start, loops=loops, max_new_tokens=15, do_sample=False)
        assert torch.equal(found, ids)


def counted(model):
    """How often the model's stack ran, from now on."""
    count = SimpleNamespace(n=0)
    model.blocks[0].register_forward_hook(lambda *_: setattr(count, "n", count.n + 1))
    return count


@extra
def test_halting_skips_loops():
    _, model = theirs("perloop-rms", loops=4)
    ids = torch.randint(37, (3, 12), generator=torch.manual_seed(1))
    exits = model(ids, output_exits=True).exits[:, :, -1]
    best = exits.softmax(-1).topk(2).values
    margins = best[..., 0] - best[..., 1]  # (K, B)
    count = counted(model)
    met = set()
    # Between the margins: at one of them rounding, which is a processor's own, would decide.
    edges = sorted([0.0, *margins.flatten().tolist(), 1.0])
    between = [(a + b) / 2 for a, b in pairwise(edges) if b - a > 1e-3]
    assert len(between) > 6
    for threshold in between:
        sure = margins >= threshold
        sure[-1] = True
        first = 1 + sure.int().argmax(0)  # the first loop at which each row is sure
        count.n = 0
        out = model(ids, halt=threshold)
        assert count.n == int(first.max())
        assert torch.equal(out.stopped, first)
        for row, k in enumerate(first.tolist()):
            torch.testing.assert_close(out.logits[row, 0], exits[k - 1, row])
        met.add(count.n)
    assert {1, 4} <= met
    count.n = 0
    never_sure = model(ids, halt=2.0).logits[:, 0]
    torch.testing.assert_close(never_sure, exits[-1])  # all loops
    assert count.n == 4
    count.n = 0
    model.generate(ids[:1], halt=0.0, max_new_tokens=7, do_sample=False)
    assert count.n == 7  # sure at once: one loop a token


@extra
def test_halting_saves_time():
    _, model = theirs("perloop-rms", loops=8, d_model=64, layers=4, context=64)
    ids = torch.randint(37, (1, 48), generator=torch.manual_seed(1))

    def seconds(**how):
        started = time.process_time()
        model.generate(ids, max_new_tokens=24, do_sample=False, **how)
        return time.process_time() - started

    seconds()
    times = {name: min(seconds(halt=h) for _ in range(3)) for name, h in (("all", 2), ("one", 0))}
    print(f"tokens/s with all loops {24 / times['all']:.0f}, with one {24 / times['one']:.0f}")
    assert times["one"] < 0.7 * times["all"]


@extra
def test_padding_on_the_left_changes_nothing():
    _, model = theirs("perloop-raw")
    ids = torch.randint(37, (1, 7), generator=torch.manual_seed(1))
    padded = torch.cat([torch.zeros(1, 4, dtype=torch.long), ids], dim=1)
    mask = torch.tensor([[0] * 4 + [1] * 7])
    found = model(padded, attention_mask=mask).logits[:, 4:]
    torch.testing.assert_close(found, model(ids).logits, rtol=1e-5, atol=1e-5)


@extra
def test_what_it_refuses():
    _, model = theirs("perloop-rms")
    with pytest.raises(ValueError, match="13 tokens; this model reads at most 12"):
        model(torch.zeros(1, 13, dtype=torch.long))
    with pytest.raises(ValueError, match="loops 0: at least 1"):
        model(torch.zeros(1, 3, dtype=torch.long), loops=0)
