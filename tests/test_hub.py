"""The hub by name, through its real client against a local server; faults E-06.

Each test is a process of its own, because the client reads its settings when it is imported.
"""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from blindspot.config.study import Study
from hub_server import served
from test_corpus import REVISION, layout
from test_encode import others
from toys import ROOT, WIKITEXT

pytest.importorskip("datasets")
pytest.importorskip("pyarrow")

A, B = "a" * 40, "b" * 40
TOY = {"kind": "hub", "name": "Salesforce/wikitext", "config": "toy", "revision": A}
PROGRAM = """
import datasets, json, pathlib, sys
from pydantic import TypeAdapter
from blindspot.data import corpus
from blindspot.errors import BlindspotError
from blindspot.config.dataspec import Corpus
for number, (spec, cache) in enumerate(zip(json.loads(sys.argv[1]), json.loads(sys.argv[3]))):
    datasets.config.HF_DATASETS_CACHE = cache or datasets.config.HF_DATASETS_CACHE
    try:
        out = pathlib.Path(sys.argv[2], str(number))
        corpus.fetch(TypeAdapter(Corpus).validate_python(spec), out)
        print(next(corpus.documents(out, "train")).strip(), corpus.read(out)["commit"])
    except BlindspotError as error:
        print(error)
"""


def repository(root, texts, repo="datasets/Salesforce/wikitext"):
    """Commits of a data set: {commit: a word of its text}."""
    for commit, word in texts.items():
        rows = {split: [f"{word} {split}", ""] for split in ("train", "validation", "test")}
        (root / repo / commit).mkdir(parents=True)
        layout(root / repo / commit, rows)
    return root


def process(folder, specs, hub=None, prefix=(), caches=()):
    """Start a process that fetches corpora into `folder`/0, 1, ...; without `hub`, offline.

    `caches` are the folders where the first of them are unpacked, instead of HF_HOME.
    """
    values = {"HF_HOME": str(folder / "home"), "TQDM_DISABLE": "1"}
    values |= {"HF_ENDPOINT": hub.url} if hub else {"HF_HUB_OFFLINE": "1"}
    unpacked = [str(cache) for cache in caches] + [None] * (len(specs) - len(caches))
    arguments = [json.dumps(specs), str(folder), json.dumps(unpacked)]
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", PROGRAM, *arguments],
        env=os.environ | values, cwd=folder, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def fetch(folder, specs, hub=None, **named):
    """What each spec led to: the first document and the commit, or the error."""
    out, _ = process(folder, specs, hub, **named).communicate(timeout=120)
    lines = out.splitlines()
    assert len(lines) == len(specs)
    return lines


def test_only_fetching_knows_the_hub():
    """Training, measuring and publishing never ask: nothing there imports a client of it."""
    clients = {"datasets", "huggingface_hub"}
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if clients & {name.partition(".")[0] for name in names}:
                found.add(path.name)
    assert found == {"hub.py", "tokenizer.py"}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A folder with the cache that a real download of commit A left."""
    folder = tmp_path_factory.mktemp("filled")
    with served(repository(folder / "root", {A: "alpha", B: "beta"})) as hub:
        assert fetch(folder, [TOY], hub) == [f"alpha train {A}"]
    return folder


@pytest.fixture
def filled(original, tmp_path):
    shutil.copytree(original, tmp_path / "copy", symlinks=True)
    return tmp_path / "copy"


def test_by_name_the_commit_is_asked_for_and_recorded(tmp_path):
    """The files of this config alone are fetched, each once, however the rows are read later."""
    with served(repository(tmp_path / "root", {A: "alpha", B: "beta"})) as hub:
        streamed = TOY | {"limit": {"documents": 1}}
        specs = [TOY, TOY | {"revision": B}, TOY | {"revision": "c" * 40}]
        found = fetch(tmp_path, [*specs, streamed], hub)
        assert found[:2] == [f"alpha train {A}", f"beta train {B}"]
        assert "Revision 'cccc" in found[2] and "Three ways out" in found[2]
        assert found[3] == found[0]
        gets = [path for method, path in hub.asked if method == "GET" and "parquet" in path]
        assert (
            sorted(set(gets))
            == sorted(gets[:6])
            == sorted(
                f"/datasets/Salesforce/wikitext/resolve/{commit}/toy/{split}-00000-of-00001.parquet"
                for commit in (A, B)
                for split in ("train", "validation", "test")
            )
        )


def test_offline_the_cache_serves_its_own_commit_alone(filled):
    """`datasets` takes the newest in its cache, whatever commit is asked for."""
    kept, downloaded = next(filled.glob("home/hub/*/snapshots/*")), "d" * 40
    shutil.copytree(kept, kept.parent / downloaded, symlinks=True)
    ok, *others, path, known = fetch(
        filled,
        [
            TOY,
            TOY | {"revision": B},
            TOY | {"revision": B, "limit": {"documents": 1}},
            TOY | {"path": str(kept)},
            TOY | {"revision": downloaded},
        ],
    )
    assert ok == f"alpha train {A}" and path == "alpha train None"
    for message in others:
        assert f"cache has revision {A} where corpus.revision {B}" in message
        assert "Three ways out" in message
    assert f"{kept.parent / downloaded}: set corpus.path to that" in known


def test_a_download_that_was_cut_off_goes_on(tmp_path):
    with served(repository(tmp_path / "root", {A: "alpha"})) as hub:
        hub.broken = True
        assert "Three ways out" in fetch(tmp_path, [TOY], hub)[0]
        hub.broken = False
        assert fetch(tmp_path, [TOY], hub) == [f"alpha train {A}"]


def _cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES = {
    "cut": lambda made: _cut(made / "wikitext-train.arrow"),
    "gone": lambda made: (made / "wikitext-train.arrow").unlink(),
    "description cut": lambda made: _cut(made / "dataset_info.json"),
    "half made": lambda made: made.rename(made.with_name(f"{A}.incomplete")),
    "rows lost": lambda made: shutil.copy(
        made.parent / "short" / "wikitext-train.arrow", made / "wikitext-train.arrow"
    ),
}


def test_a_damaged_cache_is_told(filled):
    datasets = pytest.importorskip("datasets")
    caches = []
    for damage, spoil in DAMAGES.items():
        cache = filled / "caches" / damage
        shutil.copytree(filled / "home" / "datasets", cache)
        made = next(cache.rglob(A))
        if damage == "rows lost":
            short = datasets.Dataset.from_dict({"text": ["alpha train"]})
            with datasets.arrow_writer.ArrowWriter(
                path=str(filled / "short.arrow"), features=short.features
            ) as writer:
                writer.write_table(short.data.table)
                writer.finalize()
            shutil.copy(filled / "short.arrow", made / "wikitext-train.arrow")
        else:
            spoil(made)
        caches.append(cache)
    for damage, message in zip(DAMAGES, fetch(filled, [TOY] * 5, caches=caches), strict=True):
        expected = {"half made": "incomplete where", "rows lost": "1 rows where"}
        assert expected.get(damage, "seems to be damaged") in message, (damage, message)
        assert "Three ways out" in message


def test_a_cache_that_cannot_be_written_is_told_and_has_a_way_out(filled):
    if os.getuid() == 0:  # who owns everything is stopped by no mode, but for this
        if not shutil.which("setpriv"):
            pytest.skip("root, and no setpriv")
        prefix = ["setpriv", "--bounding-set=-dac_override"]
    else:
        prefix = []
    home = filled / "home"
    for path in [*home.rglob("*"), home]:
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~0o222)
    try:
        snapshot = next(home.glob("hub/*/snapshots/*"))
        path = TOY | {"path": str(snapshot)}
        here, own = home / "datasets", filled / "own"
        *refused, found = fetch(filled, [TOY, path, path], prefix=prefix, caches=[here, here, own])
        for message in refused:
            assert "The cache must be writable" in message and "HF_DATASETS_CACHE" in message
        assert found == "alpha train None"
    finally:
        for path in [home, *home.rglob("*")]:
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o200)


def test_two_at_once_and_a_lock_whose_holder_dies(tmp_path):
    with served(repository(tmp_path / "root", {A: "alpha"})) as hub:
        both = [process(tmp_path, [TOY], hub) for _ in range(2)]
        assert [one.communicate(timeout=120)[0] for one in both] == [f"alpha train {A}\n"] * 2
        names = sorted(path.name for path in (tmp_path / "0").iterdir())
        assert names == ["corpus.json", "test.jsonl", "train.jsonl", "validation.jsonl"]
        locks = list((tmp_path / "home" / "datasets").glob("*.lock"))
        program = (
            "import fcntl, sys, time\n"
            "handles = [open(path, 'a') for path in sys.argv[1:]]\n"
            "[fcntl.flock(handle, fcntl.LOCK_EX) for handle in handles]\n"
            "print('held', flush=True); time.sleep(600)\n"
        )
        holder = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, locks)], stdout=subprocess.PIPE, text=True
        )
        assert locks and holder.stdout.readline() == "held\n"
        waiting = process(tmp_path, [TOY], hub)
        time.sleep(4)
        assert waiting.poll() is None
        os.kill(holder.pid, signal.SIGKILL)
        holder.communicate()
        assert waiting.communicate(timeout=120)[0] == f"alpha train {A}\n"


def test_a_tokenizer_by_name_and_then_from_the_cache(tmp_path):
    repo = tmp_path / "root" / "models" / "some" / "model" / A
    repo.mkdir(parents=True)
    made = others(repo, "gpt2")
    program = (
        "import sys, pathlib; from blindspot.data import tokenizer\n"
        "from blindspot.config.dataspec import HubTokenizer\n"
        "for revision in sys.argv[1:]:\n"
        "    spec = HubTokenizer(kind='hub', name='some/model', revision=revision, vocab_size=9)\n"
        "    try: tokenizer.fetch(spec, pathlib.Path('out', revision)); print('ok')\n"
        "    except Exception as error: print(type(error).__name__, error)\n"
    )

    def run(**environment):
        done = subprocess.run(
            [sys.executable, "-c", program, A, B],
            env=os.environ | {"HF_HOME": str(tmp_path / "home")} | environment,
            cwd=tmp_path, check=True, capture_output=True, text=True,
        )  # fmt: skip
        return done.stdout.splitlines()

    with served(tmp_path / "root") as hub:
        online = run(HF_ENDPOINT=hub.url)
    (tmp_path / "out" / A).unlink()
    for found in (online, run(HF_HUB_OFFLINE="1")):
        assert found[0] == "ok" and len(found) == 2
        assert found[1].startswith(f"BlindspotError tokenizer.name some/model, revision {B}")
        assert "Three ways out" in found[1]
    assert (tmp_path / "out" / A).read_text() == made.read_text()


@pytest.mark.skipif(not WIKITEXT.is_dir(), reason="no WikiText here")
def test_the_hub_name_and_the_path_give_the_same_rows(tmp_path):
    """Real WikiText by `path` and by name; `load_dataset` itself agrees with both."""
    named = Study.load(ROOT / "config.yaml").config.corpus.model_dump()
    named |= {"config": "wikitext-2-v1"}
    by_name, by_path = (
        Study.load(ROOT / "config.yaml", override={"corpus": named | where}).config.corpus
        for where in ({}, {"path": str(WIKITEXT)})
    )
    assert by_name.path is None and by_path.path == str(WIKITEXT)
    assert by_path.identity() == by_name.identity()
    repo = tmp_path / "root" / "datasets" / "Salesforce" / "wikitext"
    repo.mkdir(parents=True)
    (repo / REVISION).symlink_to(WIKITEXT)
    specs = [by_path.model_dump(), by_name.model_dump()]
    with served(tmp_path / "root") as hub:
        found = fetch(tmp_path, specs, hub)
        assert [line.rpartition(" ")[2] for line in found] == ["None", REVISION]
        program = (
            "import datasets, json, sys; name, config, revision = sys.argv[1:]\n"
            "rows = datasets.load_dataset(name, config, revision=revision)\n"
            "for split in ('train', 'validation', 'test'):\n"
            "    with open('rows-' + split, 'w') as out:\n"
            "        json.dump(list(rows[split]['text']), out)\n"
        )
        subprocess.run(
            [sys.executable, "-c", program, by_name.name, by_name.config, by_name.revision],
            env=os.environ | {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.url},
            cwd=tmp_path, check=True,
        )  # fmt: skip
    counts = json.loads((tmp_path / "0" / "corpus.json").read_text())["splits"]
    assert counts["test"]["rows"] == 4358 and counts["train"]["rows"] == 36_718
    for split in counts:
        written = (tmp_path / "0" / f"{split}.jsonl").read_bytes()
        assert written == (tmp_path / "1" / f"{split}.jsonl").read_bytes()
        rows = json.loads(Path(tmp_path, f"rows-{split}").read_text())
        assert len(rows) == counts[split]["rows"]
        documents = [json.loads(line)["text"] for line in written.splitlines()]
        assert documents == [row for row in rows if row.strip()]
