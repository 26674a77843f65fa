"""A study as a Workflow Run RO-Crate: what ran, with which code, on what, giving what.

https://w3id.org/ro/wfrun/workflow/0.5. Needs `rocrate` (the extra `share`).
"""

import shutil
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from blindspot.config.study import Study
from blindspot.errors import BlindspotError
from blindspot.files import read_json
from blindspot.share.archive import lay_out

PROFILES = (
    "https://w3id.org/ro/wfrun/process/0.5",
    "https://w3id.org/ro/wfrun/workflow/0.5",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0",
)
LICENSE = "https://spdx.org/licenses/MIT"


def write(study: Study, values: dict[str, Any], checkout: Path, out: Path) -> Path:
    """Write the crate into the new folder `out`, or as one file where that ends in `.zip`."""
    try:
        import rocrate.rocrate  # noqa: F401
    except ImportError:
        raise BlindspotError(
            "rocrate is not installed; run: .venv/bin/pip install 'rocrate>=0.13'"
        ) from None
    if out.exists():
        raise BlindspotError(f"{out}: is there already; name another, or take it away")
    unfinished = out.with_name(f".{out.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        lay_out(study, values, checkout, unfinished)
        describe(study, unfinished)
        if out.suffix == ".zip":
            shutil.make_archive(str(out.with_suffix("")), "zip", unfinished)
        else:
            unfinished.rename(out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return out


def describe(study: Study, folder: Path) -> None:
    """Write `ro-crate-metadata.json` of the archive in `folder`."""
    from rocrate.model.contextentity import ContextEntity
    from rocrate.model.person import Person
    from rocrate.rocrate import ROCrate

    name = study.config.study
    crate = ROCrate(gen_preview=False, version="1.1")
    crate.name = f"blindspot study {name}"
    crate.description = (
        f"Results of the study {name} of the readout blind spot in looped language models: runs, "
        f"measurements, tables, figures, and the workflow and code that made them."
    )
    crate.datePublished = datetime.now(UTC)
    crate.license = crate.add(ContextEntity(crate, LICENSE, {
        "@type": "CreativeWork", "name": "MIT License", "url": LICENSE,
    }))  # fmt: skip
    profiles = [
        crate.add(ContextEntity(crate, url, {
            "@type": "CreativeWork", "name": url.split("/")[-2], "version": url.split("/")[-1],
        }))
        for url in PROFILES
    ]  # fmt: skip
    crate.root_dataset["conformsTo"] = profiles

    workflow = crate.add_workflow(
        folder / "workflow/Snakefile", "workflow/Snakefile", main=True, lang="snakemake"
    )
    workflow["name"] = "blindspot"
    workflow["version"] = version("blindspot")
    workflow["license"] = crate.license
    author = crate.add(Person(crate, "#developers", {"name": "The blindspot developers"}))
    workflow["creator"] = author
    config = crate.add_file(
        folder / "config.yaml", "config.yaml",
        properties={"name": "config of the study", "encodingFormat": "application/yaml"},
    )  # fmt: skip
    results = Path("results", name)
    made: list[Any] = []
    kinds = {".csv": "text/csv", ".pdf": "application/pdf", ".png": "image/png",
             ".md": "text/markdown", ".html": "text/html", ".json": "application/json"}  # fmt: skip
    inside = [p for p in sorted((folder / results).rglob("*")) if p.is_file()]
    for path in inside:
        place = path.relative_to(folder)
        if path.suffix in kinds and "runs" not in place.parts:
            made.append(crate.add_file(path, str(place), properties={
                "name": path.name, "encodingFormat": kinds[path.suffix],
                "contentSize": str(path.stat().st_size),
            }))  # fmt: skip
    starts, ends = [], []
    for run in study.runs:
        place = results / "runs" / run.name
        if not (folder / place / "run.json").exists():
            continue
        record = read_json(folder / place / "run.json")
        known = record["provenance"]
        starts.append(known["started"])
        ends.append(known["finished"])
        output = crate.add_directory(folder / place, str(place), properties={
            "name": f"results of run {run.name}",
        })  # fmt: skip
        made.append(output)
        commit = known.get("commit") or "unknown"
        software = crate.add(ContextEntity(crate, f"#blindspot-{commit[:12]}", {
            "@type": "SoftwareApplication", "name": "blindspot",
            "softwareVersion": f"{known['versions'].get('blindspot', '')} ({commit})",
            "softwareRequirements": [f"{k} {v}" for k, v in known["versions"].items() if v],
        }))  # fmt: skip
        crate.add_action(
            software, identifier=f"#train-{run.name}", object=[config], result=[output],
            properties={
                "name": f"training of {run.name}",
                "description": f"{record['steps']} steps on {known['device']}, "
                f"{known['precision']}; {known.get('command', '')}",
                "startTime": known["started"], "endTime": known["finished"], "agent": author,
                "actionStatus": "http://schema.org/CompletedActionStatus",
            },
        )  # fmt: skip
    if not starts:
        raise BlindspotError(f"{study.results}: no finished run to archive")
    crate.add_action(
        workflow, identifier="#study", object=[config], result=made,
        properties={
            "name": f"study {name}: {len(starts)} of {len(study.runs)} runs",
            "startTime": min(starts), "endTime": max(ends), "agent": author,
            "actionStatus": "http://schema.org/CompletedActionStatus",
        },
    )  # fmt: skip
    crate.metadata.write(folder)
