"""`blindspot audit`: find the model, look at it, write the folder, say the verdict."""

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from blindspot.audit import output
from blindspot.audit.examine import audit
from blindspot.audit.observe import Settings
from blindspot.audit.options import Options
from blindspot.audit.sources import find


def run(name: str, options: Options, settings: Settings, out: Path) -> Path:
    """Audit the model of that name; the folder that was written. Raises `BlindspotError`."""
    subject = find(name, options)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as shown:
        task = shown.add_task(f"auditing {subject.model.name}", total=1.0)
        report, seen = audit(
            subject.model,
            subject.stream,
            settings,
            subject.text,
            subject.source,
            lambda part: shown.advance(task, part),
        )
    folder = out / output.folder_name(subject.model.name)
    output.write(report, seen, folder)
    output.say(report, folder)
    return folder


def settings(quick: bool, tokens: int | None, length: int | None, beyond: int | None) -> Settings:
    """The settings that the command line names; what it does not name is as in `--quick` or not."""
    base = Settings.quick() if quick else Settings()
    return Settings(
        tokens=tokens or base.tokens,
        length=length or base.length,
        powers=base.powers,
        beyond=base.beyond if beyond is None else beyond,
    )
