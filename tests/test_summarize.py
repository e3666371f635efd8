"""`summarize.py` at tiny size: what it is called with, and the two files that it writes."""

import csv
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parent.parent / "workflow" / "scripts" / "summarize.py"
NAN = None  # as launch writes it


class Results:
    """A results folder with finished runs."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._lines = []

    def add(self, path: str, *metrics: dict, **hyperparameters) -> None:
        """Add a combination with the metrics of each of its seeds."""
        runs = [f"{path}/seed={seed}" for seed in range(len(metrics))]
        for run, values in zip(runs, metrics, strict=True):
            self.write(f"{run}/record.json", {"outputs": {"model.keras": f"digest of {run}"}})
            self.write(f"{run}/evaluation.json", {"inputs": {"model.keras": f"digest of {run}"}})
            self.write(f"{run}/metrics.json", values)
        self._lines.append({"path": path, "hyperparameters": hyperparameters, "runs": runs})
        self._lines[-1]["train"] = f"python train.py --{path}"

    def write(self, name: str, value: object) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))

    def summarize(self, metric: str = "accuracy", mode: str = "max") -> subprocess.CompletedProcess:
        runs = self.folder / "study.jsonl"
        runs.write_text("".join(json.dumps(line) + "\n" for line in self._lines))
        words = ["--runs", runs, "--results", self.folder, "--metric", metric, "--mode", mode]
        words += ["--study", "study 1a", "--summary", self.folder / "summary.csv", "--best"]
        words += [self.folder / "best.json", "--effects", self.folder / "effects.csv"]
        command = [sys.executable, PROGRAM, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    @property
    def rows(self) -> list[dict[str, str]]:
        with (self.folder / "summary.csv").open(newline="") as file:
            reader = csv.DictReader(file)
            assert len(set(reader.fieldnames)) == len(reader.fieldnames)
            return list(reader)

    @property
    def best(self) -> dict:
        """Read `best.json` as a strict reader does."""
        text = (self.folder / "best.json").read_text()
        assert text.endswith("}\n")
        return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


@pytest.fixture
def results(tmp_path) -> Results:
    return Results(tmp_path / "results")


def test_means_and_spreads(results):
    """Mean 0.625 of 0.5 and 0.75; the sample's variance is 2 * 0.125**2 / (2 - 1) = 1 / 32, of 1 and 2 it is 1 / 2."""
    results.add("x=1", {"accuracy": 0.5, "loss": 2}, {"accuracy": 0.75, "loss": 1}, x=1)
    results.add("x=2", {"accuracy": 0.25, "loss": 3}, {"accuracy": 0.25, "loss": 3}, x=2)
    assert results.summarize().returncode == 0
    deviation = math.sqrt(1 / 32)
    assert results.rows == [
        {
            "rank": "1",
            "x": "1",
            "accuracy": "0.625",
            "accuracy_std": repr(deviation),
            "low": results.rows[0]["low"],
            "high": results.rows[0]["high"],
            "p": "",
            "verdict": "best",
            "loss": "1.5",
            "loss_std": repr(math.sqrt(1 / 2)),
            "runs": "2",
            "diverged": "0",
            "failed": "0",
            "path": "x=1",
        },
        {
            "rank": "2",
            "x": "2",
            "accuracy": "0.25",
            "accuracy_std": "0.0",
            "low": "0.25",
            "high": "0.25",
            "p": "",
            "verdict": "too few seeds to tell",
            "loss": "3.0",
            "loss_std": "0.0",
            "runs": "2",
            "diverged": "0",
            "failed": "0",
            "path": "x=2",
        },
    ]
    # Student's t of 1 degree is 12.7062047362 (tables have 12.706), the standard error 1 / 8.
    low, high = float(results.rows[0]["low"]), float(results.rows[0]["high"])
    assert (low, high) == pytest.approx((0.625 - 12.7062047362 / 8, 0.625 + 12.7062047362 / 8))
    assert results.best == {
        "metric": "accuracy",
        "mode": "max",
        "combinations": 2,
        "best": {
            "hyperparameters": {"x": 1},
            "path": "x=1",
            "runs": ["x=1/seed=0", "x=1/seed=1"],
            "mean": 0.625,
            "std": deviation,
            "interval": [low, high],
            "train": "python train.py --x=1",
        },
        "why": "It has the highest mean accuracy on validation data, 0.625 over 2 seeds, of 2 combinations.",
        "indistinguishable": [],
        "too_few_seeds_to_tell": ["x=2"],
        "edges": {"x": "1 is the least value tried: try lower ones"},
        "study": "study 1a",
    }
    assert (results.folder / "summary.csv").read_bytes().endswith(b",x=2\n")
    assert {path.name for path in results.folder.iterdir()} == {
        "x=1", "x=2", "study.jsonl", "summary.csv", "best.json", "effects.csv"
    }  # fmt: skip


@pytest.mark.parametrize(("mode", "order"), [("max", ["3", "1", "2"]), ("min", ["2", "1", "3"])])
def test_more_or_less_is_better(results, mode, order):
    for x, loss in ((1, 0.0), (2, -2.5), (3, 0.5)):
        results.add(f"x={x}", {"loss": loss}, x=x)
    assert results.summarize("loss", mode).returncode == 0
    assert [row["x"] for row in results.rows] == order
    assert [row["rank"] for row in results.rows] == ["1", "2", "3"]
    assert results.best["best"]["path"] == f"x={order[0]}"


def test_chosen_metric_comes_first(results):
    results.add("x=1", {"auc": 0.5, "b": 1, "loss": 2}, x=1)
    results.summarize("loss", "min")
    assert list(results.rows[0])[:8] == ["rank", "x", "loss", "loss_std", "low", "high", "p", "verdict"]


def test_equals_keep_their_order(results):
    for x in (3, 1, 2):
        results.add(f"x={x}", {"accuracy": 0.5}, x=x)
    results.summarize()
    assert [row["x"] for row in results.rows] == ["3", "1", "2"]
    assert results.best["best"]["path"] == "x=3"


def test_one_seed_has_no_spread(results):
    results.add("x=1", {"accuracy": 0.5}, x=1)
    results.summarize()
    assert (results.rows[0]["accuracy"], results.rows[0]["accuracy_std"]) == ("0.5", "")
    assert (results.best["best"]["mean"], results.best["best"]["std"]) == (0.5, None)


def test_numbers_whose_sum_is_beyond_a_float(results):
    results.add("x=1", {"accuracy": 1.5e308}, {"accuracy": 1.5e308}, x=1)
    results.add("x=2", {"accuracy": 0.5}, {"accuracy": 0.5}, x=2)
    results.summarize()
    assert results.best["best"]["hyperparameters"] == {"x": 2}


def test_combination_with_a_diverged_run_is_never_the_best(results):
    """C18: max() may pick a NaN, and the mean of what is left would be of other seeds."""
    results.add("x=1", {"accuracy": 0.9}, {"accuracy": NAN}, x=1)
    results.add("x=2", {"accuracy": 0.1}, {"accuracy": 0.1}, x=2)
    assert results.summarize().returncode == 0
    assert [(row["x"], row["rank"], row["accuracy"], row["diverged"]) for row in results.rows] == [
        ("2", "1", "0.1", "0"),
        ("1", "", "", "1"),
    ]
    assert results.best["best"]["path"] == "x=2"


def test_run_that_diverged_in_another_metric_has_diverged(results):
    """A model of NaN never raises a false alarm: its rate of them is the best there can be."""
    results.add("x=1", {"false_alarms": 0.0, "loss": NAN}, x=1)
    results.add("x=2", {"false_alarms": 0.2, "loss": 0.3}, x=2)
    results.summarize("false_alarms", "min")
    assert results.best["best"]["path"] == "x=2"
    assert [(row["x"], row["false_alarms"], row["diverged"]) for row in results.rows] == [
        ("2", "0.2", "0"),
        ("1", "0.0", "1"),
    ]


def test_diverged_runs_are_counted_by_run(results):
    """Seed 0 in its loss; seed 1, the only one with an auc, in that."""
    results.add("x=1", {"a": 1, "loss": NAN}, {"a": 1, "loss": 1, "auc": NAN}, {"a": 1, "loss": 1}, x=1)
    results.summarize("a")
    assert results.rows[0]["diverged"] == "2"


def test_all_diverged(results):
    results.add("x=1", {"accuracy": NAN}, x=1)
    results.add("x=2", {"accuracy": NAN}, x=2)
    done = results.summarize()
    assert done.returncode == 0
    assert "none is the best" in done.stderr
    assert results.best["best"] is None
    assert [row["rank"] for row in results.rows] == ["", ""]


@pytest.mark.parametrize("value", ["0.5", True])
def test_metric_that_is_no_number_chooses_nothing(results, value):
    results.add("x=1", {"accuracy": value}, x=1)
    done = results.summarize()
    assert done.returncode == 0
    assert "has no number as its accuracy" in done.stderr
    assert results.best["best"] is None


def test_unknown_metric_names_those_there_are(results):
    results.add("x=1", {"loss": 1, "accuracy": 0.5}, x=1)
    done = results.summarize("acuracy")
    assert done.returncode == 1
    assert done.stderr == (
        "select.metric: 'acuracy' is in no run's metrics; there are: accuracy, loss. "
        "Name one of them under select in config.yaml.\n"
    )
    assert not (results.folder / "summary.csv").exists()
    assert not (results.folder / "best.json").exists()


def test_metric_that_one_run_lacks(results):
    results.add("x=1", {"accuracy": 0.9, "auc": 0.5}, {"accuracy": 0.9}, x=1)
    results.summarize()
    assert (results.rows[0]["accuracy"], results.rows[0]["auc"], results.rows[0]["diverged"]) == (
        "0.9",
        "",
        "0",
    )


def test_metric_called_like_a_hyperparameter(results):
    results.add("dropout=0.5", {"dropout": 0.25, "loss": 1.0}, dropout=0.5)
    results.summarize("dropout")
    (row,) = results.rows
    assert (row["dropout"], row["metric.dropout"], row["loss"]) == ("0.5", "0.25", "1.0")


def test_metric_called_like_the_spread_of_another(results):
    """A program that validates five-fold reports both; ours is over the seeds, and another number."""
    results.add("x=1", {"accuracy": 0.5, "accuracy_std": 0.01}, {"accuracy": 0.5, "accuracy_std": 0.03}, x=1)
    results.summarize()
    (row,) = results.rows
    assert (row["accuracy"], row["accuracy_std"], row["metric.accuracy_std"]) == ("0.5", "0.0", "0.02")


def test_hyperparameters_and_metrics_called_like_our_columns(results):
    """`rank` is what LoRA calls its size."""
    metrics = {"accuracy": 0.5, "path": 3.0, "runs": 4.0}
    results.add("rank=8", metrics, rank=8, diverged=True, accuracy_std=1)
    results.summarize()
    (row,) = results.rows
    assert (row["rank"], row["hyperparameter.rank"]) == ("1", "8")
    assert (row["diverged"], row["hyperparameter.diverged"]) == ("0", "true")
    assert (row["path"], row["metric.path"]) == ("rank=8", "3.0")
    assert (row["runs"], row["metric.runs"]) == ("1", "4.0")
    assert (row["accuracy_std"], row["metric.accuracy"], row["metric.accuracy_std"]) == ("1", "0.5", "")


def test_cells_of_hyperparameters(results):
    values = {
        "augment": True,
        "hidden": [64, 64],
        "clipnorm": None,
        "tag": 'a,b "c"',
        "lr": 1e-05,
        "empty": [],
    }
    results.add("some/path", {"accuracy": 0.5}, **values)
    results.add("other", {"accuracy": 0.25}, extra=1)  # a conditional space: not every one has them all
    results.summarize()
    first, second = results.rows
    assert {name: first[name] for name in values} == {
        "augment": "true",
        "hidden": "[64, 64]",
        "clipnorm": "",
        "tag": 'a,b "c"',
        "lr": "1e-05",
        "empty": "[]",
    }
    assert (first["extra"], second["extra"], second["tag"]) == ("", "1", "")
    assert results.best["best"]["hyperparameters"] == values


def test_run_trained_again_after_its_evaluation_is_refused(results):
    results.add("x=1", {"accuracy": 0.5}, {"accuracy": 0.5}, x=1)
    results.write("x=1/seed=1/record.json", {"outputs": {"model.keras": "another"}})
    done = results.summarize()
    assert done.returncode == 1
    run = results.folder / "x=1/seed=1"
    assert done.stderr == f"{run}: was trained again after its evaluation; type the same command again.\n"
    assert not (results.folder / "best.json").exists()


def test_what_can_be_told_from_the_best(results):
    """Six seeds each: worse on every one, p = 2 / 64; or on four, by as much as it is better on two."""
    best = [0.9, 0.91, 0.92, 0.93, 0.94, 0.95]
    results.add("x=1", *({"accuracy": a} for a in best), x=1)
    results.add("x=2", *({"accuracy": a - 0.1} for a in best), x=2)
    results.add("x=3", *({"accuracy": a - d} for a, d in zip(best, [1, 1, -1, 1, -1, 1], strict=True)), x=3)
    results.add("x=4", *({"accuracy": NAN} for _ in best), x=4)
    results.add("x=5", *({"accuracy": "high"} for _ in best), x=5)
    results.summarize()
    found = {row["x"]: (row["verdict"], row["p"] and float(row["p"])) for row in results.rows}
    assert found["1"] == ("best", "")
    assert found["2"] == ("worse", pytest.approx(2 / 64))
    assert found["3"] == ("indistinguishable", pytest.approx(44 / 64))
    assert found["4"] == ("diverged", "")
    assert found["5"] == ("no number as accuracy", "")
    assert results.best["indistinguishable"] == ["x=3"]


def test_effects_are_of_ranked_combinations(results):
    for x, y, accuracy in ((1, True, 0.5), (1, False, 0.25), (2, True, 0.75), (2, False, NAN)):
        results.add(f"x={x}/y={y}", {"accuracy": accuracy}, x=x, y=y)
    results.summarize()
    assert (results.folder / "effects.csv").read_text() == (
        "hyperparameter,value,combinations,mean,best\n"
        "x,1,2,0.375,0.5\nx,2,1,0.75,0.75\ny,false,1,0.25,0.25\ny,true,2,0.625,0.75\n"
    )


@pytest.mark.parametrize("name", ["record.json", "evaluation.json", "metrics.json"])
def test_run_without_one_of_its_files(results, name):
    results.add("x=1", {"accuracy": 0.5}, x=1)
    (results.folder / "x=1/seed=0" / name).unlink()
    done = results.summarize()
    assert done.returncode == 1
    run = results.folder / "x=1/seed=0"
    assert done.stderr == f"{run}: {name} is missing; type the same command again.\n"
