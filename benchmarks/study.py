"""Measure a study of short or medium trainings: Snakesweep warm and cold, and what people use instead.

The same programs with the same flags by every way; rounds are interleaved in one session, and what counts are the
ratios of medians. The floor is all runs in one process per core, without isolation. That all ways give the same
metrics is checked. Writes benchmarks/results/study.json and prints a Markdown table.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "workflow" / "scripts"
DATA = ROOT / "resources" / "digits.npz"
# Trains and scores in a process that goes on: what a program's own loop over a grid does.
IN_PROCESS = """
import sys
sys.path.insert(0, {scripts!r})
import train, eval

def one(run):
    folder, learning_rate, seed = run
    train.main([f"--epochs={epochs}", f"--learning_rate={{learning_rate}}", "--seed", str(seed), "--data", {data!r},
                "--model", f"{{folder}}/model.keras"])
    eval.main(["--model", f"{{folder}}/model.keras", "--data", {data!r}, "--split", "validation",
               "--metrics", f"{{folder}}/metrics.json"])
"""
FLOOR = """
if __name__ == "__main__":
    import json
    for run in json.loads(sys.argv[1]):
        one(run)
"""
POOL = """
if __name__ == "__main__":
    import json, multiprocessing
    with multiprocessing.get_context("spawn").Pool({cores}, maxtasksperchild=1) as pool:
        pool.map(one, json.loads(sys.argv[1]), chunksize=1)
"""
PLAIN = """
RUNS = {runs!r}
rule all:
    input: [f"{{folder}}/metrics.json" for folder in RUNS]
rule train:
    output: "{{run}}/model.keras"
    params: lambda wildcards: RUNS[wildcards.run]
    shell: "{python} {scripts}/train.py --epochs={epochs} {{params}} --data {data} --model {{output}}"
rule evaluate:
    input: "{{run}}/model.keras"
    output: "{{run}}/metrics.json"
    shell: "{python} {scripts}/eval.py --model {{input}} --data {data} --split validation --metrics {{output}}"
"""
OPTUNA = """
import json, subprocess, sys
import optuna

lines = json.loads(sys.argv[1])
def objective(trial):
    subprocess.run(["sh", "-c", lines[trial.suggest_categorical("run", list(range(len(lines))))]], check=True)
    return 0.0
optuna.logging.set_verbosity(optuna.logging.WARNING)
sampler = optuna.samplers.GridSampler({{"run": list(range(len(lines)))}})
optuna.create_study(sampler=sampler).optimize(objective, n_trials=len(lines), n_jobs={cores})
"""
HYDRA = """
if __name__ == "__main__":
    import hydra

    @hydra.main(version_base=None, config_path=None)
    def main(config):
        one((config.folder, config.learning_rate, config.seed))
    main()
"""
CONFIG = """
train: python {scripts}/train.py {{flags}} --seed {{seed}} --data {{data}} --model {{model}}
eval: python {scripts}/eval.py --model {{model}} --data {{data}} --split validation --metrics {{metrics}}
data: {data}
fixed: {{epochs: {epochs}}}
grid: {{learning_rate: {rates}}}
seeds: {seeds}
warm: {warm}
report: false
"""


class Bench:
    """One study, and the ways to run it.

    Args:
        runs: number of runs; half of them with each of two seeds.
        epochs: length of each.
        cores: how many at once.
    """

    def __init__(self, runs: int, epochs: int, cores: int):
        self.rates = [round(0.001 * (number + 1), 4) for number in range(max(1, runs // 2))]
        self.seeds = [0, 1]
        self.epochs = epochs
        self.cores = cores
        self.values = {
            "scripts": str(SCRIPTS),
            "data": str(DATA),
            "epochs": epochs,
            "python": sys.executable,
            "cores": cores,
        }
        self.ways = {
            "floor: one process per core": self.floor,
            "Snakesweep, warm": lambda place: self.snakesweep(place, "true"),
            "Snakesweep, cold": lambda place: self.snakesweep(place, "false"),
            "plain Snakefile": self.plain,
            "multiprocessing.Pool, a process per run": self.pool,
            "xargs -P": self.xargs,
        }
        if shutil.which("parallel"):
            self.ways["GNU parallel"] = self.parallel
        if shutil.which("tsp"):
            self.ways["task-spooler"] = self.task_spooler
        if PEERS.exists():
            self.ways["Optuna, a process per step"] = self.optuna
            self.ways["Hydra with joblib, no isolation"] = self.hydra

    def folders(self, place: Path) -> list[tuple[str, float, int]]:
        """Make a folder per run, for ways that do not."""
        runs = [(str(place / f"{rate}-{seed}"), rate, seed) for rate in self.rates for seed in self.seeds]
        for folder, _, _ in runs:
            os.makedirs(folder)
        return runs

    def floor(self, place: Path) -> None:
        """Run everything in one process per core."""
        runs = self.folders(place)
        code = IN_PROCESS.format(**self.values) + FLOOR
        words = [[sys.executable, "-c", code, json.dumps(runs[n :: self.cores])] for n in range(self.cores)]
        processes = [subprocess.Popen(w, env=environment(), stdout=QUIET, stderr=QUIET) for w in words]
        if any(process.wait() for process in processes):
            sys.exit("the floor failed")

    def pool(self, place: Path) -> None:
        """Run a process per run, by the standard library."""
        program = place / "pool.py"
        program.write_text(IN_PROCESS.format(**self.values) + POOL.format(**self.values))
        call([sys.executable, str(program), json.dumps(self.folders(place))], place)

    def snakesweep(self, place: Path, warm: str) -> None:
        """Run by our Snakefile."""
        text = CONFIG.format(rates=self.rates, seeds=self.seeds, warm=warm, **self.values)
        (place / "config.yaml").write_text(text)
        call(
            [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "--cores", str(self.cores)],
            place,
        )

    def plain(self, place: Path) -> None:
        """Run by a hand-written Snakefile."""
        runs = {
            f"{rate}-{seed}": f"--learning_rate={rate} --seed {seed}"
            for rate in self.rates
            for seed in self.seeds
        }
        (place / "Snakefile").write_text(PLAIN.format(runs=runs, **self.values))
        call([sys.executable, "-m", "snakemake", "--cores", str(self.cores)], place)

    def commands(self, place: Path) -> str:
        """Write one line of shell per run."""
        lines = []
        for folder, rate, seed in self.folders(place):
            train = f"{sys.executable} {SCRIPTS}/train.py --epochs={self.epochs} --learning_rate={rate} --seed {seed}"
            score = f"{sys.executable} {SCRIPTS}/eval.py --model {folder}/model.keras --data {DATA} --split validation"
            lines.append(
                f"{train} --data {DATA} --model {folder}/model.keras && {score} --metrics {folder}/metrics.json"
            )
        return "\n".join(lines) + "\n"

    def xargs(self, place: Path) -> None:
        """Run by xargs."""
        call(
            ["xargs", "-P", str(self.cores), "-d", "\n", "-I", "{}", "sh", "-c", "{}"],
            place,
            self.commands(place),
        )

    def parallel(self, place: Path) -> None:
        """Run by GNU parallel."""
        call(["parallel", "--will-cite", "-j", str(self.cores)], place, self.commands(place))

    def task_spooler(self, place: Path) -> None:
        """Run by task-spooler, with a server of its own."""
        env = {"TS_SOCKET": str(place / "socket")}
        call(["tsp", "-S", str(self.cores)], place, more=env)
        try:
            for line in self.commands(place).splitlines():
                call(["tsp", "-n", "sh", "-c", line], place, more=env)
            while " running " in (queue := call(["tsp"], place, more=env)) or " queued " in queue:
                time.sleep(0.02)
        finally:
            subprocess.run(["tsp", "-K"], env=environment() | env, stdout=QUIET, stderr=QUIET)

    def optuna(self, place: Path) -> None:
        """Run by Optuna's grid, its threads starting a process per step."""
        lines = self.commands(place).splitlines()
        call([str(PEERS), "-c", OPTUNA.format(**self.values), json.dumps(lines)], place)

    def hydra(self, place: Path) -> None:
        """Run by Hydra's joblib launcher: its workers are used again, so runs share a process."""
        program = place / "app.py"
        program.write_text(IN_PROCESS.format(**self.values) + HYDRA)
        (place / "runs").mkdir()
        rates, seeds = (",".join(map(str, values)) for values in (self.rates, self.seeds))
        words = [
            f"+learning_rate={rates}",
            f"+seed={seeds}",
            f"+folder={place}/runs/${{learning_rate}}-${{seed}}",
        ]
        words += ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={self.cores}", "--multirun"]
        call([str(PEERS), str(program), *words], place)


QUIET = subprocess.DEVNULL
PEERS = ROOT / "benchmarks" / ".peers" / "bin" / "python"  # made by `make bench-study`


def environment() -> dict[str, str]:
    """Return the environment of all ways: one thread each, this Python first, compiled modules kept."""
    threads = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OPENBLAS_NUM_THREADS")
    env = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    return env | dict.fromkeys(threads, "1") | {"PATH": path}


def call(words: list[str], place: Path, text: str = "", more: dict[str, str] | None = None) -> str:
    """Run a command and return what it said; leave with that if it failed."""
    done = subprocess.run(
        words,
        cwd=place,
        env=environment() | (more or {}),
        input=text,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        sys.exit(f"{' '.join(words[:4])} failed:\n{done.stdout[-3000:]}")
    return done.stdout


def measure(bench: Bench, rounds: int) -> dict[str, list[float]]:
    """Run all ways in turn, `rounds` times; check that they agree."""
    seconds: dict[str, list[float]] = {name: [] for name in bench.ways}
    expected = None
    for number in range(rounds):
        for name in list(bench.ways)[:: -1 if number % 2 else 1]:
            with tempfile.TemporaryDirectory() as folder:
                started = time.monotonic()
                bench.ways[name](Path(folder))
                seconds[name].append(time.monotonic() - started)
                found = sorted(path.read_text() for path in Path(folder).rglob("metrics.json"))
            expected = expected or found
            if found != expected or len(found) != len(bench.rates) * len(bench.seeds):
                sys.exit(f"{name} gave other metrics than the first way")
            print(f"  round {number + 1}: {name}: {seconds[name][-1]:.1f} s", flush=True)
    return seconds


def table(seconds: dict[str, list[float]]) -> str:
    """Write medians, and ratios to the floor, as Markdown."""
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    floor = next(iter(medians.values()))
    lines = ["| way | median, s | of the floor |", "|---|---|---|"]
    lines += [f"| {name} | {median:.1f} | {median / floor:.2f} |" for name, median in medians.items()]
    return "\n".join(lines)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default: 3)")
    parser.add_argument("--runs", type=int, default=12, help="runs of the study (default: 12)")
    parser.add_argument(
        "--epochs", type=int, default=20, help="epochs of a run: 20 take 2 s, 350 take 20 s (default: 20)"
    )
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="runs at once (default: all cores)")
    parser.add_argument("--ways", nargs="+", default=[""], help="only ways whose name has one of these texts")
    options = parser.parse_args()
    bench = Bench(options.runs, options.epochs, options.cores)
    bench.ways = {n: way for n, way in bench.ways.items() if any(text in n for text in options.ways)}
    seconds = measure(bench, options.rounds)
    report = {
        "runs": options.runs,
        "epochs": options.epochs,
        "at_once": options.cores,
        "seconds": seconds,
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "system": platform.platform(),
        },
    }
    out = ROOT / "benchmarks" / "results" / f"study-{options.epochs}.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(
        f"\n{options.runs} runs of {options.epochs} epochs, {options.cores} at once:\n\n{table(seconds)}\n\nWritten to {out}"
    )


if __name__ == "__main__":
    main()
