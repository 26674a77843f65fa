"""audit.html in a real browser: laid out, whole, and silent. `make test-slow` runs this."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
import torch

from blindspot.audit import Looped, Settings, audit, output

pytestmark = [
    pytest.mark.extra,
    pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium (Debian's package)"),
]

#: Put into a copy of the page: what a reader's browser made of it, as JSON in the title.
PROBE = """
<script>
const seen = {errors: [], requests: performance.getEntriesByType("resource").length};
addEventListener("error", e => seen.errors.push(e.message));
addEventListener("load", () => {
  const box = x => x.getBoundingClientRect();
  seen.width = document.documentElement.scrollWidth;
  seen.room = document.documentElement.clientWidth;
  seen.figures = [...document.querySelectorAll("figure svg")]
    .map(x => [box(x).width, box(x).height]);
  seen.rows = [...document.querySelectorAll("tbody")].map(x => x.rows.length);
  seen.verdict = [...document.querySelectorAll(".verdict span")].map(x => x.textContent);
  seen.colors = [...document.querySelectorAll(".verdict span")]
    .map(x => getComputedStyle(x).backgroundColor);
  seen.items = document.querySelectorAll("ul li").length;
  document.title = JSON.stringify(seen);
});
</script>
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The report of a small model, and its folder."""
    weight = torch.randn(50, 16, generator=torch.Generator().manual_seed(0))
    model = Looped(
        name="owner/<model> & more",
        init=lambda ids: (None, weight[ids]),
        loop=lambda _, state, k: 1.3 * state,
        read=lambda _, state, k: torch.nn.functional.rms_norm(state, (16,)) @ weight.T,
        loops=6,
        vocab_size=50,
    )
    ids = np.random.default_rng(0).integers(50, size=600)
    report, seen = audit(model, ids, Settings(tokens=128, length=32))
    folder = tmp_path_factory.mktemp("page")
    output.write(report, seen, folder)
    return report, folder


def chromium(page, profile, width, *options):
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"]
    command += ["--no-first-run", "--disable-background-networking", "--disable-component-update"]
    command += ["--disable-sync", f"--user-data-dir={profile}", f"--window-size={width},1600"]
    command += [*options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("width", [1200, 500])
def test_what_a_browser_makes_of_the_page(made, tmp_path, width):
    report, folder = made
    text = (folder / "audit.html").read_text()
    assert "owner/&lt;model&gt; &amp; more" in text
    page = tmp_path / "page.html"
    page.write_text(text.replace("</head>", PROBE + "</head>"))
    dom = chromium(page, tmp_path / "profile", width, "--dump-dom")
    title = re.search("<title>(.*?)</title>", dom, re.DOTALL)
    seen = json.loads(html.unescape(title[1]))
    assert seen["errors"] == []
    assert seen["requests"] == 0
    assert seen["width"] <= seen["room"]  # tables scroll by themselves, the page does not
    assert len(seen["figures"]) == 3
    for across, down in seen["figures"]:
        assert 0.85 * min(width, 1088) - 60 < across < width
        assert 0.25 < down / across < 0.5
    assert seen["rows"] == [len(report.boundaries), len(report.depths)]
    assert seen["verdict"] == ["blind", "drifting"]
    assert seen["colors"] == ["rgb(253, 227, 216)"] * 2
    assert seen["items"] == len(report.verdict.sentences)
