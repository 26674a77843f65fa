"""From a MediaWiki dump to prose: articles in WikiText's heading style, without markup.

What is kept is what a reader would call the article's text: headings, paragraphs, and list items
that are sentences. Tables, references, files, formulas, templates (but a few that stand for words)
and the lists at an article's end are dropped.
"""

import html
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import IO, Any

#: Sections that are lists of sources and links, not prose.
APPENDICES = frozenset(
    [
        "references",
        "notes",
        "footnotes",
        "citations",
        "sources",
        "works cited",
        "notes and references",
        "references and notes",
        "explanatory notes",
        "bibliography",
        "selected bibliography",
        "further reading",
        "external links",
        "see also",
        "discography",
        "filmography",
        "primary sources",
        "secondary sources",
        "literature",
        "publications",
        "gallery",
        "image gallery",
        "works",
        "selected works",
        "notes and citations",
        "additional reading",
        "links",
        "online sources",
        "general references",
        "historiography and sources",
    ]
)
#: Templates that stand for words in a sentence: which of their arguments these are.
WORDS = {
    "lang": 2, "transl": 2, "nowrap": 1, "quote": 1, "blockquote": 1, "nihongo": 1, "small": 1,
    "smaller": 1, "sc": 1, "vanchor": 1, "visible anchor": 1, "angbr": 1, "keypress": 1,
    "tooltip": 1, "chem": 1, "native name": 2, "abbr": 1, "flag": 1, "flagcountry": 1,
    "okina": 0, "iast": 1, "unicode": 1, "big": 1, "not a typo": 1, "linktext": 1, "math": 1,
    "mvar": 1, "var": 1, "longitem": 1,
}  # fmt: skip
#: Templates that stand for a sign.
SIGNS = {"'s": "'s", "'": "'", "nbsp": " ", "spaces": " ", "·": "·", "ndash": "–", "mdash": "—"}
SIGNS |= {"spaced ndash": " – ", "snd": " – "}
#: Tags whose content is no prose, and tags whose content reads on.
DROPPED_TAGS = frozenset(
    [
        "ref",
        "references",
        "table",
        "gallery",
        "code",
        "source",
        "timeline",
        "hr",
        "imagemap",
        "tr",
        "td",
        "th",
        "poem",
        "syntaxhighlight",
        "pre",
        "score",
        "hiero",
    ]
)
#: Stands for a formula until the lines that hold one are dropped.
FORMULA = "\ue000"
#: An article with less prose than this (characters) is a list or a disambiguation page.
SHORTEST = 1000

_FILE_LINK = re.compile(r"^\s*:?\s*(file|image|media|category|wikt|[a-z]{2,3}|simple)\s*:", re.I)
_HEADING = re.compile(r"^(={2,6})\s*(.+?)\s*\1\s*$")
_LIST = re.compile(r"^[*#:;]+\s*")
_SENTENCE = re.compile(r"[.!?][\"'”’)\]]*$")


def articles(dump: IO[bytes]) -> Iterator[tuple[str, str]]:
    """Yield (title, wiki markup) of every article in a MediaWiki XML export, one page in memory.

    Redirects and pages outside the article namespace (0) are skipped.
    """
    events = ElementTree.iterparse(dump, events=("start", "end"))
    _, root = next(events)
    for event, page in events:
        if event != "end" or not page.tag.endswith("}page"):
            continue
        space = page.tag.removesuffix("page")
        markup = page.findtext(f"{space}revision/{space}text")
        title = page.findtext(f"{space}title")
        is_article = page.findtext(f"{space}ns") == "0" and page.find(f"{space}redirect") is None
        if title and markup and is_article:
            yield title, markup
        root.clear()


def prose(title: str, markup: str) -> str:
    """The article as text: blocks (headings, paragraphs) joined by an empty line.

    Returns '' where too little prose is left to call it an article.
    """
    blocks: list[tuple[int, str]] = []  # heading level, or 0 for a paragraph
    skipped = 0  # level of the appendix we are in
    for line in _lines(_plain(markup)):
        heading = _HEADING.match(line)
        if heading:
            level, name = len(heading[1]), _tidy(heading[2])
            if skipped and level > skipped:
                continue
            skipped = level if name.lower() in APPENDICES else 0
            # A heading right before one that is not deeper had nothing but dropped matter.
            while blocks and blocks[-1][0] >= level:
                blocks.pop()
            if not skipped and name:
                blocks.append((level, name))
        elif not skipped and FORMULA not in line and (paragraph := _paragraph(line)):
            blocks.append((0, paragraph))
    while blocks and blocks[-1][0]:
        blocks.pop()
    if sum(len(text) for level, text in blocks if not level) < SHORTEST:
        return ""
    lines = [_heading(1, title)]
    lines += [_heading(level, text) if level else text for level, text in blocks]
    return "\n\n".join(lines)


def _lines(text: str) -> Iterator[str]:
    """Headings, list items and paragraphs: lines that follow each other are one paragraph."""
    paragraph: list[str] = []
    for line in [*text.split("\n"), ""]:
        line = line.strip()
        alone = not line or _LIST.match(line) or _HEADING.match(line)
        if alone and paragraph:
            yield " ".join(paragraph)
            paragraph = []
        if alone:
            yield line
        else:
            paragraph.append(line)


def _heading(level: int, name: str) -> str:
    marks = " ".join("=" * level)
    return f" {marks} {name} {marks} "


def _paragraph(line: str) -> str:
    """One line of stripped markup as a paragraph; '' where it is no prose."""
    listed = bool(_LIST.match(line))
    text = _tidy(_LIST.sub("", line))
    if not any(c.isalpha() for c in text) or text.startswith(("|", "!", "{", "}", "<")):
        return ""
    words = text.split()
    if listed:
        return text if len(words) >= 8 and _SENTENCE.search(text) else ""
    # Captions and left-overs of layout are short and do not end as sentences do.
    return text if _SENTENCE.search(text) or len(words) >= 12 else ""


def _plain(markup: str) -> str:
    """Markup without tags, templates, references, files and links; headings and lines kept."""
    import mwparserfromhell

    markup = re.sub(r"<!--.*?(?:-->|\Z)", "", markup, flags=re.S)
    markup = re.sub(r"<ref\b[^<>]*/>", "", markup, flags=re.I)
    markup = re.sub(r"<ref\b[^<>/]*>.*?</ref\s*>", "", markup, flags=re.I | re.S)
    # The quotes of bold and italics confuse the parser where they do not pair; nothing is lost.
    markup = re.sub(r"'{2,}", "", markup)
    return _text(mwparserfromhell.parse(markup, skip_style_tags=True))


def _text(code: Any) -> str:
    return "".join(_node(node) for node in code.nodes) if code is not None else ""


def _node(node: Any) -> str:
    """The words that one node of the parse tree stands for."""
    from mwparserfromhell import nodes

    if isinstance(node, nodes.Text):
        return str(node.value)
    if isinstance(node, nodes.Heading):
        marks = "=" * node.level
        return f"{marks} {_text(node.title)} {marks}"
    if isinstance(node, nodes.Wikilink):
        target = str(node.title)
        if _FILE_LINK.match(target):
            return ""
        return _text(node.text) if node.text is not None else target.lstrip(":").strip()
    if isinstance(node, nodes.ExternalLink):
        return _text(node.title) if node.brackets else ""
    if isinstance(node, nodes.HTMLEntity):
        return str(node.normalize())
    if isinstance(node, nodes.Template):
        return _template(node)
    if isinstance(node, nodes.Tag):
        return _tag(node)
    return ""


def _tag(node: Any) -> str:
    name = str(node.tag).strip().lower()
    if node.wiki_markup and name in ("li", "dd", "dt"):
        return str(node.wiki_markup)  # the bullet: `_paragraph` judges list items
    if name in DROPPED_TAGS:
        return ""
    if name == "math":
        return FORMULA
    if name == "br":
        return " "
    return _text(node.contents)


def _template(node: Any) -> str:
    name = str(node.name).strip().lower().replace("_", " ")

    def argument(position: int) -> str:
        key = str(position)
        return _text(node.get(key).value).strip() if node.has(key) else ""

    if name in WORDS:
        return argument(WORDS[name])
    if name in ("convert", "cvt"):
        second = argument(2)
        if second in ("-", "–", "to", "and", "x", "by"):
            joint = "–" if second in ("-", "–") else f" {second} "
            return f"{argument(1)}{joint}{argument(3)} {argument(4)}"
        return f"{argument(1)} {second}"
    if name in ("val", "nts", "formatnum"):
        return argument(1)
    if name in ("circa", "c."):
        return f"c. {argument(1)}".strip()
    if name == "as of":
        return f"As of {argument(1)}"
    if name.startswith("lang-"):
        return argument(1)
    return SIGNS.get(name, "")


def _tidy(text: str) -> str:
    """Close the holes that dropped markup left: empty brackets, doubled blanks and commas."""
    text = html.unescape(text)
    text = re.sub(r"\[\[|\]\]|\{\{|\}\}|__[A-Z]+__|<[^<>]{0,200}>", " ", text)
    text = re.sub(r"[\u200b-\u200f\u2060\ufeff\u00ad]", "", text)
    text = re.sub(r"\s+", " ", text)
    previous = None
    while previous != text:
        previous = text
        text = re.sub(r"([(\[])[\s,;:·/–-]+", r"\1", text)
        text = re.sub(r"[\s,;:·/]+([)\]])", r"\1", text)
        text = re.sub(r" ?(?:\(\)|\[\])", "", text)
        text = re.sub(r"([,;])(?:\s*[,;])+", r"\1", text)
    text = re.sub(r" +([,.;:!?])(?=\s|$)", r"\1", text)
    return text.strip()
