"""Whole studies on tiny programs: what a user types, from the config to the table."""

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from study import CONFIG, EVAL, ROOT, TRAIN, Study


def test_tables_follow_the_config(finished):
    rows = finished.table()
    assert [row["status"] for row in rows] == ["finished"] * 8
    # eval.py: accuracy = (x + seed / 100) / (1 + x), loss = 1 / (1 + x).
    row = next(r for r in rows if (r["x"], r["y"], r["seed"]) == ("2", "sgd", "1"))
    assert row == {
        "status": "finished",
        "reason": "",
        "seed": "1",
        "x": "2",
        "y": "sgd",
        "accuracy": repr(2.01 / 3),
        "loss": repr(1 / 3),
        "path": "results/x=2/y=sgd/seed=1",
    }
    best = finished.json("best.json")
    assert best["best"]["hyperparameters"] == {"x": 2, "y": "adam"}  # equal to sgd; the first stays first
    assert best["best"]["mean"] == pytest.approx((2.0 + 2.01) / 2 / 3, abs=1e-15)
    assert best["combinations"] == 4


def test_a_run_has_its_files(finished):
    names = {path.name for path in (finished.results / "x=1/y=adam/seed=0").iterdir()}
    assert names == {
        "model.json",
        "history.csv",
        "record.json",
        "metrics.json",
        "evaluation.json",
        "attempts.jsonl",
        "logs",
    }


def test_opening_line_and_dry_run_change_nothing(study):
    outcome = study.snakemake("-n")
    assert (
        "Study (config.yaml): 4 combinations x 2 seeds = 8 runs asked for; 0 results already there; "
        "0 folders in results/ no longer part of the study." in outcome.text
    )
    assert not [path for path in study.results.rglob("*") if "=" in path.name]


def test_odd_values_reach_the_program_unchanged(study):
    """C06, C07: https://github.com/snakemake/snakemake/issues/2981 and others."""
    tags = [
        "a b",
        "it's",
        'say "x"',
        "50%",
        "k=v",
        "a,b",
        "$HOME",
        "x;touch PWNED",
        "*",
        "é-σ",
        "-adam",
        "-1e-3",
    ]
    tags += [
        "data/a.csv",
        "data//a.csv",
        "../a.csv",
        "/abs/a.csv",
        "{model}",
        "{{",
        "{write:x}",
        "",
        "~",
        "a\nb",
        "true",
    ]
    study.edit("config.yaml", "  x: [1, 2]\n  y: [adam, sgd]", f"  tag: {json.dumps(tags)}\n  shift: [-1e-3]")
    study.edit("config.yaml", "seeds: [0, 1]", "seeds: 1")
    assert study.snakemake().jobs == (len(tags), len(tags))
    seen = [json.loads(path.read_text())["flags"] for path in study.results.glob("*=*/**/model.json")]
    assert sorted(flags[2].removeprefix("--tag=") for flags in seen) == sorted(tags)
    assert {tuple(flags[:2]) for flags in seen} == {("--epochs=2", "--shift=-0.001")}
    assert {path.parent.parent.parent.name for path in study.results.glob("*=*/**/model.json")} == {
        "shift=-0.001"
    }
    assert not list(study.folder.rglob("PWNED"))
    assert sorted(row["tag"] for row in study.table()) == sorted(tags)
    assert study.snakemake().jobs == (0, 0)


def test_booleans_lists_and_null(study):
    """C02 to C04: booleans and lists reach the program as argparse takes them, null as no flag at all."""
    study.edit(
        "config.yaml",
        "  x: [1, 2]\n  y: [adam, sgd]",
        "  augment: [true, false]\n  hidden: [[64, 64], [128], []]\n  clipnorm: [null, 0.5]",
    )
    study.edit("config.yaml", "seeds: [0, 1]", "seeds: 1")
    assert study.snakemake().jobs == (12, 12)
    flags = {
        str(p.parent.relative_to(study.results)): json.loads(p.read_text())["flags"]
        for p in study.results.glob("*=*/**/model.json")
    }
    assert flags["augment=true/clipnorm=null/hidden=64+64/seed=0"] == [
        "--augment",
        "--epochs=2",
        "--hidden",
        "64",
        "64",
    ]
    assert flags["augment=false/clipnorm=0.5/hidden=128+/seed=0"] == [
        "--no-augment",
        "--clipnorm=0.5",
        "--epochs=2",
        "--hidden",
        "128",
    ]
    assert flags["augment=false/clipnorm=0.5/hidden=+/seed=0"] == [
        "--no-augment",
        "--clipnorm=0.5",
        "--epochs=2",
        "--hidden",
    ]


def test_long_names_are_folded(study):
    """C11: https://github.com/snakemake/snakemake/issues/1771."""
    axes = {f"p_very_long_name_{i:02}": ["123456789012345"] for i in range(1, 21)}
    axes["p_very_long_name_20"] = ["12345678901234a", "12345678901234b"]
    study.edit(
        "config.yaml",
        "  x: [1, 2]\n  y: [adam, sgd]",
        "\n".join(f"  {k}: {json.dumps(v)}" for k, v in axes.items()),
    )
    assert study.snakemake().jobs == (4, 4)
    runs = [path.parent for path in study.results.glob("*=*/**/model.json")]
    assert all(len(str(run.relative_to(study.results)).encode()) <= 200 for run in runs)
    assert len({run.parent for run in runs}) == 2  # replicates are siblings
    records = [json.loads((run / "record.json").read_text())["made_with"]["run"] for run in runs]
    assert {record.split("/")[19] for record in records} == {
        "p_very_long_name_20=12345678901234a",
        "p_very_long_name_20=12345678901234b",
    }
    flags = [json.loads((run / "model.json").read_text())["flags"] for run in runs]
    assert all(len(words) == 21 for words in flags)
    assert study.snakemake().jobs == (0, 0)


def test_undeclared_point_runs_when_its_path_is_asked_for(finished):
    outcome = finished.snakemake("results/x=0.5/y=adam/seed=7/metrics.json")
    assert outcome.jobs == (1, 1)
    assert finished.json("x=0.5/y=adam/seed=7/model.json") == {
        "seed": 7,
        "flags": ["--epochs=2", "--x=0.5", "--y=adam"],
        "bonus": 0,
    }
    assert len(finished.table()) == 8
    assert finished.snakemake("results/x=0.5/y=adam/seed=7/metrics.json").jobs == (0, 0)
    finished.edit("helper.py", "number.ZERO", "number.ZERO + 1")
    assert finished.snakemake("-n", "results/x=0.5/y=adam/seed=7/metrics.json").jobs == (1, 1)


@pytest.mark.parametrize(
    ("path", "right"),
    [
        ("x=01/y=adam/seed=0", "'1'"),
        ("x=1e-3/y=adam/seed=0", "'0.001'"),
        ("x=1/y=adam/seed=007", "results/x=1/y=adam/seed=7"),
        ("y=adam/x=1/seed=0", "results/x=1/y=adam/seed=0"),
        ("dropout=0.0/x=1/y=adam/seed=0", "results/x=1/y=adam/seed=0"),
        ("x=1/y=a~2fb/seed=0", "'a~2Fb'"),
        ("x=1/y=adam", "results/x=1/y=adam/seed=0"),
        ("epochs=9/x=1/y=adam/seed=0", "'epochs' is fixed in this study"),
        (
            "dropuot=0.5/x=1/y=adam/seed=0",
            "'dropuot' is no hyperparameter of this study; did you mean 'dropout'?",
        ),
        (
            "x=1/y=adam/zebra=1/seed=0",
            "'zebra' is no hyperparameter of this study; there are: dropout, epochs, x, y",
        ),
        ("x=1/y=adam/seed=x", "must end in a seed, as in results/x=1/y=adam/seed=0/metrics.json"),
    ],
)
def test_paths_written_otherwise_are_refused(study, path, right):
    study.edit("config.yaml", "grid:", "defaults: {dropout: 0.0}\ngrid:")
    outcome = study.snakemake(f"results/{path}/metrics.json", status=1)
    assert path in outcome.text
    assert right in outcome.text


def test_a_runs_folder_is_no_target(study):
    message = study.snakemake("results/x=1/y=adam/seed=0", status=1).text
    assert "is a run's folder; ask for a file in it, as in results/x=1/y=adam/seed=0/metrics.json" in message


def test_point_beside_the_study_that_lacks_a_hyperparameter_or_fails(finished):
    finished.edit(
        "train.py",
        "options, flags =",
        "import sys\nif '--x=7' in sys.argv: sys.exit('boom')\noptions, flags =",
    )
    outcome = finished.snakemake("--cores", "1", "results/x=7/seed=0/metrics.json", status=1)
    assert "Note: results/x=7/seed=0 has no y, which every combination of the study has" in outcome.text
    assert "  failed: results/x=7/seed=0: train failed, exit status 1; log: " in outcome.text


def test_finished_study_says_what_is_best(finished):
    assert "Best: results/x=2/y=adam, accuracy 0.6683 on validation data" in finished.snakemake().text


def test_two_configs_in_one_folder_are_told(finished):
    finished.write("other.yaml", CONFIG.replace("[1, 2]", "[3]") + "report: false\n")
    outcome = finished.snakemake("--configfile", "other.yaml")
    assert "Study (other.yaml): 2 combinations" in outcome.text
    assert "Note: results/ was last used by config.yaml; runs are kept side by side" in outcome.text
    assert "results/ was last used" not in finished.snakemake("--configfile", "other.yaml").text


def test_metric_that_no_run_reports_is_told_at_once_and_at_the_end(study):
    study.edit("config.yaml", "seeds:", "select: {metric: acuracy}\nseeds:")
    outcome = study.snakemake(status=1)
    assert "Note: select.metric: 'acuracy' is not among the metrics of x=" in outcome.text
    assert "(accuracy, loss)" in outcome.text
    assert "select.metric: 'acuracy' is in no run's metrics; there are: accuracy, loss." in outcome.text
    study.edit("config.yaml", "acuracy", "accuracy")
    assert study.snakemake().jobs == (0, 0)


@pytest.mark.parametrize("score", ['"good"', "true"])
def test_metric_that_is_no_number_is_told(study, score):
    study.edit(
        "eval.py", '{"accuracy": (x + model["seed"] / 100) / (1 + x)', f'{{"accuracy": {score.title()}'
    )
    study.snakemake()
    assert {row["reason"] for row in study.table()} == {"no number as accuracy"}
    assert {row["verdict"] for row in study.table("summary.csv")} == {"no number as accuracy"}


def test_another_config_replaces_the_shipped_one(study):
    study.write("other.yaml", CONFIG.replace("  x: [1, 2]\n", "").replace("results", "other"))
    outcome = study.snakemake("--configfile", "other.yaml", "--config", "results=elsewhere", "seeds=1")
    assert outcome.jobs == (2, 2)
    assert (study.folder / "elsewhere/y=adam/seed=0/metrics.json").exists()


def test_from_another_folder(study, tmp_path_factory):
    """`-d` elsewhere: the programs and data there come first, then those beside the Snakefile."""
    place = tmp_path_factory.mktemp("elsewhere")
    outcome = study.snakemake("-d", str(place), "--configfile", "config.yaml", status=1)
    assert "there is no file 'train.py'" in outcome.text
    outcome = study.snakemake("-d", str(study.folder), "-n")
    assert outcome.jobs == (8, 8)
    outcome = study.snakemake("-d", str(place), "-n")  # the shipped study, its programs and data
    assert outcome.jobs == (10, 10)


def test_model_may_be_a_folder_and_history_and_data_may_be_absent(tmp_path):
    train = TRAIN.replace(
        "with open(options.model", "import os\nos.mkdir(options.model)\nwith open(options.model + '/weights'"
    )
    evaluate = EVAL.replace("open(options.model)", "open(options.model + '/weights')")
    config = """\
    train: python train.py {flags} --seed={seed} --model {model}
    eval: python eval.py --model {model} --metrics={metrics}
    model: model/
    grid: {x: [1, 2]}
    seeds: 1
    """
    study = Study(tmp_path, config, train, evaluate)
    assert study.snakemake().jobs == (2, 2)
    assert (study.results / "x=1/seed=0/model/weights").exists()
    assert study.snakemake().jobs == (0, 0)


def test_files_named_by_hyperparameters_are_tracked(study):
    study.write("a.csv", "a")
    study.write("b.csv", "b")
    study.edit("config.yaml", "  y: [adam, sgd]", "  dataset: [a.csv, b.csv]")
    study.edit("config.yaml", "grid:", "files: [dataset]\ngrid:")
    assert study.snakemake().jobs == (8, 8)
    study.write("b.csv", "B")
    outcome = study.snakemake()
    assert outcome.jobs == (4, 4)
    assert "Stale (train: dataset:b.csv changed): 4 runs" in outcome.text
    outcome = study.snakemake("results/dataset=c.csv/x=1/seed=0/metrics.json", status=1)
    assert "dataset: 'c.csv' does not exist" in outcome.text


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("import sys", "without writing metrics.json"),
        ("import sys; open(sys.argv[sys.argv.index('--metrics') + 1], 'w')", "metrics.json is empty"),
        (
            "import sys; open(sys.argv[sys.argv.index('--metrics') + 1], 'w').write('{\"a\": 1')",
            "metrics.json is no JSON",
        ),
        ("import sys; print('giving up'); sys.exit(3)", "giving up"),
    ],
    ids=["none", "empty", "half", "exit status 3"],
)
def test_no_or_bad_output_is_a_failure(study, program, says):
    """C21: https://github.com/snakemake/snakemake/issues/344."""
    study.edit("config.yaml", "[1, 2]", "[1]")
    study.write("eval.py", program)
    outcome = study.snakemake(status=1)
    assert says in outcome.text
    assert [row["status"] for row in study.table()] == ["failed"] * 4
    assert not list(study.results.rglob("metrics.json"))
    study.write("eval.py", EVAL)
    assert study.snakemake().jobs == (0, 4)  # what was trained stays trained


def test_one_failed_run_stops_no_other(study):
    study.edit(
        "train.py",
        "import helper",
        "import sys\nif '--x=2' in sys.argv and '--y=sgd' in sys.argv: sys.exit('too big')\nimport helper",
    )
    outcome = study.snakemake(status=1)
    rows = study.table()
    assert sorted(row["status"] for row in rows) == ["failed"] * 2 + ["finished"] * 6
    assert "too big" in outcome.text
    assert "logs/train.1.log" in outcome.text
    assert not (study.results / "summary.csv").exists()
    outcome = study.snakemake(status=1)
    assert outcome.jobs == (2, 0)
    assert sorted(path.name for path in (study.results / "x=2/y=sgd/seed=0/logs").iterdir()) == [
        "train.1.log",
        "train.2.log",
        "train.log",
    ]


def test_diverged_run_is_a_result_and_never_the_best(study):
    """C18, C19: NaN is written by Python's json as no JSON, and max() may pick it."""
    study.edit("eval.py", '"loss": 1 / (1 + x)', '"loss": float("nan") if x == 2 else 1 / (1 + x)')
    study.edit("eval.py", '"accuracy": (x', '"accuracy": float("nan") if x == 2 else (x')
    assert study.snakemake().jobs == (8, 8)
    assert study.json("x=2/y=adam/seed=0/metrics.json") == {"accuracy": None, "loss": None}
    assert sorted(row["status"] for row in study.table()) == ["diverged"] * 4 + ["finished"] * 4
    assert study.json("best.json")["best"]["hyperparameters"]["x"] == 1
    assert study.snakemake().jobs == (0, 0)


def test_columns_of_one_name_are_told_apart(study):
    study.edit("config.yaml", "  y: [adam, sgd]", "  path: [a]\n  loss: [b]")
    study.snakemake()
    row = study.table()[0]
    assert (row["hyperparameter.path"], row["loss"], row["metric.loss"]) == ("a", "b", "0.5")
    assert row["path"] == "results/loss=b/path=a/x=1/seed=0"


def test_unknown_metric_names_those_there_are(study):
    study.edit("config.yaml", "grid:", "select: {metric: f1}\ngrid:")
    outcome = study.snakemake(status=1)
    assert "select.metric: 'f1' is in no run's metrics; there are: accuracy, loss" in outcome.text


def test_thread_pools_get_the_declared_number(study):
    study.edit(
        "train.py",
        "import helper",
        "import os\nimport helper\nprint(os.environ['OMP_NUM_THREADS'], os.environ['TF_NUM_INTRAOP_THREADS'])",
    )
    study.edit("config.yaml", "grid:", "threads: 3\ngrid:")
    study.snakemake("results/x=1/y=adam/seed=0/metrics.json")
    assert (study.results / "x=1/y=adam/seed=0/logs/train.1.log").read_text() == "3 3\n"


def test_an_executor_cuts_no_wildcard(study):
    """The jobs go through cluster-generic: Snakemake hands them over as text and starts itself anew."""
    study.edit(
        "config.yaml", "  y: [adam, sgd]", '  y: ["a,b=2", "50%", "data/x y"]\n  hidden: [[64, 64, 64, 64]]'
    )
    study.edit("config.yaml", "grid:", "defaults: {dropout: 0.5}\ngrid:")
    study.edit("config.yaml", "seeds: [0, 1]", "seeds: 1")
    arguments = ["--executor", "cluster-generic", "--cluster-generic-submit-cmd", "bash", "--jobs", "2"]
    study.snakemake("--cores", "2", *arguments, "--seconds-between-status-checks", "1")
    attempts = [
        json.loads(path.read_text().splitlines()[-1]) for path in study.results.rglob("attempts.jsonl")
    ]
    assert [attempt["reason"] for attempt in attempts] == ["finished"] * 6
    flags = sorted(json.loads(p.read_text())["flags"][-1] for p in study.results.glob("*=*/**/model.json"))
    assert flags == sorted(["--y=a,b=2", "--y=50%", "--y=data/x y"] * 2)
    assert study.snakemake().jobs == (0, 0)  # the same study, run locally


def start(study: Study, *arguments: str) -> subprocess.Popen:
    """Start a study and return when all its runs sleep."""
    study.edit(
        "train.py",
        "import helper",
        "import os, time\nimport helper\nif os.path.exists('sleep'): open('pid-%d' % os.getpid(), 'w'); time.sleep(600)",
    )
    study.write("sleep", "")
    words = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "--cores", "2", *arguments]
    process = subprocess.Popen(
        words, cwd=study.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while len(list(study.folder.glob("pid-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    return process


def programs(study: Study) -> list[int]:
    """List the programs of a study that are alive."""
    alive = []
    for path in study.folder.glob("pid-*"):
        pid = int(path.name.removeprefix("pid-"))
        with suppress(OSError):  # it may end while we look
            if Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
                alive.append(pid)
    return alive


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda n: n.name)
def test_a_signal_ends_the_study_and_the_same_command_resumes(study, number):
    study.edit("config.yaml", "[1, 2]", "[1]")
    assert study.snakemake("results/x=1/y=adam/seed=0/metrics.json").jobs == (1, 1)
    process = start(study)
    assert len(programs(study)) == 2
    process.send_signal(number)
    assert process.wait(timeout=10) != 0
    deadline = time.monotonic() + 5
    while programs(study) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert programs(study) == []
    (study.folder / "sleep").unlink()
    if number == signal.SIGKILL:  # Snakemake could not take its lock along
        study.snakemake("--unlock")
    outcome = study.snakemake("-n")
    assert outcome.jobs[1] == 4  # train.py was edited, so all four runs, each once
    assert study.snakemake().jobs == (4, 4)
