"""ls, diff and gc: on a constructed tree, where it is known what each study uses."""

import json
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from rich.table import Table

from blindspot.config.runfiles import RunFiles
from blindspot.config.study import Study
from blindspot.errors import BlindspotError
from blindspot.plan import housekeeping, inventory
from blindspot.plan.diff import ABSENT, differences, shown
from measured import leave
from test_status import HOLD
from toys import ROOT

DEMO = yaml.safe_load((ROOT / "studies/demo.yaml").read_text())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a base config and two studies: `small`, and `over`, which lies on it."""
    base = yaml.safe_load((ROOT / "config.yaml").read_text())
    small = DEMO | {"study": "small", "cells": {"perloop-rms": None, "perloop-raw": None}}
    small["sizes"] = {"0.1m": DEMO["sizes"]["0.1m"]}
    (tmp_path / "studies").mkdir()
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(base, sort_keys=False))
    (tmp_path / "studies/small.yaml").write_text(yaml.safe_dump(small, sort_keys=False))
    # By itself it means nothing: the base has no size of that name.
    cell = {"loss": "terminal", "readout": "rms"}
    over = {"study": "over", "sizes": {"0.1m": None}, "cells": {"terminal-rms": cell}}
    (tmp_path / "studies/over.yaml").write_text(yaml.safe_dump(over, sort_keys=False))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(*names: str, **override: object) -> Study:
    return Study.load(Path("config.yaml"), [Path(f"studies/{n}.yaml") for n in names], override)


def users(study: Study, more: tuple = ()) -> housekeeping.Users:
    return housekeeping.users(study, Path("config.yaml"), more)


def state(study: Study, name: str, size: int = 1000) -> Path:
    folder = study.work / "runs" / name
    folder.mkdir(parents=True)
    (folder / "weights.safetensors").write_bytes(b"x" * size)
    return folder


def finish(study: Study, run, spec: dict | None = None) -> Path:
    folder = study.results / "runs" / run.name
    folder.mkdir(parents=True)
    value = {"name": run.name, "hash": run.spec.hash, "spec": spec or run.spec.identity()}
    (folder / "run.json").write_text(json.dumps(value))
    return folder


def text(table: Table | str) -> str:
    console = Console(width=300)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def paths(pieces: list[housekeeping.Piece]) -> set[Path]:
    return {p.path for p in pieces if not p.kept}


def test_gc_keeps_what_any_study_uses(place: Path):
    """Also what only the pair of `small` and `over` asks for."""
    small, over = load("small"), load("small", "over")
    used = [state(small, small.runs[0].name), state(small, over.runs[0].name)]
    used += [state(small, load().runs[0].name)]  # the base config's
    orphan = state(small, "0.1m/perloop-rms/seed42-00000000")
    strange = state(small, "9m/gone/seed1-11111111")
    for folder in (small.tokens, small.corpus, small.work / "tokens/old-12345678",
                   small.work / "corpora/old-12345678",
                   small.work / "tokenizers/old-12345678"):  # fmt: skip
        folder.mkdir(parents=True)
        (folder / "data").write_bytes(b"y" * 500)
    found = housekeeping.unused(small, users(small), results=False)
    assert paths(found) == {
        orphan, strange, small.work / "tokens/old-12345678", small.work / "corpora/old-12345678",
        small.work / "tokenizers/old-12345678",
    }  # fmt: skip
    assert {p.kind: p.bytes for p in found} == {
        "states of runs": 1000, "tokens": 500, "corpora": 500, "tokenizers": 500
    }  # fmt: skip
    known = users(small)
    listed = text(housekeeping.collect_garbage(small, known, results=False, delete=False))
    assert "all together" in listed and "3.5 kB" in listed
    assert orphan.exists()  # dry
    housekeeping.collect_garbage(small, known, results=False, delete=True)
    assert not orphan.exists() and not strange.exists() and not strange.parent.parent.exists()
    assert all(folder.exists() for folder in used) and small.tokens.exists()
    assert (small.work / "runs").exists() and (small.work / "tokens").exists()
    assert housekeeping.unused(small, users(small), results=False) == []


def test_a_study_elsewhere_is_kept_when_it_is_named(place: Path):
    other = place / "mine.yaml"
    other.write_text(yaml.safe_dump({"study": "mine", "grid": {"seeds": [7]}}))
    small, mine = load("small"), Study.load(Path("config.yaml"), [other])
    folder = state(small, mine.runs[0].name)
    assert paths(housekeeping.unused(small, users(small), False)) == {folder}
    assert housekeeping.unused(small, users(small, ([other],)), False) == []


def test_gc_finds_what_a_killed_save_left_in_a_run_that_is_used(place: Path):
    """Hidden files as large as a checkpoint; those of a live trainer are its own, and results that
    may be in the writing are left alone."""
    small = load("small")
    run = small.runs[0]
    folder, results = state(small, run.name), finish(small, run)
    half = folder / ".step-00000050.0123abcd.safetensors"
    half.write_bytes(b"x" * 4000)
    (folder / ".mine").write_text("")
    (folder / "step-00000050.safetensors").write_bytes(b"")
    old, new = (results / f".run.{n}.json" for n in ("0123abcd", "89abcdef"))
    for path in (old, new):
        path.write_text("{")
    then = time.time() - 2 * housekeeping.WRITING
    os.utime(old, (then, then))
    assert paths(housekeeping.unused(small, users(small), results=False)) == {half}
    assert paths(housekeeping.unused(small, users(small), results=True)) == {half, old}
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        assert housekeeping.unused(small, users(small), results=False) == []
    finally:
        other.kill()
        other.wait()
    table = housekeeping.collect_garbage(small, users(small), results=True, delete=True)
    assert "half-written files" in text(table) and "4.0 kB" in text(table)
    assert not half.exists() and not old.exists() and new.exists()
    assert (folder / "weights.safetensors").exists()


def test_gc_leaves_what_is_held(place: Path):
    small = load("small")
    folder = state(small, "0.1m/perloop-rms/seed42-00000000")
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        (piece,) = housekeeping.unused(small, users(small), results=False)
        assert f"pid {other.pid}" in piece.kept
        table = housekeeping.collect_garbage(small, users(small), results=False, delete=True)
        assert folder.exists() and "no: held by" in text(table)
        # Whoever takes the lock between the look and the deletion is not robbed either.
        assert housekeeping._delete(piece) == "a process holds its lock"
        assert folder.exists()
    finally:
        other.kill()
        other.wait()
    housekeeping.collect_garbage(small, users(small), results=False, delete=True)
    assert not folder.exists()


def test_a_holder_on_another_machine_counts_as_alive(place: Path):
    small = load("small")
    folder = state(small, "0.1m/perloop-rms/seed42-00000000")
    (folder / "lock").write_text(json.dumps({"host": f"not-{socket.gethostname()}", "pid": 1}))
    (piece,) = housekeeping.unused(small, users(small), results=False)
    assert "held by" in piece.kept


def test_results_go_only_when_asked(place: Path):
    small = load("small")
    kept = finish(small, small.runs[0])
    leave(small, small.runs[0].name)
    stale = [kept / at for at in ("measure-00000000", "measure/exits-00000000")]
    stale.append(kept / "measure/all-00000000.json")
    for path in stale:
        path.mkdir()
    old = load("small", training={"steps": 7})
    gone = finish(small, old.runs[0])
    timing = small.results / "throughput/0.1m-00000000.csv"
    timing.parent.mkdir()
    timing.write_text("a\n")
    timing.with_suffix(".json").write_text("{}")
    today = timing.parent / f"0.1m-{small.throughput_hash('0.1m')}.csv"
    today.write_text("a\n")
    assert housekeeping.unused(small, users(small), results=False) == []
    housekeeping.collect_garbage(small, users(small), results=True, delete=True)
    assert not any(p.exists() for p in (*stale, gone, timing, timing.with_suffix(".json")))
    assert today.exists() and (kept / "run.json").exists()
    assert RunFiles(small).is_measured(small.runs[0].name)


def test_nothing_is_deleted_while_a_study_file_is_unreadable(place: Path):
    (place / "studies/bad.yaml").write_text("sizes: {44m: {d_model: many}}\n")
    small = load("small")
    folder = state(small, "0.1m/perloop-rms/seed42-00000000")
    known = users(small)
    assert list(known.broken) == ["studies/bad.yaml"]
    with pytest.raises(BlindspotError, match=r"studies/bad\.yaml.*repair"):
        housekeeping.collect_garbage(small, known, results=False, delete=True)
    assert folder.exists()
    assert housekeeping.used(known, "0.1m/x/seed1-00000000").startswith("unknown")


def test_what_vanishes_meanwhile_is_as_young_as_can_be(tmp_path: Path):
    before = time.time()
    assert before <= inventory.modified(tmp_path / "gone") <= time.time()


def test_ls_tells_size_age_state_and_users(place: Path):
    small = load("small")
    folder = state(small, small.runs[0].name, 123_456)
    os.utime(folder / "weights.safetensors", (1e9, 1e9))
    os.utime(folder, (1e9, 1e9))
    finish(small, small.runs[0])
    state(small, "0.1m/perloop-rms/seed42-00000000")
    lines = text(housekeeping.listing(small, users(small))).splitlines()
    (weights,) = [line for line in lines if "123.5 kB" in line and " weights " in line]
    assert small.runs[0].name in weights and weights.rstrip().endswith("small")
    assert " d " in weights  # the age: many days
    (orphan,) = [line for line in lines if "seed42-00000000" in line]
    assert orphan.rstrip().endswith("not used")
    assert any("finished, 0 measurements" in line for line in lines)


# --- diff ----------------------------------------------------------------------------------------


def test_differences_are_dotted_and_whole():
    old = {"a": {"b": 1, "c": [1, 2]}, "d": None, "e": 0.001}
    new = {"a": {"b": 2, "c": [1, 3]}, "d": {"kind": "x"}, "e": 1e-3, "f": True}
    found = differences(old, new)
    assert found == {
        "a.b": (1, 2), "a.c": ([1, 2], [1, 3]), "d": (None, {"kind": "x"}), "f": (ABSENT, True)
    }  # fmt: skip
    assert shown(found) == (
        'a.b 1 -> 2; a.c [1, 2] -> [1, 3]; d null -> {"kind": "x"}; f (none) -> true'
    )
    assert differences(new, new) == {}


def test_runs_are_found_by_hash_name_or_path(place: Path):
    small = load("small")
    first = small.runs[0]
    for asked in (first.spec.hash, first.spec.hash[:6], first.name, f"x/runs/{first.name}/"):
        assert housekeeping.find(small, asked) == (first.name, first.spec.identity())
    with pytest.raises(BlindspotError, match="means 3 runs"):
        housekeeping.find(small, "0.1m/perloop-rms/")
    with pytest.raises(BlindspotError, match="no run of that name"):
        housekeeping.find(small, "zzz")


def test_diff_shows_only_what_differs(place: Path):
    small = load("small")
    rms, raw = small.runs[0], next(r for r in small.runs if r.cell == "perloop-raw")
    table = housekeeping.compare(small, rms.spec.hash, raw.spec.hash)
    rows = [line.split() for line in text(table).splitlines()[1:]]
    assert rows == [["model.readout", '"rms"', '"raw"']]
    assert "same specification" in text(housekeeping.compare(small, rms.name, rms.spec.hash))


def test_a_state_without_results_is_known_by_its_checkpoint(place: Path):
    """Its specification stands in the file's header, which is read without torch."""
    small, old = load("small"), load("small", training={"steps": 7}).runs[0]
    folder = small.work / "runs" / old.name
    folder.mkdir(parents=True)
    meta = json.dumps({"run": old.spec.hash, "spec": old.spec.identity()})
    header = json.dumps({"__metadata__": {"blindspot": meta}}).encode()
    (folder / "step-00000005.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    (folder / "step-00000006.safetensors").write_bytes(b"\x01")  # damaged: passed over
    assert inventory.saved_spec(folder) == old.spec.identity()
    table = text(housekeeping.compare(small, old.spec.hash, small.runs[0].spec.hash))
    assert [line.split() for line in table.splitlines()[1:]] == [["training.steps", "7", "300"]]


def test_the_real_trainers_checkpoint_is_read_too(tmp_path: Path):
    torch = pytest.importorskip("torch")
    from blindspot import tensorfile

    spec = load_demo().runs[0].spec
    path = tmp_path / "weights.safetensors"
    tensorfile.write(path, {"a": torch.zeros(2)}, {"run": spec.hash, "spec": spec.identity()})
    assert inventory.saved_spec(tmp_path) == spec.identity()


def load_demo() -> Study:
    return Study.load(ROOT / "config.yaml", [ROOT / "studies/demo.yaml"])


def test_bytes_are_in_powers_of_a_thousand():
    assert [housekeeping.bytes_of(n) for n in (0, 999, 1500, 2_500_000, 3_200_000_000, 5e12)] == [
        "0 B", "999 B", "1.5 kB", "2.5 MB", "3.2 GB", "5.0 TB"
    ]  # fmt: skip
