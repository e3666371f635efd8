"""Show a study: the plan's opening lines, `runs.csv`, and the table at the end."""

import csv
from pathlib import Path

from sweep import results
from sweep.results import METRICS, Verdict

NAMED = 10  # runs named on the terminal; `runs.csv` names them all
TOP = 5
TAIL = 5  # lines of a failed run's log


def count(number: int, noun: str) -> str:
    """Write a number and its noun: `1 run`, `2 runs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def opening(plan, existing: set[str], notes: list[str]) -> str:
    """Word what is asked for, what is there and what is stale."""
    done = sum(all(v.fresh for v in plan.verdict(run)[:2]) for run in plan.runs)
    foreign = len(existing - plan.verdicts.keys())
    lines = [
        f"Study ({plan.config_path}): {count(len(plan.combinations), 'combination')} x {count(len(plan.config.seeds), 'seed')} = "
        f"{count(len(plan.runs), 'run')} asked for; {count(done, 'result')} already there; "
        f"{count(foreign, 'folder')} in {plan.results}/ no longer part of the study."
    ]
    if plan.failed:
        lines.append(
            f"Counted as failed: {count(len(plan.failed), 'run')}; `--config failures=retry` tries them again."
        )
    lines += [f"Asked for beside the study: {plan.results}/{run}" for run in plan.asked]
    for reason, runs in plan.stale.items():
        lines.append(f"Stale ({reason}): {count(len(runs), 'run')}, made again when their turn comes:")
        lines += [f"  {plan.results}/{run}" for run in runs[:NAMED]]
        if len(runs) > NAMED:
            lines.append(f"  and {len(runs) - NAMED} more")
    if plan.unaccepted != "[]":
        lines.append(
            "If the new code gives the same results, `snakemake --cores 1 accept` keeps the finished runs."
        )
    if done == len(plan.runs) and (best := plan.choice.current()):
        lines.append(
            f"Best: {plan.results}/{best['path']}, {plan.config.metric} {best['mean']:.4g} on validation data; "
            f"all combinations: {plan.results}/summary.csv"
        )
    return "\n".join([*lines, *(f"Note: {note}" for note in notes)])


def status(train: Verdict, evaluation: Verdict, metrics: dict, attempt: dict) -> str:
    """Name a run's state: finished, diverged, stale, failed or not run."""
    if train.changed or evaluation.changed:
        return "stale"
    if train.fresh and evaluation.fresh:
        return "diverged" if None in metrics.values() else "finished"
    return "not run" if attempt.get("exit", 0) == 0 else "failed"


def write_runs(plan) -> bool:
    """Write `runs.csv`, a row per run of the study, whatever became of it; return whether all are done."""
    rows = []
    names: dict[str, None] = {}
    scores: dict[str, None] = {}
    for run, (combination, seed) in plan.runs.items():
        folder = plan.folder / run
        verdicts = plan.judge(run)[:2]
        done = all(v.fresh for v in verdicts)
        metrics = results.read_json(folder / METRICS) if done else {}
        attempt = {} if done else results.last_attempt(folder)
        values = dict(zip(combination.names, combination.values, strict=True))
        names |= dict.fromkeys(combination.names)
        scores |= dict.fromkeys(metrics)
        state = status(*verdicts, metrics, attempt)
        reason = attempt.get("reason") if state == "failed" else None
        if state == "finished" and not _is_number(metrics.get(plan.config.metric)):
            reason = f"no number as {plan.config.metric}"
        rows.append((state, reason, seed, values, metrics, f"{plan.results}/{run}"))
    # A hyperparameter may be called like a column of ours, a metric like either.
    ours = ("status", "reason", "seed", "path")
    columns_of = {n: f"hyperparameter.{n}" if n in ours else n for n in sorted(names)}
    taken = {*ours, *columns_of.values()}
    labels = {n: f"metric.{n}" if n in taken else n for n in scores}
    table = [
        {
            "status": s,
            "reason": reason,
            "seed": seed,
            "path": path,
            **{columns_of[n]: v for n, v in values.items()},
            **{labels[n]: m for n, m in metrics.items()},
        }
        for s, reason, seed, values, metrics, path in rows
    ]
    columns = ["status", "reason", "seed", *columns_of.values(), *labels.values(), "path"]
    results.write_table(plan.folder / "runs.csv", table, columns)
    plan.statuses = {path: s for s, *_, path in rows}
    counted = {f"{plan.results}/{run}" for run in plan.failed}
    return {s for path, s in plan.statuses.items() if path not in counted} <= {"finished", "diverged"}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def show(plan) -> str:
    """Word where the study stands: the best combinations if it is complete, else what is missing."""
    runs_csv = plan.folder / "runs.csv"
    tally: dict[str, int] = {}
    for s in plan.statuses.values():
        tally[s] = tally.get(s, 0) + 1
    lines = [
        "Runs: "
        + ", ".join(f"{number} {name}" for name, number in sorted(tally.items()))
        + f". All of them: {runs_csv}"
    ]
    missing = {str(Path(p).parent) for p, s in plan.statuses.items() if s not in ("finished", "diverged")}
    if missing and not (plan.folder / "summary.csv").exists():
        whole = len(plan.combinations) - len(missing)
        lines.append(
            f"Combinations: {whole} complete, {len(missing)} incomplete; none is chosen before all are complete."
        )
    failed = [p for p, s in plan.statuses.items() if s == "failed"]
    for path in failed[:NAMED]:
        lines += failure(path)
    if len(failed) > NAMED:
        lines.append(f"  and {len(failed) - NAMED} more failed")
    for run in plan.asked:
        train, evaluation, _ = plan.judge(run)
        if not (train.fresh and evaluation.fresh) and results.last_attempt(plan.folder / run).get("exit"):
            lines += failure(f"{plan.results}/{run}")
    for state in ("stale", "not run"):
        paths = [p for p, s in plan.statuses.items() if s == state]
        lines += [f"  {state}: {path}" for path in paths[:NAMED]]
        lines += [f"  and {len(paths) - NAMED} more {state}"] if len(paths) > NAMED else []
    summary = plan.folder / "summary.csv"
    if summary.exists():
        lines += ["", *best_rows(summary, plan.config.metric), "", f"All combinations: {summary}"]
        lines += tested(plan)
        page = plan.folder / "study.html"
        lines += [f"All of it on one page: {page}"] if plan.pages and page.exists() else []
    return "\n".join(lines)


def failure(path: str) -> list[str]:
    """Word a run's failure, with the end of its log."""
    attempt = results.last_attempt(Path(path))
    log = Path(path, attempt.get("log", ""))
    step, reason, detail = (attempt.get(key, "") for key in ("step", "reason", "detail"))
    head = f"  failed: {path}: {step} {reason}, {detail}; log: {log}"
    return [head, *(f"    | {line}" for line in results.last_lines(log, TAIL))]


def tested(plan) -> list[str]:
    """Word what the chosen combination scored on test data, or why there is no such score."""
    choice, best = plan.choice, plan.choice.best()
    if not choice.tests:
        return ["Its score on test data: none, as the command under eval has no {split}."]
    test = results.read_json(plan.folder / results.TEST)
    if found := test.get("best"):
        low, high = found["interval"] or (None, None)
        sure = "" if low is None else f" (95 % interval {low:.4g} to {high:.4g})"
        seeds = count(len(found["runs"]), "fresh seed" if found["confirmed"] else "seed")
        score = "no number" if found["mean"] is None else f"{found['mean']:.4g}{sure}"
        used = count(test["scorings"], "time")
        return [
            f"Its {test['metric']} on test data: {score} over {seeds}, against {found['validation']:.4g} on validation "
            f"data; the test data was used {used} so far ({plan.results}/test-ledger.csv)."
        ]
    runs = [run for run in choice.to_test(best) if not all(plan.judge(run)[i].fresh for i in (0, 2))]
    paths = [f"{plan.results}/{run}" for run in runs]
    failed = [path for path in paths if results.last_attempt(Path(path)).get("exit")]
    lines = [f"It has no score on test data yet; missing: {count(len(runs), 'run')}."] if runs else []
    return [*lines, *(line for path in failed for line in failure(path))]


def best_rows(summary: Path, metric: str) -> list[str]:
    """Lay out the best combinations of a summary in columns."""
    with summary.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        return []
    columns = [
        c for c in rows[0] if c not in ("path", "diverged", "failed") and any(r[c] for r in rows[:TOP])
    ]
    cells = [columns, *([_short(row[c]) for c in columns] for row in rows[:TOP])]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    head = f"Best of {count(len(rows), 'combination')} by {metric} (mean over seeds, on validation data):"
    return [
        head,
        *("  " + "  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in cells),
    ]


def _short(cell: str) -> str:
    """Shorten a number's digits for the terminal; the file has them all."""
    try:
        return f"{float(cell):.4g}" if "." in cell and len(cell) > 7 else cell
    except ValueError:
        return cell
