"""Write a study as one page that needs nothing else: the choice, all combinations and runs, plots, failures, versions.

It is made from the results folder alone, and works for a study that is incomplete, too.
"""

import argparse
import base64
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from scores import expected_best
from see.study import NoStudy, Run, Study, label, read_json, read_lines, read_study, read_table, word

TEMPLATES = Path(__file__).resolve().parent.parent / "report"
LARGEST = 300_000  # bytes of an SVG above which the PNG is taken
FAILURES = 100  # with their logs' ends
TAIL = 20  # lines


def main() -> None:
    """Read the study and write the page."""
    options = parse()
    try:
        study = read_study(options.results)
    except NoStudy as error:
        sys.exit(f"report.py: {error}")
    page = options.page or options.results / "study.html"
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True)
    text = environment.get_template("study.html").render(
        content(study, options.plots or options.results / "plots")
    )
    beside = page.with_name(f".{page.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(page)
    print(f"The study as a page: {page}", file=sys.stderr)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--results", type=Path, required=True, help="the results folder of the study")
    parser.add_argument(
        "--plots", type=Path, help="the folder that plot.py wrote (default: plots in the results)"
    )
    parser.add_argument("--page", type=Path, help="the page to write (default: study.html in the results)")
    return parser.parse_args()


def content(study: Study, plots: Path) -> dict[str, object]:
    """Collect what the page shows."""
    choice = read_json(study.folder / "best.json")
    states = Counter(run.state for run in study.runs)
    failed = [run for run in study.runs if run.state in ("failed", "lost", "diverged")]
    seeds = len(study.about["seeds"])
    of = f"{plural(len(study.combinations), 'combination')} of hyperparameters, {plural(seeds, 'seed')} each"
    return {
        "title": f"{study.folder.resolve().parent.name}: {study.metric} of {plural(len(study.combinations), 'combination')}",
        "counts": f"{of}: {', '.join(f'{n} {state}' for state, n in sorted(states.items()))}.",
        "written": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "results": study.folder,
        "metric": study.metric,
        "complete": bool(choice),
        "incomplete": so_far(study),
        "why": choice.get("why", ""),
        "best": best(study, choice),
        "ledger": ledger(study),
        "combinations": combinations(study),
        "expected": expected(study),
        "effects": effects(study),
        "edges": [f"{name}: {text}." for name, text in (choice.get("edges") or {}).items()],
        "plots": list(pictures(plots)),
        "runs": runs(study),
        "failures": [failure(run) for run in failed[:FAILURES]],
        "more_failures": max(0, len(failed) - FAILURES),
        "facts": facts(study),
        "commands": f"train  {study.about['train']}\neval   {study.about['eval']}\n\n{study.about['call']}",
        "config": {"name": study.about["config"], "text": study.about["text"]},
    }


def plural(number: int, noun: str) -> str:
    """Write a number and its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def so_far(study: Study) -> str:
    """Word what can be said of an incomplete study."""
    text = f"{len(study.ranked)} of {plural(len(study.combinations), 'combination')} have all their seeds in"
    if not study.ranked:
        return f"{text}."
    combination, mean = study.ranked[0]
    return f"{text}; the best of these has a mean {study.metric} of {mean:.4g}: {combination.path}."


def best(study: Study, choice: dict) -> dict | None:
    """Word the choice, its scores, and what is to be thought of them."""
    found = choice.get("best")
    if not found:
        return None
    metric = study.metric
    seeds = plural(len(found["runs"]), "seed")
    validation = (
        f"{metric} on validation data: {found['mean']:.4g}{_interval(found['interval'])} over {seeds}."
    )
    notes = []
    if equals := choice["indistinguishable"]:
        notes.append(
            f"{plural(len(equals), 'combination')} can't be told from it with these seeds: {_some(equals)}."
        )
    if choice["too_few_seeds_to_tell"]:
        number = len(choice["too_few_seeds_to_tell"])
        notes.append(
            f"Whether {plural(number, 'other combination')} {'is' if number == 1 else 'are'} really worse can't be told: "
            "that takes 6 seeds or more."
        )
    tried = plural(choice["combinations"], "combination")
    notes.append(
        f"It is the best of {tried} on the data that it was chosen by. Of many, the winner is partly the luckiest, so its "
        "validation score is too good; what it is worth is what it scores on data that did not choose it."
    )
    values = found["hyperparameters"]
    return {
        "label": label(values, sorted(values)) or "the only combination",
        "validation": validation,
        "test": test_score(study),
        "notes": notes,
        "train": found["train"],
    }


def test_score(study: Study) -> str:
    """Word what the chosen combination scored on test data."""
    if not study.about["tests"]:
        return "No score on test data: the command under eval has no {split}, so nothing says what data that did not choose would."
    found = read_json(study.folder / "test.json").get("best")
    if not found:
        return "It has no score on test data yet."
    seeds = plural(len(found["runs"]), "fresh seed" if found["confirmed"] else "seed")
    if found["mean"] is None:
        return f"On test data not all of its runs have a number as their {study.metric}."
    gap = f"{abs(found['gap']):.4g} {'worse' if found['gap'] > 0 else 'better'} than on validation data"
    return (
        f"{study.metric} on test data: {found['mean']:.4g}{_interval(found['interval'])} over {seeds}, {gap}."
    )


def ledger(study: Study) -> dict | None:
    """Say how often the test data was used, and what that means."""
    rows = read_table(study.folder / "test-ledger.csv")
    if not rows:
        return None
    if len(rows) == 1:
        text = "The test data was used once, for one choice: its score is what it claims to be."
    else:
        text = (
            f"The test data was used {len(rows)} times. Whoever chooses again after seeing a test score chooses by the test data, "
            "too: the last score is too good by an unknown amount, and only fresh test data can tell by how much."
        )
    return {"text": text, "columns": list(rows[0]), "rows": [list(row.values()) for row in rows]}


def combinations(study: Study) -> dict:
    """Lay out the summary; of an incomplete study, what there is of it."""
    rows = read_table(study.folder / "summary.csv")
    caption = (
        f"A row per combination, best first; low and high are the 95 % interval of the mean {study.metric} over seeds, "
        "p and verdict compare with the best."
    )
    if not rows:
        names = sorted({name for c in study.combinations for name in c.hyperparameters})
        order = [c for c, _ in study.ranked]
        order += [c for c in study.combinations if c not in order]
        rows = [
            {name: word(c.hyperparameters[name]) if name in c.hyperparameters else "" for name in names}
            | {
                study.metric: c.mean(study.metric),
                "runs": len(c.runs),
                "in": sum(bool(run.metrics) for run in c.runs),
                "path": c.path,
            }
            for c in order
        ]
        caption = "A row per combination, best first; one whose seeds are not all in has no mean yet."
    return laid_out(rows, caption)


def laid_out(rows: list[dict], caption: str, columns: list[str] | None = None) -> dict:
    """Make a table of rows: numbers are shortened, and sorted and filtered in full."""
    columns = columns or (list(rows[0]) if rows else [])
    return {
        "columns": columns,
        "rows": [[_cell(row.get(c)) for c in columns] for row in rows],
        "caption": caption,
    }


def _cell(value: object) -> object:
    if value is None:
        return ""
    text = str(value)
    try:
        short = f"{float(text):.4g}"
    except ValueError:
        return text
    return {"full": text, "short": short} if "." in text and len(short) < len(text) else text


def expected(study: Study) -> dict | None:
    """Say what the best of fewer combinations is expected to score."""
    scores = [mean for _, mean in study.ranked]
    if len(scores) < 2:
        return None
    steps = [n * 10**power for power in range(7) for n in (1, 2, 5)]
    tries = [*(n for n in steps if n < len(scores)), len(scores)]
    return {
        "tries": tries,
        "scores": [f"{v:.4g}" for v in expected_best(scores, study.mode, tries)],
        "caption": f"The {study.metric} on validation data that the best of so many of these combinations, drawn at random, is expected "
        "to have (unbiased estimate: Tang et al., 2020, after Dodge et al., 2019).",
    }


def effects(study: Study) -> dict | None:
    """Lay out the marginal effects."""
    rows = read_table(study.folder / "effects.csv")
    caption = f"For each value of a varied hyperparameter: the mean and the best {study.metric} of the combinations that have it."
    return laid_out(rows, caption) if rows else None


def pictures(folder: Path) -> list[dict]:
    """Embed the plots."""
    found = []
    for plot in json.loads("".join(read_lines(folder / "plots.json")) or "[]"):
        svg = folder / f"{plot['name']}.svg"
        file, kind = (svg, "svg+xml") if svg.stat().st_size < LARGEST else (svg.with_suffix(".png"), "png")
        text = base64.b64encode(file.read_bytes()).decode()
        found.append(plot | {"source": f"data:image/{kind};base64,{text}"})
    return found


def runs(study: Study) -> dict:
    """Lay out all runs."""
    names = sorted({name for c in study.combinations for name in c.hyperparameters})
    metrics = list(
        dict.fromkeys([study.metric, *sorted({name for run in study.runs for name in run.metrics})])
    )
    rows = []
    for combination in study.combinations:
        values = combination.hyperparameters
        for run in combination.runs:
            last = run.attempts[-1] if run.attempts else {}
            row = {"state": run.state, "reason": last.get("reason") if run.state == "failed" else None}
            row |= {f"h {name}": word(values[name]) for name in names if name in values} | {"seed": run.seed}
            row |= {f"m {name}": run.metrics.get(name) for name in metrics}
            row |= {
                "seconds": run.seconds,
                "memory_mib": run.memory,
                "devices": run.devices,
                "host": last.get("host"),
            }
            row |= {"start": run.last("train").get("start"), "attempts": len(run.attempts), "path": run.path}
            rows.append(row)
    columns = ["state", "reason", *(f"h {n}" for n in names), "seed", *(f"m {n}" for n in metrics)]
    columns += ["seconds", "memory_mib", "devices", "host", "start", "attempts", "path"]
    table = laid_out(
        rows, "A row per run. Seconds and memory are those of its last training and evaluation.", columns
    )
    return table | {"columns": [c[2:] if c.startswith(("h ", "m ")) else c for c in columns]}


def failure(run: Run) -> dict:
    """Say what ended a run, and show the end of its log."""
    last = run.attempts[-1] if run.attempts else {}
    log = run.folder / last.get("log", "logs")
    text = (
        "diverged: a metric is no finite number"
        if run.state == "diverged"
        else f"{run.step} {last.get('reason', '')}, {last.get('detail', '')}"
    )
    return {"path": run.path, "text": text, "log": log, "tail": "\n".join(read_lines(log)[-TAIL:])}


def facts(study: Study) -> list[tuple[str, str]]:
    """Collect versions, machines and times from the records of the runs."""
    found: dict[str, Counter] = {}
    for run in study.runs:
        for step in ("train", "evaluate"):
            attempt = run.last(step)
            items = dict(attempt.get("versions") or {}) | {
                key: attempt.get(key) for key in ("driver", "host", "commit")
            }
            for device in attempt.get("devices") or []:
                items["device"] = f"{device['name']} {device['uuid']}"
            for name, text in items.items():
                if text:
                    found.setdefault(name, Counter())[str(text)] += 1
    seconds = sum(a.get("wall_s") or 0 for run in study.runs for a in run.attempts)
    begun = sorted(a["started"] for run in study.runs for a in run.attempts if a.get("started"))
    facts = [("runs' time, all attempts", f"{seconds / 3600:.2f} h ({seconds:,.0f} s)")]
    if begun:
        facts.append(("first and last start", f"{begun[0]} to {begun[-1]}"))
    return facts + [
        (
            name,
            ", ".join(
                text if len(counts) == 1 else f"{text} ({plural(n, 'step')})"
                for text, n in counts.most_common()
            ),
        )
        for name, counts in sorted(found.items())
    ]


def _interval(interval: list[float] | None) -> str:
    return f" (95 % interval {interval[0]:.4g} to {interval[1]:.4g})" if interval else ""


def _some(paths: list[str], number: int = 5) -> str:
    more = f" and {len(paths) - number} more" if len(paths) > number else ""
    return ", ".join(paths[:number]) + more


if __name__ == "__main__":
    main()
