"""The page: in a real browser, its tables sort and filter, and nothing is fetched from anywhere."""

import csv
import json
import re
import shutil
import subprocess
import sys

import pytest
from madeup import MadeUp, line
from study import CONFIG, ROOT, Study

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(not BROWSER, reason="no Chromium here; install it to see the page tested")

# Whatever a page asks the network for is refused by this, and told.
WATCH = """<head>
<meta http-equiv="Content-Security-Policy" content="default-src 'unsafe-inline' 'unsafe-eval' data: blob:">
<script>
const fetched = [];
document.addEventListener("securitypolicyviolation", event => fetched.push(event.blockedURI));
const tell = seen => {
  const out = document.createElement("pre");
  out.id = "seen";
  out.textContent = JSON.stringify({...seen, fetched});
  document.body.append(out);
};
</script>
"""
# Acts on a table as a reader would, then leaves in the page what is seen.
ACT = """
<script>
addEventListener("load", () => {
const seen = {}, table = document.getElementById("summary");
const heads = [...table.tHead.rows[0].cells], names = heads.map(h => h.querySelector("button").textContent);
const column = name => [...table.tBodies[0].rows].filter(r => r.offsetParent !== null)
  .map(r => r.cells[names.indexOf(name)].textContent);
const click = name => heads[names.indexOf(name)].querySelector("button").click();
const filter = (name, text) => {
  const input = heads[names.indexOf(name)].querySelector("input");
  input.value = text;
  input.dispatchEvent(new Event("input"));
};
seen.first = column("rate");
click("rate"); seen.up = column("rate");
click("rate"); seen.down = column("rate");
click("kind"); seen.kind = column("kind");
filter("rate", ">=0.01"); seen.above = column("rate").sort();
filter("rate", "0.001..0.01"); seen.between = column("rate").sort();
filter("rate", "=0.1"); filter("kind", "a"); seen.both = [column("rate"), column("kind")];
seen.count = document.querySelector('.count[data-for="summary"]').textContent;
filter("rate", ""); filter("kind", ""); seen.all = column("rate").length;
seen.images = [...document.images].map(i => i.complete && i.naturalWidth > 0);
seen.links = [...document.querySelectorAll("nav a")].map(a => !!document.querySelector(a.getAttribute("href")));
tell(seen);
});
</script>
"""


def browse(text: str, script: str, folder) -> dict:
    """Open a page in a browser with a script; return what that has seen, and every address that was asked for."""
    page = folder / "page.html"
    assert "<head>" in text
    before, end, after = text.replace("<head>", WATCH, 1).rpartition("</body>")
    page.write_text(before + script + end + after)
    words = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    words += ["--disable-background-networking", "--disable-component-update", "--no-first-run"]
    words += ["--virtual-time-budget=5000", "--dump-dom", page.as_uri()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    seen = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.S)
    assert seen, done.stdout[-2000:] + done.stderr[-2000:]
    text = seen[1].replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&")
    return json.loads(text)


@pytest.fixture(scope="module")
def shown(tmp_path_factory) -> Study:
    """Run a study that is drawn."""
    config = CONFIG.replace("x: [1, 2]", "rate: [0.001, 0.01, 0.1]\n  x: [1, 2]").replace(
        "y: [adam, sgd]", "kind: [a, b]"
    )
    study = Study(tmp_path_factory.mktemp("shown"), config + "report: true\n")
    study.snakemake()
    return study


@needs_browser
def test_tables_sort_and_filter_offline(shown, tmp_path):
    seen = browse((shown.results / "study.html").read_text(), ACT, tmp_path)
    rates = ["0.001"] * 4 + ["0.01"] * 4 + ["0.1"] * 4
    assert sorted(seen["first"]) == rates
    assert seen["up"] == rates
    assert seen["down"] == rates[::-1]
    assert seen["kind"] == ["a"] * 6 + ["b"] * 6
    assert seen["above"] == rates[4:]
    assert seen["between"] == rates[:8]
    assert seen["both"] == [["0.1"] * 2, ["a"] * 2]
    assert seen["count"] == "2 of 12 rows."
    assert seen["all"] == 12
    assert len(seen["images"]) >= 8
    assert all(seen["images"])
    assert all(seen["links"])
    assert seen["fetched"] == []


@needs_browser
def test_snakemake_report_holds_the_page(shown, tmp_path):
    """One file for `snakemake --report`, that asks the network for nothing."""
    shown.snakemake("--report", "results/report.html")
    report = shown.results / "report.html"
    script = "<script>setTimeout(() => tell({shown: document.body.innerText}), 2000)</script>"
    seen = browse(report.read_text(), script, tmp_path)
    assert seen["fetched"] == []
    assert "Workflow" in seen["shown"]
    text = report.read_text()
    assert "study.html" in text
    assert "curves.svg" in text
    assert "Nothing to be done" in shown.snakemake().text


def test_the_page_says_what_the_files_say(shown):
    page = (shown.results / "study.html").read_text()
    best = shown.json("best.json")
    assert best["why"] in page
    assert (
        "accuracy on test data: 0.6683 (95 % interval 0.6472 to 0.6895) over 2 seeds, 0 better than" in page
    )
    assert "The test data was used once, for one choice" in page
    assert "x: 2 is the greatest value tried: try higher ones." in page
    assert "No run failed or diverged." in page
    assert "python train.py --epochs=2 --kind=a --rate=0.001 --x=2 --seed 0" in page
    assert "--cores 2</pre>" in page
    with (shown.results / "summary.csv").open() as file:
        assert all(f"<td>{row['path']}</td>" in page for row in csv.DictReader(file))
    assert not re.search(r'(src|href)="(?!#|data:)', page)  # nothing from elsewhere


def report(results) -> str:
    words = [sys.executable, ROOT / "workflow/scripts/report.py", "--results", results]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return (results / "study.html").read_text()


def test_incomplete_study_with_failures(tmp_path):
    """Made from the files alone; what a program printed can't break the page."""
    study = MadeUp(tmp_path / "results", [{"x": 1}, {"x": 2}, {"x": 3}])
    study.finish(lambda c, seed: c["x"] / 10, runs={"x=1/seed=0", "x=1/seed=1", "x=2/seed=0"})
    study.attempt("x=2/seed=1", line("train", exit=1, reason="failed", detail="exit status 1"))
    study.write(
        "x=2/seed=1/logs/train.1.log",
        "\n".join(f"line {i}" for i in range(100)) + "\n</pre><script>alert(1)</script>\n",
    )
    page = report(study.results)
    assert (
        "The study is incomplete, so nothing is chosen. 1 of 3 combinations have all their seeds in" in page
    )
    assert "the best of these has a mean accuracy of 0.1: x=1." in page
    assert "<code>x=2/seed=1</code>: train failed, exit status 1" in page
    assert "line 99\n&lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "line 10\n" not in page
    assert "1 failed, 3 finished, 2 not run" in page


def test_many_looks_are_said_to_spend_the_test_data(tmp_path):
    study = MadeUp(tmp_path / "results", [{"x": 1}])
    study.finish(lambda c, seed: 0.5)
    study.write("test-ledger.csv", "when,path,score\n2026-12-01,x=1,0.4\n2026-12-02,x=2,0.5\n")
    page = report(study.results)
    assert "The test data was used 2 times. Whoever chooses again after seeing a test score" in page
