"""The verbs that write what others read."""

from pathlib import Path
from typing import Annotated

import typer

from blindspot.config.overlays import laid_over
from blindspot.config.study import Study
from blindspot.config.yamltext import from_json

app = typer.Typer()


@app.command()
def crate(
    out: Annotated[Path, typer.Argument(help="New folder, or new file that ends in .zip.")],
    base: Annotated[Path, typer.Option(help="The study that study files differ from.")] = Path(
        "config.yaml"
    ),
    configfile: Annotated[
        list[Path] | None, typer.Option(help="A study file over it; may be repeated.")
    ] = None,
    override: Annotated[str, typer.Option(help="Further settings as JSON.")] = "{}",
    checkout: Annotated[Path, typer.Option(help="Where the workflow and its code are.")] = Path(),
) -> None:
    """Archive a study as a Workflow Run RO-Crate, from which anybody redraws its figures."""
    from blindspot.share.crate import write

    values = laid_over(base, configfile or [], from_json(override, "--override"))
    print(write(Study.of(values, str(base)), values, checkout, out))


@app.command()
def croissant(
    collected: Annotated[Path, typer.Argument(help="results/STUDY/collected.")],
    url: Annotated[str, typer.Option(help="Where the data will be published.")],
) -> None:
    """Write croissant.json beside the collected CSVs: their digests, columns, types, meanings."""
    from blindspot.share.croissant import write

    print(write(collected, url))
