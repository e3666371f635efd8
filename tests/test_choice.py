"""What follows from the choice: its test score, the ledger, confirmation by fresh seeds, and which models are kept."""

import csv
import json
import shlex
import shutil
import subprocess
import sys

import pytest
from study import EVAL, Study

# x=2 wins on validation data; on test data everything scores a tenth less, and every scoring is written down.
SPLITS = EVAL.replace(
    "json.dump(",
    """score = (x + model["seed"] / 100) / (1 + x) - (options.split == "test") / 10
    open("looks.txt", "a").write(f"{options.split} {options.model}\\n")
    json.dump(""",
).replace('"accuracy": (x + model["seed"] / 100) / (1 + x)', '"accuracy": score')
CONFIG = """\
train: python train.py {flags} --seed {seed} --model {model}
eval: python eval.py --model {model} --split {split} --metrics {metrics}
model: model.json
grid: {x: [1, 2]}
seeds: [1, 0]
"""


@pytest.fixture
def study(tmp_path) -> Study:
    """Make a study whose evaluation knows its split."""
    return Study(tmp_path, CONFIG, evaluate=SPLITS)


def looks(study: Study) -> list[str]:
    """List the runs that were scored on test data, in order."""
    lines = (study.folder / "looks.txt").read_text().splitlines()
    return [
        line.split("results/")[1].removesuffix("/model.json") for line in lines if line.startswith("test ")
    ]


def models(study: Study) -> set[str]:
    return {str(path.parent.relative_to(study.results)) for path in study.results.glob("*=*/**/model.json")}


def ledger(study: Study) -> list[dict]:
    return study.table("test-ledger.csv")


def test_only_the_choice_is_scored_on_test_data(study):
    outcome = study.snakemake()
    assert sorted(looks(study)) == ["x=2/seed=0", "x=2/seed=1"]
    test = study.json("test.json")
    best = test["best"]
    # By hand: (2 + 0)/3 and (2 + .01)/3 less .1; the difference to validation is .1.
    assert best["runs"] == ["x=2/seed=0", "x=2/seed=1"]
    assert best["scores"] == pytest.approx([2 / 3 - 0.1, 2.01 / 3 - 0.1])
    assert best["mean"] == pytest.approx(2.005 / 3 - 0.1)
    assert best["validation"] == pytest.approx(2.005 / 3)
    assert best["gap"] == pytest.approx(0.1)
    assert not best["confirmed"]
    assert test["scorings"] == 1
    assert "Its accuracy on test data: 0.5683 (95 % interval" in outcome.text
    assert "the test data was used 1 time so far" in outcome.text
    (line,) = ledger(study)
    assert (line["path"], line["combinations"], line["confirmed"]) == ("x=2", "2", "false")
    assert float(line["score"]) == best["mean"]
    # The model is that of the lowest seed, as a copy: whoever goes on from it changes no run.
    copy, model = study.results / "best/model.json", study.results / "x=2/seed=0/model.json"
    assert copy.read_bytes() == model.read_bytes()
    assert copy.stat().st_ino != model.stat().st_ino
    assert "Nothing to be done" in study.snakemake().text


def test_the_command_trains_the_choice_again(study):
    """It makes the same bytes, in whatever folder."""
    study.snakemake()
    best = study.json("best.json")
    words = shlex.split(best["best"]["train"])
    assert words[0] == "python"
    subprocess.run([sys.executable, *words[1:]], cwd=study.folder, check=True)
    assert (study.folder / "model.json").read_bytes() == (study.results / "best/model.json").read_bytes()
    assert best["why"] == (
        "It has the highest mean accuracy on validation data, 0.668333 over 2 seeds, of 2 combinations."
    )


def test_scores_of_others_are_refused(study):
    message = study.snakemake("results/x=2/seed=0/test.json", status=1).text
    assert "none is chosen while the study is incomplete" in message
    study.snakemake()
    message = study.snakemake("results/x=1/seed=0/test.json", status=1).text
    assert "results/x=1/seed=0/test.json: only the chosen combination is scored on test data" in message
    assert "the chosen one is results/x=2" in message
    study.snakemake("results/x=2/seed=0/test.json")
    study.edit("config.yaml", "[1, 2]", "[1, 2, 3]")
    message = study.snakemake("results/x=2/seed=0/test.json", status=1).text
    assert "none is chosen while the study is incomplete" in message
    assert len(looks(study)) == 2


def test_ledger_counts_every_choice(study):
    study.snakemake()
    study.edit(
        "config.yaml", "[1, 2]", "[0.5, 1, 2]"
    )  # the study grows, and chooses the same: no look at the test
    study.snakemake()
    assert len(looks(study)) == 2
    assert [row["combinations"] for row in ledger(study)] == ["2"]
    study.edit("config.yaml", "[0.5, 1, 2]", "[1, 2, 3]")  # another choice
    assert "the test data was used 2 times so far" in study.snakemake().text
    assert [(row["path"], row["combinations"]) for row in ledger(study)] == [("x=2", "2"), ("x=3", "3")]
    study.edit("config.yaml", "[1, 2, 3]", "[1, 2]")  # back: nothing is scored again
    study.snakemake()
    assert len(looks(study)) == 4
    assert study.json("test.json")["scorings"] == 2
    study.edit("eval.py", "/ 10", "/ 20")  # another program: another look
    assert study.snakemake().jobs == (0, 4)
    assert [row["path"] for row in ledger(study)] == ["x=2", "x=3", "x=2"]


def test_test_scores_know_what_they_are_of(study):
    """Without Snakemake's memory, too: a run that was trained again is tested again, what did not change is not."""
    study.snakemake()
    shutil.rmtree(study.folder / ".snakemake")
    study.snakemake()
    assert len(looks(study)) == 2
    shutil.rmtree(study.folder / ".snakemake")
    study.edit("package/number.py", "0", "1")
    assert study.snakemake().jobs == (4, 4)
    assert len(looks(study)) == 4
    assert "Nothing to be done" in study.snakemake().text


def test_without_a_split_there_is_no_test(study):
    study.edit("config.yaml", " --split {split}", "")
    outcome = study.snakemake()
    assert "Its score on test data: none, as the command under eval has no {split}." in outcome.text
    assert not (study.results / "test.json").exists()
    assert (study.results / "best/model.json").exists()
    message = study.snakemake("results/x=2/seed=0/test.json", status=1).text
    assert "the command under eval has no {split}" in message
    study.edit("config.yaml", "seeds:", "confirm: 2\nseeds:")
    assert "confirm: needs a test score, but eval has no {split}" in study.snakemake(status=1).text


def test_fresh_seeds_confirm_the_choice(study):
    study.edit("config.yaml", "seeds:", "confirm: 3\nseeds:")
    outcome = study.snakemake()
    assert outcome.jobs == (7, 4)  # fresh ones are trained and tested, not evaluated
    fresh = [f"x=2/seed={1_000_000 + i}" for i in range(3)]
    assert sorted(looks(study)) == fresh
    best = study.json("test.json")["best"]
    assert best["runs"] == fresh
    assert best["confirmed"]
    assert "over 3 fresh seeds" in outcome.text
    # They are no part of the ranking, nor of the runs, nor foreign.
    assert {row["seed"] for row in study.table()} == {"0", "1"}
    assert [row["runs"] for row in study.table("summary.csv")] == ["2", "2"]
    again = study.snakemake().text
    assert "Nothing to be done" in again
    assert "0 folders in results/ no longer part of the study" in again
    # Their staleness is seen without Snakemake's memory.
    shutil.rmtree(study.folder / ".snakemake")
    study.edit("package/number.py", "0", "1")
    assert study.snakemake().jobs == (7, 4)
    assert sorted(looks(study)) == sorted(fresh * 2)
    assert "Nothing to be done" in study.snakemake().text


def test_seeds_of_confirmation_are_not_for_the_study(study):
    study.edit("config.yaml", "[1, 0]", "[1, 1000000]")
    message = study.snakemake(status=1).text
    assert "seeds: [1, 1000000] is not taken" in message
    assert "from 0 to 999999" in message


def test_failed_test_is_told_and_goes_on(study):
    study.edit(
        "eval.py", "score = ", 'if options.split == "test": raise SystemExit("no test data")\n    score = '
    )
    outcome = study.snakemake(status=1)
    assert "It has no score on test data yet; missing: 2 runs." in outcome.text
    assert "failed: results/x=2/seed=0: test failed, exit status 1; log: " in outcome.text
    assert "| no test data" in outcome.text
    assert study.json("best.json")["best"]["path"] == "x=2"
    study.edit("eval.py", "no test data", "still none")
    study.edit("eval.py", 'if options.split == "test": ', "if False: ")
    study.snakemake()
    assert study.json("test.json")["best"]["mean"] == pytest.approx(2.005 / 3 - 0.1)


def test_keep_models_of_the_best_only(study):
    study.edit("config.yaml", "seeds:", "keep_models: best\nseeds:")
    study.snakemake()
    winners = {"x=2/seed=0", "x=2/seed=1"}
    assert models(study) == winners
    assert "Nothing to be done" in study.snakemake().text
    shutil.rmtree(study.folder / ".snakemake")
    assert study.snakemake().jobs == (0, 0)
    # A model comes back when it is asked for, and stays until the study has to run again.
    assert study.snakemake("results/x=1/seed=0/model.json").jobs == (1, 0)
    assert models(study) == winners | {"x=1/seed=0"}
    assert study.snakemake().jobs == (0, 0)
    # A grown study disturbs none of the others.
    study.edit("config.yaml", "[1, 2]", "[1, 2, 3]")
    assert study.snakemake().jobs == (2, 2)
    assert models(study) == {"x=3/seed=0", "x=3/seed=1"}
    # A smaller one chooses one whose models are gone: they are made again, and nothing else is.
    study.edit("config.yaml", "[1, 2, 3]", "[1, 2]")
    assert study.snakemake().jobs[0] <= 2
    assert (study.results / "best/model.json").read_bytes() == (
        study.results / "x=2/seed=0/model.json"
    ).read_bytes()
    assert "Nothing to be done" in study.snakemake().text


def test_failed_addition_takes_the_choice_back(study):
    """The answer of before is not that of the study that is asked for now."""
    study.snakemake()
    study.edit("config.yaml", "[1, 2]", "[1, 2, oops]")
    study.snakemake(status=1)
    for name in ("best.json", "summary.csv", "effects.csv", "test.json", "best"):
        assert not (study.results / name).exists()
    assert len(ledger(study)) == 1
    study.edit("config.yaml", "[1, 2, oops]", "[1, 2]")
    assert study.snakemake().jobs == (0, 0)
    assert len(looks(study)) == 2


def test_failures_may_count(study):
    """A run that failed by its own doing counts against its combination, if the config says so."""
    study.edit("config.yaml", "[1, 2]", "[1, 2, 3]")
    study.edit("config.yaml", "seeds:", "failures: count\nseeds:")
    study.edit(
        "eval.py", "score = ", 'if (x, model["seed"]) == (3, 0): raise SystemExit("boom")\n    score = '
    )
    study.snakemake(status=1)
    assert not (study.results / "best.json").exists()
    outcome = study.snakemake()
    assert outcome.jobs == (0, 0)
    assert "Counted as failed: 1 run" in outcome.text
    rows = {row["path"]: row for row in study.table("summary.csv")}
    assert (rows["x=3"]["rank"], rows["x=3"]["verdict"], rows["x=3"]["failed"]) == ("", "failed", "1")
    assert study.json("best.json")["best"]["path"] == "x=2"
    assert "1 could not be ranked" in study.json("best.json")["why"]
    assert [row["status"] for row in study.table()].count("failed") == 1
    assert "Nothing to be done" in study.snakemake().text
    # `retry` tries it again, and so does a change of what it is made with.
    study.snakemake("--config", "failures=retry", status=1)
    assert not (study.results / "best.json").exists()
    study.edit("eval.py", "(3, 0)", "(4, 0)")
    study.snakemake()
    assert study.json("best.json")["best"]["path"] == "x=3"


def test_all_failed_chooses_nothing(study):
    study.edit("config.yaml", "seeds:", "failures: count\nseeds:")
    study.edit("eval.py", "score = ", 'if model["seed"] == 0: raise SystemExit("boom")\n    score = ')
    study.snakemake(status=1)
    study.snakemake()
    assert study.json("best.json")["best"] is None
    assert study.json("test.json")["best"] is None
    assert not (study.results / "best/model.json").exists()
    assert "Nothing to be done" in study.snakemake().text
    with (study.results / "summary.csv").open() as file:
        assert [row["verdict"] for row in csv.DictReader(file)] == ["failed", "failed"]
    assert json.loads((study.results / "best.json").read_text())["why"].startswith("Every combination has")
