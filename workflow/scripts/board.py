"""Write what TensorBoard shows: every run's course as scalars, its hyperparameters and its scores (HParams).

All files are made anew from the runs' histories, so they neither grow when a run goes on from a checkpoint nor ask
anything of the programs. TensorFlow is not needed.
"""

import argparse
import calendar
import json
import math
import shutil
import sys
import time
import types
from contextlib import suppress
from pathlib import Path

# TensorBoard's own switch for doing without TensorFlow, whose import would take longer than all the rest.
sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")

# ruff: noqa: E402
from see.study import NoStudy, Run, Study, read_history, read_study
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2, summary_v2
from tensorboard.summary.writer.event_file_writer import EventFileWriter


def main() -> None:
    """Write a folder per run, and one for the study."""
    options = parse()
    try:
        study = read_study(options.results)
    except NoStudy as error:
        sys.exit(f"board.py: {error}")
    shutil.rmtree(options.board, ignore_errors=True)
    options.board.mkdir(parents=True)
    columns = columns_of(study)
    metrics = sorted({name for run in study.runs for name in run.metrics})
    write(options.board, [config(columns, metrics)], 0.0)
    for combination in study.combinations:
        hyperparameters = {
            n: v for n, v in plain(combination.hyperparameters, columns).items() if v is not None
        }
        for run in combination.runs:
            write(options.board / run.path, [*session(run, hyperparameters), *scalars(run)], begun(run))
    print(f"Look at it with: tensorboard --logdir {options.results}", file=sys.stderr)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--results", type=Path, required=True, help="the results folder of the study")
    parser.add_argument(
        "--board", type=Path, required=True, help="the folder to write; what is there is removed"
    )
    return parser.parse_args()


def columns_of(study: Study) -> dict[str, type]:
    """Say of what type each hyperparameter's column is: bool or float where all its values are, else str."""
    kinds: dict[str, set[type]] = {}
    for combination in study.combinations:
        for name, value in combination.hyperparameters.items():
            kind = bool if isinstance(value, bool) else float if isinstance(value, int | float) else str
            kinds.setdefault(name, set()).update([kind] if value is not None else [])
    return {name: found.pop() if len(found) == 1 else str for name, found in kinds.items()}


def plain(hyperparameters: dict[str, object], columns: dict[str, type]) -> dict[str, object]:
    """Make values of what HParams takes: texts, numbers and booleans; lists become JSON, null stays None."""
    found = {}
    for name, value in hyperparameters.items():
        if value is not None and columns[name] is str and not isinstance(value, str):
            value = json.dumps(value)
        found[name] = value
    return found


def config(columns: dict[str, type], metrics: list[str]) -> Summary:
    """Describe the study: its hyperparameters and the metrics to compare by."""
    kinds = {bool: api_pb2.DATA_TYPE_BOOL, float: api_pb2.DATA_TYPE_FLOAT64, str: api_pb2.DATA_TYPE_STRING}
    experiment = api_pb2.Experiment(
        hparam_infos=[
            api_pb2.HParamInfo(name=name, type=kinds[kind]) for name, kind in sorted(columns.items())
        ],
        metric_infos=[
            api_pb2.MetricInfo(
                name=api_pb2.MetricName(tag=f"validation/{name}"), display_name=f"{name} (validation)"
            )
            for name in metrics
        ],
    )
    return hparams_summary(metadata.EXPERIMENT_TAG, experiment=experiment)


def session(run: Run, hyperparameters: dict[str, object]) -> list[Summary]:
    """Describe a run: its hyperparameters and seed, and whether it came to its end."""
    begin = summary_v2.hparams_pb(
        {**hyperparameters, "seed": run.seed}, trial_id=run.path, start_time_secs=begun(run)
    )
    status = api_pb2.STATUS_SUCCESS if run.state in ("finished", "diverged") else api_pb2.STATUS_FAILURE
    end = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=begun(run) + (run.seconds or 0))
    return [begin, hparams_summary(metadata.SESSION_END_INFO_TAG, session_end_info=end)]


def hparams_summary(tag: str, **data) -> Summary:
    """Make a summary for the HParams plug-in (its own functions for these import TensorFlow)."""
    content = plugin_data_pb2.HParamsPluginData(version=metadata.PLUGIN_DATA_VERSION, **data)
    about = metadata.create_summary_metadata(content)
    return Summary(value=[Summary.Value(tag=tag, metadata=about, tensor=metadata.NULL_TENSOR)])


def scalars(run: Run) -> list[tuple[int, Summary]]:
    """Return the course of a run, and its scores at its last step; what is no number is left out."""
    head, rows = read_history(run)
    found = []
    step = 0
    for number, row in enumerate(rows, start=1):
        step = int(row[0]) if math.isfinite(row[0]) else number
        for name, value in zip(head[1:], row[1:], strict=True):
            if math.isfinite(value):
                found.append((step, scalar(name, value)))
    for name, value in run.metrics.items():
        if isinstance(value, int | float):
            found.append((step, scalar(f"validation/{name}", value)))
    return found


def scalar(tag: str, value: float) -> Summary:
    """Make a summary of one number."""
    return Summary(value=[Summary.Value(tag=tag, simple_value=value)])


def begun(run: Run) -> float:
    """Return when the last training of a run began, in seconds since 1970; 0 if nobody knows."""
    with suppress(KeyError, ValueError):
        return float(calendar.timegm(time.strptime(run.last("train")["started"], "%Y-%m-%dT%H:%M:%SZ")))
    return 0.0


def write(folder: Path, summaries: list[Summary | tuple[int, Summary]], when: float) -> None:
    """Write one event file."""
    writer = EventFileWriter(str(folder))
    for item in summaries:
        step, summary = item if isinstance(item, tuple) else (0, item)
        writer.add_event(Event(wall_time=when, step=step, summary=summary))
    writer.close()


if __name__ == "__main__":
    main()
