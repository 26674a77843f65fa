"""YAML is read as people mean it, in files and on the command line, or refused with the line."""

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from blindspot.config.study import Study
from blindspot.config.yamltext import command_line, from_json, parse, read
from blindspot.errors import BlindspotError
from blindspot.workflow.arguments import refuse_second_config
from studies import TINY
from toys import ROOT


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 0.0003), ("1E3", 1000.0), (".5", 0.5), ("7.", 7.0), ("-2", -2), ("+2", 2),
        ("0x1F", 31), ("0o17", 15), ("0", 0), ("0.25", 0.25), ("true", True), ("False", False),
        ("null", None), ("~", None), ("", None), ("yes", "yes"), ("no", "no"), ("on", "on"),
        ("off", "off"), ("y", "y"), ("nan", "nan"), ("inf", "inf"), ("2024-01-01", "2024-01-01"),
        ("'042'", "042"), ('"1:30"', "1:30"), ("b08601e0", "b08601e0"), ("12:ab", "12:ab"),
    ],
)  # fmt: skip
def test_scalars_are_those_of_yaml_1_2(text, value):
    for found in (parse(text, "here"), parse(f"a: {text}", "here")["a"]):
        assert found == value and type(found) is type(value)


@pytest.mark.parametrize("text", ["042", "0030", "08", "1:30", "1_000", "0b11", "-01.5", "1_0.5"])
def test_a_number_that_readers_of_yaml_disagree_on_is_refused_as_typed(text):
    for line, whole in ((1, f"[{text}]"), (3, f"a:\n  b:\n  - {{c: {text}}}")):
        with pytest.raises(BlindspotError, match=rf"^x\.yaml: line {line}: {text} is not the same"):
            parse(whole, "x.yaml")
    assert parse(f"'{text}': '{text}'", "x.yaml") == {text: text}
    # A name may look like it.
    assert parse(f"{text}: 1", "x.yaml") == {text: 1}


def test_keys_are_the_text_that_stands_there():
    names = ["no", "yes", "on", "null", "nan", "1e5", "44", "true", "~", "0x1F", "2024-01-01"]
    assert list(parse("".join(f"{name}: 1\n" for name in names), "x")) == names


@pytest.mark.parametrize(
    ("text", "key", "lines"),
    [
        ("a: 1\nb: 2\na: 3", "a", (1, 3)),
        ("x:\n  steps: 30\n  deep:\n  - {p: 1}\n  steps: 40", "steps", (2, 5)),
        ("[1, {a: 1,\n 'a': 2}]", "a", (1, 2)),
        ("1: a\n'1': b", "1", (1, 2)),
        ("a: {<<: {x: 1,\n x: 2}}", "x", (1, 2)),
    ],
)
def test_a_key_that_is_there_twice_is_refused_with_both_lines(text, key, lines):
    with pytest.raises(
        BlindspotError, match=rf"^x: line {lines[1]}: key '{key}' is in line {lines[0]} already"
    ):
        parse(text, "x")


def test_what_is_laid_under_a_map_may_be_repeated_in_it():
    text = "a: &a {p: 1, q: 2}\nb: &b {q: 3}\nc: {<<: *a, p: 5}\nd: {<<: [*b, *a], p: 6}"
    assert parse(text, "x") == yaml.safe_load(text)
    assert parse(text, "x")["c"] == {"p": 5, "q": 2}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "x: line 1: not valid YAML"),
        ("!!python/object:os.system x", "could not determine a constructor"),
        ("!!int '042'", "042 is not the same"),
        ("!!bool x", "'x' is neither true nor false"),
        ("!!timestamp x", "could not determine a constructor"),
        ("!!float x", "'x' is not a number"),
        ("!!int x", "'x' is not a whole number"),
        ("? [a]\n: b", "can't be a key"),
        ("a: &a [*a]", r"\*a is inside the value"),
        ("1" * 5000, "a number of 5000 characters"),
        ("[" * 3000, "nested too deeply"),
        ("a\n---\nb", "line 2: not valid YAML: .*single document"),
        ("a: \x00", "x: not valid YAML"),
    ],
)
def test_what_cannot_be_read_is_one_message(text, said):
    with pytest.raises(BlindspotError, match=said):
        parse(text, "x")


#: Any JSON that canonical text of ours may hold.
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=("Cs",))),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abc-1.", min_size=1), inner),
)


@given(JSON)
@settings(max_examples=100, deadline=None)
def test_json_is_read_as_json(value):
    """Settings reach jobs and other calls of Snakemake as JSON."""
    assert command_line([f"key={json.dumps(value)}"]) == {"key": value}
    if isinstance(value, dict):
        assert from_json(json.dumps(value), "here") == value


def test_settings_as_json_are_refused_with_a_message():
    for text, said in (
        ('{"a": 1, "a": 2}', "key 'a' is given twice"),
        ('{"a": 042}', "not usable as JSON"),
        ("[1]", "expected keys with values"),
    ):
        with pytest.raises(BlindspotError, match=f"^--override: .*{said}"):
            from_json(text, "--override")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("grid: {seeds: [042]}", "042"),
        ("training: {epochs: 1:30}", "1:30"),
        ("training: {steps: 0030, epochs: null}", "0030"),
        ("grid: {seeds: [yes]}", 'grid.seeds.0: .*integer .got "yes"'),
        ("training: {steps: 3, epochs: null, steps: 4}", "key 'steps'"),
        ("cells: {a: {loss: terminal, readout: rms}, a: {loss: terminal}}", "key 'a'"),
    ],
)
def test_no_slip_is_silently_another_study(tmp_path, setting, said):
    """In a file and on a command line alike."""
    file = tmp_path / "mine.yaml"
    file.write_text(f"study: mine\n{setting}\n")
    with pytest.raises(BlindspotError, match=rf"mine\.yaml.*{said}"):
        Study.load(ROOT / "config.yaml", [file])
    key, _, value = setting.partition(": ")
    with pytest.raises(BlindspotError, match=said):
        Study.load(ROOT / "config.yaml", [], command_line([f"{key}={value}"]))


def test_a_study_may_be_called_as_it_likes(tmp_path):
    """Names that YAML 1.1 takes for something else, of cells and sizes too."""
    names = ["no", "null", "nan", "1e5", "44"]
    cells = "".join(f"  {name}: {{loss: terminal, readout: rms}}\n" for name in names)
    file = tmp_path / "mine.yaml"
    file.write_text(f"study: off\ncells:\n{cells}")
    study = Study.load(ROOT / "config.yaml", [file])
    assert list(study.config.cells) == names and study.config.study == "off"


def test_what_this_repository_holds_is_read_as_before():
    files = [ROOT / "config.yaml", *(ROOT / "studies").glob("*.yaml")]
    for path in files:
        assert read(path) == yaml.safe_load(path.read_text()), path
    assert parse(yaml.safe_dump(TINY), "tiny") == TINY


def test_config_is_given_once():
    """Snakemake would forget all but the last without a word."""
    refuse_second_config(["snakemake", "all", "--config", "a=1", "b=2"])
    for words in (["-C", "a=1", "--config", "b=2"], ["--config=a=1", "x", "--config=b=2"]):
        with pytest.raises(BlindspotError, match="--config is given twice"):
            refuse_second_config(["snakemake", *words])
