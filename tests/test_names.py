"""Names that survive growth: runs and results of before are known to every later version.

`names.json` holds the names of all runs, token folders, throughput tables and measurements of every
study in the repository. Where a change moves them on purpose (a revision is raised, a study file is
changed):

    .venv/bin/python tests/test_names.py

writes it anew, and the diff shows what the change costs.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field, create_model

from blindspot import declared
from blindspot.config.spec import RunSpec, Training
from blindspot.config.study import Study
from blindspot.settings import Neutral, Settings, canonical

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "names.json"
STUDIES = {
    "paper": [],
    "demo": ["demo"],
    "init over demo": ["demo", "init"],
    "small": ["small"],
    "small-pilot over small": ["small", "small-pilot"],
    "small-common over small": ["small", "small-common"],
    "small-edge over small": ["small", "small-edge"],
    "small-best over small": ["small", "small-best"],
    "sweep-demo": ["sweep-demo"],
    "laws": ["laws"],
    "horizon": ["horizon"],
    "remedies": ["remedies"],
    "dose": ["dose"],
    "dose-long": ["dose-long"],
    "1.4b": ["1.4b"],
}


def names(overlays: list[str]) -> dict[str, list[str]]:
    files = [ROOT / "studies" / f"{name}.yaml" for name in overlays]
    study = Study.load(ROOT / "config.yaml", files)
    return {
        "tokens": [study.tokens.name],
        "runs": [run.name for run in study.runs],
        "throughput": [f"{size}-{study.throughput_hash(size)}" for size in study.config.sizes],
        "measurements": [*declared.folders(study.config.measurement).values()],
    }


def test_every_study_is_pinned() -> None:
    named = {name for overlays in STUDIES.values() for name in overlays}
    assert named == {path.stem for path in (ROOT / "studies").glob("*.yaml")}


@pytest.mark.parametrize("study", STUDIES)
def test_no_name_of_before_has_moved(study: str) -> None:
    golden, now = json.loads(GOLDEN.read_text())[study], names(STUDIES[study])
    for kind, before in golden.items():
        lost = sorted(set(before) - set(now[kind]))
        assert not lost, (
            f"{len(lost)} of {len(before)} {kind} of study {study} have another name now, such as "
            f"{lost[0]}: everyone who has finished them would make them again. If a setting was "
            f"added, mark it with Neutral (blindspot/settings.py), whose value is the behaviour "
            f"from before the setting existed. If results really change, raise the revision "
            f"(config/revisions.py) and run `python tests/test_names.py`."
        )


class Inner(Settings):
    width: int = 1


class Outer(Settings):
    inner: Inner = Inner()
    many: tuple[Inner, ...] = (Inner(),)
    by_name: dict[str, Inner] = Field(default_factory=lambda: {"a": Inner()})


class GrownInner(Inner):
    added: Annotated[float | None, Neutral(None)] = None


class GrownOuter(Settings):
    inner: GrownInner = GrownInner()
    many: tuple[GrownInner, ...] = (GrownInner(),)
    by_name: dict[str, GrownInner] = Field(default_factory=lambda: {"a": GrownInner()})
    schedule: Annotated[str, Neutral("constant")] = "constant"


def test_a_setting_with_a_neutral_value_changes_no_identity_at_any_depth() -> None:
    before = canonical(Outer().identity())
    assert canonical(GrownOuter().identity()) == before
    for grown in (
        GrownOuter(schedule="cosine"),
        GrownOuter(inner=GrownInner(added=2.0)),
        GrownOuter(many=(GrownInner(added=2.0),)),
        GrownOuter(by_name={"a": GrownInner(added=2.0)}),
    ):
        assert canonical(grown.identity()) != before
        assert type(grown).model_validate(grown.identity()) == grown


def test_a_neutral_value_that_is_not_the_default_is_refused() -> None:
    """An identity that is read back would be another setting."""

    with pytest.raises(TypeError, match="schedule: its neutral value 'a' is not its default 'b'"):

        class Other(Settings):
            schedule: Annotated[str, Neutral("a")] = "b"


def run_hash(training: type[Training]) -> str:
    """The hash of the paper's first run, were its training settings of that class."""
    grown = create_model("Grown", __base__=RunSpec, training=(training, ...))
    run = Study.load(ROOT / "config.yaml").runs[0]
    return grown.model_validate(run.spec.model_dump()).hash


def test_of_a_throw_away_field_only_one_without_a_neutral_value_moves_a_run() -> None:
    class WithNeutral(Training):
        throw_away: Annotated[int, Neutral(0)] = 0

    class Without(Training):
        throw_away: int = 0

    now = Study.load(ROOT / "config.yaml").runs[0].spec.hash
    assert run_hash(WithNeutral) == now
    assert run_hash(Without) != now


if __name__ == "__main__":
    found = {name: names(overlays) for name, overlays in STUDIES.items()}
    GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.write(f"{GOLDEN}: {sum(len(n['runs']) for n in found.values())} runs\n")
