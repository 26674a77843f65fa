"""What the documentation points to is there: links, headings, messages; the README stays short."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
#: Messages of others that troubleshooting.md explains.
FOREIGN = ("Snakemake's own",)
#: pydantic's, and make's.
NOT_OURS = (
    "Input should be",
    "blindspot needs Python 3.11 or later",
    "Write-protected output files",
)


def anchors(page: Path) -> set[str]:
    """The names that a repository's browser gives the headings of a page."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        # A report is built, not kept.
        target = page.parent / file if file else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


def test_the_readme_can_be_read_at_once() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900


def messages() -> list[str]:
    """The first column of the tables of troubleshooting.md, without those of other programs."""
    text = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    found = []
    for head, body in zip(parts[::2], parts[1::2], strict=True):
        if head not in FOREIGN:
            cells = re.findall(r"^\| (`.+?) \| ", body, re.MULTILINE)
            found += [quoted for cell in cells for quoted in re.findall(r"`([^`]+)`", cell)]
    return found


def said() -> str:
    """The source as one text in which a message stands on one line, with {...} for what varies."""
    files = [*ROOT.glob("src/**/*.py"), *ROOT.glob("packages/*/src/**/*.py")]
    files += ROOT.glob("workflow/rules/*.smk")
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(files))
    return re.sub(r"""["']\s*\n?\s*(?:\+ )?f?["']""", "", text)


def test_every_message_that_is_explained_is_said_somewhere() -> None:
    source, explained = said(), messages()
    assert len(explained) > 100
    lost = []
    for message in explained:
        pattern = r".{1,200}?".join(re.escape(part.strip()) for part in message.split("..."))
        if message not in NOT_OURS and not re.search(pattern, source, re.DOTALL):
            lost.append(message)
    assert not lost, f"docs/troubleshooting.md explains what nothing says: {lost}"
