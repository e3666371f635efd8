"""Measure planning: our Snakefile against hand-written ones, and against an empty one in a job's process.

One hand-written Snakefile has rules with the same files as ours (a record and a log beside each result), one
has the barest rules that would do: every further file of a rule costs Snakemake about as much as the next.
Rounds are interleaved, in one session; what counts are the ratios. Writes benchmarks/results/plan.json.
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
CONFIG = """\
train: sh -c 'echo > $0' {{model}} {{flags}}
eval: sh -c 'echo > $0' {{metrics}} {{model}}
grid:
  a: {values}
  b: {values}
seeds: 1
report: false
"""
HAND_WRITTEN = """\
runs = [f"a={{a}}/b={{b}}" for a in range({side}) for b in range({side})]

rule all:
    input: expand("results/{{run}}/metrics.json", run=runs)

rule train:
    output: "results/{{run}}/model.keras", "results/{{run}}/record.json"
    log: "results/{{run}}/logs/train.log"
    shell: "touch {{output}} 2> {{log}}"

rule evaluate:
    input: "results/{{run}}/model.keras"
    output: "results/{{run}}/metrics.json", "results/{{run}}/evaluation.json"
    log: "results/{{run}}/logs/evaluate.log"
    shell: "touch {{output}} 2> {{log}}"
"""
BAREST = """\
runs = [f"a={{a}}/b={{b}}" for a in range({side}) for b in range({side})]

rule all:
    input: expand("results/{{run}}/metrics.json", run=runs)

rule train:
    output: "results/{{run}}/model.keras"
    shell: "touch {{output}}"

rule evaluate:
    input: "results/{{run}}/model.keras"
    output: "results/{{run}}/metrics.json"
    shell: "touch {{output}}"
"""


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default: 3)")
    parser.add_argument(
        "--side", type=int, default=100, help="the study has SIDE x SIDE combinations (default: 100)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        report = measure(Path(place), options.rounds, options.side)
    report["machine"] = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    out = ROOT / "benchmarks" / "results" / "plan.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"\nWritten to {out}")


def measure(place: Path, rounds: int, side: int) -> dict:
    """Run all measurements and print each as it is known."""
    ours, hand, barest, empty = (place / name for name in ("ours", "hand", "barest", "empty"))
    for folder in (ours, hand, barest, empty):
        folder.mkdir()
    (ours / "config.yaml").write_text(CONFIG.format(values=list(range(side))))
    (hand / "Snakefile").write_text(HAND_WRITTEN.format(side=side))
    (barest / "Snakefile").write_text(BAREST.format(side=side))
    (empty / "Snakefile").write_text('rule a:\n    output: "a"\n    shell: "touch {output}"\n')
    order = [
        ("ours", ours, ROOT / "Snakefile"),
        ("hand-written, same files", hand, hand / "Snakefile"),
        ("hand-written, barest", barest, barest / "Snakefile"),
    ]
    plans: dict[str, list] = {name: [] for name, *_ in order}
    for number in range(rounds):
        for name, folder, snakefile in order[:: -1 if number % 2 else 1]:
            plans[name].append(run(folder, "-s", str(snakefile), "-n", "-q", "all"))
    report = {"combinations": side**2, "plan": plans}
    show(f"plan {side**2:,} combinations (-n)", plans)
    report["expand"] = [expand(ours, 10) for _ in range(rounds)]
    seconds = [e["seconds"] for e in report["expand"]]
    print(f"expand and check {report['expand'][0]['combinations']:,}: {statistics.median(seconds):.2f} s")
    jobs: dict[str, list] = {"job of ours": [], "empty Snakefile": []}
    # What a real call leaves for its jobs, without running any of them.
    run(
        ours, "-s", str(ROOT / "Snakefile"), "--cores", "1", "results/a=0/b=0/seed=0/record.json", "-q", "all"
    )
    for _ in range(max(rounds, 5)):
        target = ["--mode", "remote", "--force", "--nolock", "--target-jobs"]
        jobs["job of ours"].append(
            run(ours, "-s", str(ROOT / "Snakefile"), "-n", "-q", "all", *target, "train:run=a=1/b=1/seed=0")
        )
        jobs["empty Snakefile"].append(
            run(empty, "-s", str(empty / "Snakefile"), "-n", "-q", "all", *target, "a:")
        )
    report["job"] = jobs
    show("a cluster job's own start", jobs)
    return report


def run(folder: Path, *arguments: str) -> dict:
    """Run snakemake; return its seconds and its peak memory in MiB."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "snakemake", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    text = process.stdout.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"snakemake {' '.join(arguments)} failed:\n{text}")
    return {"seconds": time.monotonic() - started, "memory_mib": usage.ru_maxrss / 1024}


def expand(folder: Path, factor: int) -> dict:
    """Read, check and expand a space `factor` times as large in a process of its own, names and paths included."""
    code = (
        "import sys, time; started = time.monotonic(); from pathlib import Path\n"
        f"sys.path.insert(0, {str(ROOT / 'workflow/scripts')!r})\n"
        "from sweep.config import read_config; from sweep.space import expand; from sweep import naming\n"
        "config = read_config(Path('large.yaml'), {})\n"
        "combinations, _ = expand(config.space, {})\n"
        "runs = {naming.run_path(c.path, s): c for c in combinations for s in config.seeds}\n"
        "print(len(runs), time.monotonic() - started)"
    )
    text = (folder / "config.yaml").read_text()
    (folder / "large.yaml").write_text(text.replace("seeds:", f"  c: {list(range(factor))}\nseeds:"))
    count, seconds = subprocess.check_output([sys.executable, "-c", code], cwd=folder, text=True).split()
    return {"combinations": int(count), "seconds": float(seconds)}


def show(what: str, measured: dict[str, list[dict]]) -> None:
    """Print medians and the ratio of the first to each other."""
    print(f"\n{what}, median of {len(next(iter(measured.values())))}:")
    for key, unit in (("seconds", "s"), ("memory_mib", "MiB")):
        medians = {name: statistics.median(r[key] for r in rows) for name, rows in measured.items()}
        (one, a), *others = medians.items()
        for other, b in others:
            print(
                f"  {one} {a:.2f} {unit}, {other} {b:.2f} {unit}: ratio {a / b:.2f}, difference {a - b:+.2f} {unit}"
            )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
