"""The progress of a long read: a bar on a terminal, lines in a log, and all bytes of a build."""

import os
import pty
import subprocess
import sys
from contextlib import nullcontext

import pytest

from blindspot.data import meter as meter_module
from blindspot.data.meter import meter
from test_tokens import TEXTS, make

pytest.importorskip("rich")


def test_in_a_log_a_line_now_and_then(monkeypatch, capsys):
    clock = iter([0.0, 1.0, 4.0, 11.5, 12.0, 24.0])
    monkeypatch.setattr(meter_module.time, "monotonic", lambda: next(clock))
    shown = meter_module.Meter(type("Bar", (), {
        "disable": True, "add_task": lambda *a, **k: 0, "update": lambda *a, **k: None
    })())  # fmt: skip
    shown.start("train", 40_000_000)
    for _ in range(4):
        shown.add(10_000_000)
    # A line when ten seconds have passed since the last one; speed since the start.
    assert capsys.readouterr().err.splitlines() == [
        "train: 20 of 40 MB, 1.9 MB/s",
        "train: 40 of 40 MB, 1.7 MB/s",
    ]


class Recorder:
    def __init__(self):
        self.seen = {}

    def start(self, name, total):
        self.seen[name] = [total, 0]

    def add(self, count):
        self.seen[[*self.seen][-1]][1] += count


def test_a_build_counts_every_byte_of_every_split(tmp_path, monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(meter_module, "meter", lambda: nullcontext(recorder))
    texts = {split: text.replace("\r\n", "\n") for split, text in TEXTS.items()}
    make(tmp_path, texts=texts)
    sizes = {split: len(text.encode()) for split, text in texts.items()}
    expected = {"tokenizer": sizes["train"], **sizes}
    assert recorder.seen == {name: [size, size] for name, size in expected.items()}


def test_on_a_terminal_a_bar():
    program = (
        "from blindspot.data.meter import meter\n"
        "with meter() as shown:\n"
        "    shown.start('train', 2_000_000)\n"
        "    shown.add(2_000_000)\n"
    )
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    subprocess.run([sys.executable, "-c", program], stderr=theirs, check=True, env=environment)
    os.close(theirs)
    seen = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "train" in seen and "2.0/2.0 MB" in seen


def test_a_pipe_sees_no_bar(capsys):
    with meter() as shown:
        shown.start("train", 10)
        shown.add(10)
    assert not capsys.readouterr().err.strip()
