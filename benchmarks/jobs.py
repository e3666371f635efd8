"""Measure what a job costs beside its program: programs that do nothing, by us and by a plain Snakefile.

The plain one is also run with the settings of our profile: Snakemake's own scheduler takes longer than the jobs where
there are many. Rounds are interleaved, in one session. A second call, with everything finished, is measured too, and the peak memory
of snakemake. Writes benchmarks/results/jobs.json and prints a Markdown table.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Bare Python programs: each writes the one file that it is asked for.
PROGRAM = "import sys\nopen(sys.argv[1], 'w').write('{\"score\": 0.5}')\n"
CONFIG = """\
train: python program.py {{model}} {{flags}}
eval: python program.py {{metrics}} {{model}}
grid: {{a: {values}}}
seeds: 1
warm: {warm}
report: false
select: {{metric: score, mode: max}}
"""
PLAIN = """\
runs = [f"a={{a}}" for a in range({runs})]

rule all:
    input: expand("results/{{run}}/metrics.json", run=runs)

rule train:
    output: "results/{{run}}/model.keras"
    params: lambda wildcards: f"--{{wildcards.run}}"
    shell: "python program.py {{output}} {{params}}"

rule evaluate:
    input: "results/{{run}}/model.keras"
    output: "results/{{run}}/metrics.json"
    shell: "python program.py {{output}} {{input}}"
"""


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--runs", type=int, nargs="+", default=[100, 1000], help="runs of the studies (default: 100 1000)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default: 3)")
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="jobs at once (default: all cores)")
    options = parser.parse_args()
    report = {
        "at_once": options.cores,
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "system": platform.platform(),
        },
    }
    lines = [
        "| runs | way | study, s | ms a job | over the plain one | all finished, s | memory, MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for runs in options.runs:
        report[runs] = measure(runs, options.rounds, options.cores)
        lines += rows(runs, report[runs])
    out = ROOT / "benchmarks" / "results" / "jobs.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    print("\n" + "\n".join(lines) + f"\n\nWritten to {out}")


def measure(runs: int, rounds: int, cores: int) -> dict[str, dict[str, list[float]]]:
    """Run a study, and call it again, by each way in turn."""
    ways = {
        "plain Snakefile": None,
        "plain Snakefile with our profile": None,
        "Snakesweep, cold": "false",
        "Snakesweep, warm": "true",
    }
    found = {name: {"study": [], "again": [], "memory_mib": []} for name in ways}
    for number in range(rounds):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder)
                (place / "program.py").write_text(PROGRAM)
                if ways[name]:
                    (place / "config.yaml").write_text(
                        CONFIG.format(values=list(range(runs)), warm=ways[name])
                    )
                    snakefile = ROOT / "Snakefile"
                else:
                    snakefile = place / "Snakefile"
                    snakefile.write_text(PLAIN.format(runs=runs))
                profile = ["--workflow-profile", str(ROOT / "profiles" / "default")] if "our" in name else []
                seconds, memory = call(place, snakefile, cores, profile)
                again, _ = call(place, snakefile, cores, profile)
                if len(list(place.rglob("metrics.json"))) != runs:
                    sys.exit(f"{name} did not finish {runs} runs")
            found[name]["study"].append(seconds)
            found[name]["again"].append(again)
            found[name]["memory_mib"].append(memory)
            print(
                f"  {runs} runs, round {number + 1}: {name}: {seconds:.1f} s, again {again:.1f} s", flush=True
            )
    return found


def call(place: Path, snakefile: Path, cores: int, profile: list[str]) -> tuple[float, float]:
    """Run snakemake; return its seconds and its peak memory in MiB."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    words = [
        sys.executable,
        "-m",
        "snakemake",
        "-s",
        str(snakefile),
        "--cores",
        str(cores),
        "-q",
        "all",
        *profile,
    ]
    started = time.monotonic()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(words, cwd=place, env=environment, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            log.seek(0)
            sys.exit(f"{' '.join(words)} failed:\n{log.read().decode()[-3000:]}")
    return time.monotonic() - started, usage.ru_maxrss / 1024


def rows(runs: int, found: dict) -> list[str]:
    """Write medians as Markdown; a run is two jobs, and planning counts as theirs."""
    plain = statistics.median(found["plain Snakefile"]["study"])
    lines = []
    for name, values in found.items():
        study, again, memory = (statistics.median(values[key]) for key in ("study", "again", "memory_mib"))
        job, more = 1000 * study / runs / 2, 1000 * (study - plain) / runs / 2
        lines.append(
            f"| {runs} | {name} | {study:.1f} | {job:.1f} | {more:+.1f} ms | {again:.1f} | {memory:.0f} |"
        )
    return lines


if __name__ == "__main__":
    main()
