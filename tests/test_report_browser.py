"""report.html in a real browser: what it opens on, without a click. `make test-slow` runs this."""

import csv
import html
import json
import re
import shutil
import subprocess
from collections import Counter

import pytest

from studies import finished

pytestmark = [
    pytest.mark.extra,
    pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium (Debian's package)"),
]

#: Put into a copy of the report: what a reader's browser made of it, told to the page around it.
PROBE = """
<script>
const seen = {errors: []};
const complain = console.error;
console.error = (...said) => { seen.errors.push(said.join(" ")); complain(...said); };
addEventListener("error", e => seen.errors.push(e.message));
addEventListener("unhandledrejection", e => seen.errors.push(String(e.reason)));
addEventListener("load", () => setTimeout(() => {
  const all = (query, what) => [...document.querySelectorAll(query)].map(what);
  const box = x => x.getBoundingClientRect();
  const landing = document.querySelector("#landing");
  seen.title = document.querySelector("#landing h1").textContent;
  seen.numbers = all("#landing .number", x => x.querySelector(".value").textContent);
  seen.pictures = all("#landing img", x => [x.complete, x.naturalWidth, box(x).width, x.alt]);
  seen.verdicts = all("#landing td", x => x.textContent);
  seen.list = all("nav li", x => x.textContent);
  seen.requests = performance.getEntriesByType("resource").length;
  seen.left = box(landing).left;
  seen.wide = [landing.scrollWidth, landing.clientWidth, innerWidth];
  all("#landing figcaption a", x => x)[0].click();
  setTimeout(() => {
    seen.caption = document.querySelector("nav").textContent;
    seen.data = all("nav a[download]", x => { x.onclick(); return x.href; });
    parent.postMessage(JSON.stringify(seen), "*");
  }, 500);
}, 3000));
</script>
"""
#: A window is at least 500 pixels wide; a frame may be narrower.
FRAME = """<!doctype html><title></title><style>body {{ margin: 0 }} iframe {{ border: 0 }}</style>
<iframe src="{page}" width="{width}" height="1600"></iframe>
<script>addEventListener("message", e => {{ document.title = e.data; }});</script>
"""


def chromium(page, profile, *options):
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"]
    command += ["--no-first-run", "--disable-background-networking", "--disable-component-update"]
    command += ["--disable-sync", f"--user-data-dir={profile}", "--virtual-time-budget=20000"]
    command += ["--enable-logging=stderr", *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The folder of results of a finished tiny study, and its report with the probe in it."""
    results = finished(tmp_path_factory)[0] / "results/tiny"
    page = tmp_path_factory.mktemp("report") / "report.html"
    text = (results / "report.html").read_text()
    page.write_text(text.replace("<head>", f"<head>{PROBE}", 1))
    return results, page


@pytest.mark.parametrize("width", [1400, 400])
def test_the_page_that_a_report_opens_on(report, tmp_path, width):
    results, page = report
    frame = page.with_name(f"frame-{width}.html")
    frame.write_text(FRAME.format(page=page.name, width=width))
    shown = chromium(frame, tmp_path / "profile", f"--window-size={width},1700", "--dump-dom")
    seen = json.loads(html.unescape(re.search("<title>(.*?)</title>", shown.stdout, re.S)[1]))
    assert seen["errors"] == []
    assert not re.search(r"ERROR:CONSOLE", shown.stderr)
    assert seen["requests"] == 0
    assert seen["title"] == "Study tiny"
    # Three numbers, the first of them what the table of norms says.
    norms = {row["cell"]: row for row in read(results / "tables/main.csv")}
    ratio = float(norms["perloop-rms"]["norm_to_raw"])
    assert len(seen["numbers"]) == 3
    assert float(seen["numbers"][0].rstrip("×")) == pytest.approx(ratio, abs=0.06)
    assert all(re.fullmatch(r"[+−]?\d[\d.]* %", number) for number in seen["numbers"][1:])
    # Four pictures, decoded, laid out and sharp.
    assert len(seen["pictures"]) == 4
    for complete, natural, across, _ in seen["pictures"]:
        assert complete and natural > across > 250
    # The ledger's verdicts, counted.
    counts = Counter(row["verdict"] for row in read(results / "claims.csv"))
    assert sorted(seen["verdicts"]) == sorted(map(str, counts.values()))
    # Everything else is in the list, in the order of the paper.
    categories = [name for name in seen["list"] if re.match(r"\d\d ", name)]
    assert categories == sorted(categories) and len(categories) >= 8
    assert categories[0] == "01 Claims" and categories[1] == "02 Results"
    # The page does not scroll sideways, and nothing of it is cut off.
    assert seen["wide"][0] <= seen["wide"][1] <= seen["wide"][2]
    assert seen["left"] >= 0
    # A figure's own page: its caption, its data and what made it.
    assert f"Figure: {seen['pictures'][0][3]}" in seen["caption"]
    assert "Made by rule figure from results/tiny/collected/study.json" in seen["caption"]
    assert len(seen["data"]) == 1 and seen["data"][0].startswith("data:text/csv")


def read(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
