"""What a person sees of a study: a plugin of Snakemake's for its messages (`--logger blindspot`).

Snakemake tells of every job and its reasons. For a study that is hundreds of lines, some of them
thousands of characters long, around the few that matter: those that the study says itself, warnings
and errors, and how far it is. With -p (--printshellcmds) or --verbose all of Snakemake's own
messages are there, formatted by itself; the log below .snakemake/log/ always has them.
"""

import re
import shutil
import sys
import textwrap
import threading
from contextlib import suppress
from logging import INFO, WARNING, LogRecord
from pathlib import Path
from typing import TextIO

import snakemake  # type: ignore[import-untyped]
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from blindspot.plan.progress import last_error

#: How messages begin that are Snakemake's own and say nothing about the study. What Snakemake says
#: else is shown.
NOISE = re.compile(
    "Assuming unrestricted|Building DAG|Using shell|Group jobs|Conda env|Singularity|Select jobs"
    "|Execute |Reasons:|Some jobs were triggered|Rules with|Elapsed time"
    "|Complete log|[0-9]+ jobs have|Exiting because a job|Shutting down|Touching output"
)
#: In red, and yellow.
COLORS = {"ERROR": "\033[31m", "CRITICAL": "\033[31m", "WARNING": "\033[33m"}
RESET, CLEAR_LINE = "\033[0m", "\r\033[K"
#: Longer lines are wrapped.
LONGEST = 160
FOLDER = Path(snakemake.__file__).parent


class LogHandler(LogHandlerBase):
    """Writes to stderr, from whatever thread. `show` keeps one line below all others."""

    #: The one of this process, if Snakemake was told to use it.
    current: "LogHandler | None" = None

    def __post_init__(self) -> None:
        settings = self.common_settings
        self.stream: TextIO = sys.stdout if settings.stdout else sys.stderr
        self.is_terminal = self.stream.isatty()
        self.detailed = bool(settings.printshellcmds or settings.verbose or settings.debug_dag)
        self._line = self._jobs = ""
        self._writing = threading.Lock()
        LogHandler.current = self

    @property
    def writes_to_stream(self) -> bool:
        return True

    @property
    def writes_to_file(self) -> bool:
        return False

    @property
    def has_filter(self) -> bool:
        """Snakemake's own filter does where its own messages are asked for."""
        return not self.detailed

    @property
    def has_formatter(self) -> bool:
        return not self.detailed

    @property
    def needs_rulegraph(self) -> bool:
        return False

    def emit(self, record: LogRecord) -> None:
        text = self.format(record) if self.detailed else said(record)
        if getattr(record, "event", None) == LogEvent.RUN_INFO and not self.detailed:
            # A dry run has it before and after.
            text, self._jobs = ("" if text == self._jobs else text), text
        if not text or text == "None":
            return
        if self.is_terminal and not self.common_settings.nocolor:
            color = COLORS.get(record.levelname, "")
            text = f"{color}{text}{RESET if color else ''}"
        self._write(f"{text}\n")

    def show(self, line: str) -> None:
        """Replace the line at the bottom; on a terminal only. Empty: take it away."""
        if self.is_terminal:
            width = shutil.get_terminal_size().columns - 1
            line = line if len(line) <= width else f"{line[: width - 3]}..."
            if line != self._line:
                self._line = line
                self._write("")

    def close(self) -> None:
        self.show("")
        super().close()

    def _write(self, text: str) -> None:
        # A terminal that is gone is no reason to stop.
        with self._writing, suppress(OSError, ValueError):
            clear = CLEAR_LINE if self.is_terminal else ""
            self.stream.write(f"{clear}{text}{self._line}")
            self.stream.flush()


def said(record: LogRecord) -> str:
    """What a message is to a person; empty where it is nothing."""
    event, values = getattr(record, "event", None), record.__dict__
    if event == LogEvent.JOB_ERROR:
        return failure(values["rule_name"], values["log"], values["rule_msg"])
    if event == LogEvent.RUN_INFO:
        jobs = [f"{n} {rule}" for rule, n in values["stats"].items() if rule != "total"]
        return wrapped(f"Jobs: {', '.join(jobs)}")
    if record.levelno < INFO or (event and record.levelno < WARNING):
        return ""
    text = record.getMessage().strip()
    if text.startswith("This was a dry-run"):
        return "Nothing was started (-n). To see every job and its command: -p"
    is_noise = Path(record.pathname).is_relative_to(FOLDER) and NOISE.match(text)
    return "" if is_noise else wrapped(text)


def failure(rule: str, logs: list[str], message: str | None = None) -> str:
    """A failed job: what it said last, and where the rest is."""
    reason = next(filter(None, (last_error(Path(log)) for log in logs)), message or "")
    lines = [f"failed: {rule}: {reason}" if reason else f"failed: {rule}"]
    return wrapped("\n".join([*lines, *(f"  log: {log}" for log in logs)]))


def wrapped(text: str) -> str:
    """The same in lines of at most `LONGEST` characters; a word (a path) stays whole."""
    lines: list[str] = []
    for line in text.splitlines():
        cut = textwrap.wrap(line, LONGEST, break_long_words=False, break_on_hyphens=False)
        lines += cut if len(line) > LONGEST else [line]
    return "\n".join(lines)
