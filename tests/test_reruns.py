"""What runs again after a finished study of 2 x 2 combinations and 2 seeds: the README's table, row by row."""

import os
import shutil

import pytest
from study import CONFIG


def test_nothing_runs_again(finished):
    outcome = finished.snakemake()
    assert outcome.jobs == (0, 0)
    assert "Nothing to be done" in outcome.text


@pytest.mark.parametrize(
    "name", ["config.yaml", "data.bin", "train.py", "helper.py", "package/number.py", "eval.py"]
)
def test_touch_runs_nothing(finished, name):
    os.utime(finished.folder / name)
    assert finished.snakemake("-n").jobs == (0, 0)


def test_reordered_keys_and_values_run_nothing(finished):
    lines = CONFIG.replace("[1, 2]", "[2, 1]").replace("seeds: [0, 1]", "seeds: [1, 0]").splitlines()
    grid = lines.index("grid:")
    finished.write("config.yaml", "\n".join([*lines[grid:], *lines[:grid]]) + "\n")
    assert finished.snakemake().jobs == (0, 0)


def test_comments_and_formatting_run_nothing(finished):
    finished.edit("config.yaml", "grid:", "\n# what to try\ngrid:")
    finished.edit("train.py", "Train nothing in no time", "Train a little")
    finished.edit("train.py", "import json\n", "import json  # the model's format\n\n\n")
    finished.edit("package/number.py", "ZERO = 0", "# zero\nZERO = (0)")
    finished.edit("eval.py", "Score the model", "Judge the model")
    assert finished.snakemake().jobs == (0, 0)


@pytest.mark.parametrize(
    "arguments",
    [["--cores", "1"], ["--resources", "gpu=1"], ["--workflow-profile", "none"], ["--config", "threads=2"]],
    ids=" ".join,
)
def test_resources_cores_and_profile_run_nothing(finished, arguments):
    assert finished.snakemake(*arguments, "--dry-run").jobs == (0, 0)


def test_one_value_more(finished):
    finished.edit("config.yaml", "[1, 2]", "[1, 2, 3]")
    assert finished.snakemake().jobs == (4, 4)
    assert finished.snakemake().jobs == (0, 0)
    assert len(finished.table()) == 12


def test_one_value_removed_then_put_back(finished):
    finished.edit("config.yaml", "[1, 2]", "[1]")
    outcome = finished.snakemake()
    assert outcome.jobs == (0, 0)
    assert {row["x"] for row in finished.table("summary.csv")} == {"1"}  # the table follows the config
    assert "4 folders in results/ no longer part of the study" in outcome.text
    finished.write("config.yaml", CONFIG)
    assert finished.snakemake().jobs == (0, 0)
    assert {row["x"] for row in finished.table("summary.csv")} == {"1", "2"}


def test_new_hyperparameter_at_its_default(finished):
    finished.edit("config.yaml", "grid:", "defaults: {dropout: 0.0}\ngrid:")
    assert finished.snakemake().jobs == (0, 0)


def test_new_hyperparameter_with_one_more_value_and_a_later_default(finished):
    finished.edit("config.yaml", "grid:", "defaults: {dropout: 0.0}\ngrid:\n  dropout: [0.0, 0.5]")
    assert finished.snakemake().jobs == (8, 8)
    assert {(r["dropout"], "dropout=" in r["path"]) for r in finished.table()} == {
        ("0.0", False),
        ("0.5", True),
    }
    model = finished.json("x=1/y=adam/seed=0/model.json")
    assert "--dropout=0.0" not in model["flags"]  # made before the flag was known, and kept
    model = finished.json("dropout=0.5/x=1/y=adam/seed=0/model.json")
    assert "--dropout=0.5" in model["flags"]
    # The default changed later: an ordinary point, and the old runs keep their meaning.
    finished.write("config.yaml", CONFIG.replace("grid:", "defaults: {dropout: 0.1}\ngrid:"))
    assert finished.snakemake().jobs == (8, 8)
    assert {(r["dropout"], "dropout=0.1" in r["path"]) for r in finished.table()} == {("0.1", True)}
    finished.write(
        "config.yaml", CONFIG.replace("grid:", "defaults: {dropout: 0.1}\ngrid:\n  dropout: [0.0, 0.1]")
    )
    assert finished.snakemake().jobs == (0, 0)
    assert len(finished.table()) == 16


def test_default_is_passed_as_a_flag(study):
    study.edit("config.yaml", "grid:", "defaults: {dropout: 0.0}\ngrid:")
    study.snakemake("results/x=1/y=adam/seed=0/metrics.json")
    assert study.json("x=1/y=adam/seed=0/model.json")["flags"] == [
        "--dropout=0.0",
        "--epochs=2",
        "--x=1",
        "--y=adam",
    ]


def test_fixed_value_changed(finished):
    finished.edit("config.yaml", "epochs: 2", "epochs: 3")
    outcome = finished.snakemake()
    assert outcome.jobs == (8, 8)
    assert "epochs 2 → 3" in outcome.text
    assert "before: 'fixed --epochs=2' now: 'fixed --epochs=3'" in outcome.log  # Snakemake's own reason
    assert finished.snakemake().jobs == (0, 0)
    # Back again: the results of 2 epochs are gone, so they are made again, never taken for others.
    finished.edit("config.yaml", "epochs: 3", "epochs: 2")
    assert finished.snakemake().jobs == (8, 8)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("train.py", '"epoch,loss\\n1,0.5\\n"', '"epoch,loss\\n1,0.25\\n"'),
        ("helper.py", "number.ZERO", "number.ZERO + 1"),
        ("package/number.py", "0", "1"),
        ("package/__init__.py", "", "import os"),
    ],
    ids=["program", "local module", "package, imported inside a function", "package itself"],
)
def test_training_code_changed(finished, name, old, new):
    if name == "package/__init__.py":
        finished.write(name, new)
    else:
        finished.edit(name, old, new)
    outcome = finished.snakemake()
    assert outcome.jobs == (8, 8)
    assert f"Stale (train: {name} changed): 8 runs" in outcome.text
    assert finished.snakemake().jobs == (0, 0)


def test_evaluation_code_changed(finished):
    finished.edit("eval.py", "1 / (1 + x)", "2 / (1 + x)")
    outcome = finished.snakemake()
    assert outcome.jobs == (0, 8)
    assert "Stale (evaluate: eval.py changed): 8 runs" in outcome.text
    assert finished.table()[0]["loss"] == "1.0"  # 2 / (1 + 1)
    assert finished.snakemake().jobs == (0, 0)


@pytest.mark.parametrize("size", [1_000, 50_000_000])
def test_one_byte_of_data_changed_its_mtime_kept(study, size):
    data = study.folder / "data.bin"
    data.write_bytes(bytes(size))
    study.edit("config.yaml", "[1, 2]", "[1]")
    assert study.snakemake().jobs == (4, 4)
    before = data.stat()
    with data.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\1")
    os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert study.snakemake("-n").jobs == (4, 4)


def test_one_byte_inside_a_data_folder_changed(study):
    study.write("images/a/1.txt", "one")
    study.write("images/b/2.txt", "two")
    study.edit("config.yaml", "data.bin", "images")
    assert study.snakemake().jobs == (8, 8)
    path = study.folder / "images/b/2.txt"
    before = path.stat()
    path.write_text("Two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    outcome = study.snakemake()
    assert outcome.jobs == (8, 8)
    assert "Stale (train: images changed): 8 runs" in outcome.text


def test_snakemake_memory_lost(finished):
    shutil.rmtree(finished.folder / ".snakemake")
    assert finished.snakemake().jobs == (0, 0)


def test_results_copied_elsewhere_in_any_order(finished, tmp_path_factory):
    """A copy that keeps no times may make a model newer than its metrics."""
    shutil.rmtree(finished.folder / ".snakemake")
    copy = tmp_path_factory.mktemp("copy") / "elsewhere"
    shutil.copytree(finished.folder, copy, copy_function=shutil.copyfile)
    for order, name in enumerate(
        ["metrics.json", "evaluation.json", "record.json", "history.csv", "model.json"]
    ):
        for path in copy.rglob(name):
            os.utime(path, (10**9 + order, 10**9 + order))
    finished.folder = copy
    assert finished.snakemake().jobs == (0, 0)


def test_snakemake_memory_lost_and_training_code_changed(finished):
    shutil.rmtree(finished.folder / ".snakemake")
    finished.edit("helper.py", "number.ZERO", "number.ZERO + 1")
    outcome = finished.snakemake("-n")
    assert "results/x=1/y=adam/seed=0" in outcome.text.split("Building DAG")[0]
    assert outcome.jobs == (8, 8)
    assert finished.snakemake().jobs == (8, 8)
    assert finished.json("x=1/y=adam/seed=0/model.json")["bonus"] == 1
    assert finished.snakemake().jobs == (0, 0)


def test_snakemake_memory_lost_and_evaluation_code_changed(finished):
    shutil.rmtree(finished.folder / ".snakemake")
    finished.edit("eval.py", "1 / (1 + x)", "2 / (1 + x)")
    assert finished.snakemake().jobs == (0, 8)
    assert finished.snakemake().jobs == (0, 0)


def test_snakemake_memory_lost_and_space_shrunk(finished):
    shutil.rmtree(finished.folder / ".snakemake")
    finished.edit("config.yaml", "[1, 2]", "[1]")
    assert finished.snakemake().jobs == (0, 0)
    assert {row["x"] for row in finished.table("summary.csv")} == {"1"}


def test_stale_runs_that_fail_again_are_named_stale_and_never_win(finished):
    shutil.rmtree(finished.folder / ".snakemake")
    finished.edit("train.py", "import helper", "import helper\nraise SystemExit(3)")
    outcome = finished.snakemake(status=1)
    assert outcome.jobs == (8, 0)
    assert not (finished.results / "best.json").exists()
    assert {row["status"] for row in finished.table()} <= {"stale", "failed"}


@pytest.mark.parametrize("lost", [".snakemake", None])
def test_model_without_its_record_is_trained_again(finished, lost):
    """Nobody knows what made it."""
    if lost:
        shutil.rmtree(finished.folder / lost)
    (finished.results / "x=1/y=adam/seed=0/record.json").unlink()
    outcome = finished.snakemake()
    assert "its record is missing" in outcome.text
    assert outcome.jobs == (1, 1)
    assert {row["status"] for row in finished.table()} == {"finished"}
    assert finished.snakemake().jobs == (0, 0)


def test_touching_outputs_does_not_hide_a_change(finished):
    """`snakemake --touch` would have Snakemake take the old results for new ones."""
    finished.edit("helper.py", "number.ZERO", "number.ZERO + 1")
    finished.snakemake("--touch")
    assert finished.snakemake().jobs == (8, 8)


def test_accept_keeps_finished_runs(finished):
    finished.edit("train.py", 'add_argument(f"--{name}")', 'add_argument(f"--{name}", default=None)')
    before = {
        p: p.stat().st_mtime_ns for p in finished.results.rglob("*") if p.is_file() and "seed=" in str(p)
    }
    outcome = finished.snakemake("-n")
    assert outcome.jobs == (8, 8)
    assert "snakemake --cores 1 accept" in outcome.text
    outcome = finished.snakemake("accept")
    assert "Accepted for 8 runs (train)" in outcome.text
    after = {
        p: p.stat().st_mtime_ns for p in finished.results.rglob("*") if p.is_file() and "seed=" in str(p)
    }
    assert before == after
    assert finished.snakemake().jobs == (0, 0)
    # New points are made by the new code; a real change later makes all of them stale.
    finished.edit("config.yaml", "[1, 2]", "[1, 2, 3]")
    assert finished.snakemake().jobs == (4, 4)
    assert finished.snakemake().jobs == (0, 0)
    finished.edit("train.py", "0.5", "0.7")
    assert finished.snakemake("-n").jobs == (12, 12)


def test_a_run_copied_over_another_is_seen(finished):
    one, other = finished.results / "x=1/y=adam/seed=0", finished.results / "x=2/y=adam/seed=0"
    shutil.rmtree(other)
    shutil.copytree(one, other)
    shutil.rmtree(finished.folder / ".snakemake")
    assert finished.snakemake().jobs == (1, 1)


def test_marker_between_training_and_evaluation_hides_nothing(finished):
    """The marker that shows a stale run to Snakemake must be newer than its evaluation, not its training alone."""
    shutil.rmtree(finished.folder / ".snakemake")
    now = 10**9
    for name, age in {
        "model.json": 300,
        "history.csv": 300,
        "record.json": 300,
        "metrics.json": 100,
        "evaluation.json": 100,
    }.items():
        for path in finished.results.rglob(name):
            os.utime(path, (now - age, now - age))
    os.utime(finished.results / ".sweep/stale", (now - 200, now - 200))
    finished.edit("eval.py", "1 / (1 + x)", "2 / (1 + x)")
    assert finished.snakemake("-n").jobs == (0, 8)


def test_a_program_edited_while_it_trains_and_put_back(study):
    """Some of the runs were made by the one version, some by the other, and the plan knew only the first."""
    helper = (study.folder / "helper.py").read_text()
    study.edit("train.py", "import helper\n", "import edit, helper\n")
    study.write(
        "edit.py",
        f"""\
        from pathlib import Path
        if Path("edit").exists():
            Path("helper.py").write_text({helper + "x = 1"!r})
        """,
    )
    study.write("edit", "")
    outcome = study.snakemake()
    assert "The program of train was edited while the study ran: 8 results" in outcome.text
    assert {row["status"] for row in study.table()} == {"stale"}
    study.write("helper.py", helper)
    (study.folder / "edit").unlink()
    assert "Stale (train: helper.py changed): 8 runs" in study.snakemake("-n").text  # and no other module
    # Nobody knows what they were made with, so nobody can say that it gives the same.
    assert "Nothing to accept" in study.snakemake("accept").text
    assert study.snakemake().jobs == (8, 8)
    assert {row["status"] for row in study.table()} == {"finished"}
