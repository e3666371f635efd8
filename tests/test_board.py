"""What TensorBoard shows of a study, asked of the real one."""

import json
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from madeup import MadeUp
from study import ROOT

COMBINATIONS = [
    {"rate": 0.1, "hidden": [8, 8], "kind": None, "mixed": 1},
    {"rate": 1, "hidden": [8], "kind": "a", "mixed": "b"},
]


@pytest.fixture
def madeup(tmp_path) -> MadeUp:
    """Make a study with a list, a null, a mixed column, and a run that diverged."""
    study = MadeUp(tmp_path / "results", COMBINATIONS)
    study.finish(
        lambda c, seed: None if (c["rate"], seed) == (1, 1) else c["rate"] / 2 + seed / 100, epochs=3
    )
    return study


def write(madeup: MadeUp) -> None:
    words = [sys.executable, ROOT / "workflow/scripts/board.py", "--results", madeup.results]
    words += ["--board", madeup.results / "tensorboard"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"Look at it with: tensorboard --logdir {madeup.results}\n"  # no word of TensorFlow


def ask(port: int, path: str, data: dict | None = None):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/data/plugin/{path}")
    if data is not None:
        request.data = json.dumps(data).encode()
        request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def test_tensorboard_shows_the_study(madeup):
    write(madeup)
    write(madeup)  # a second time: nothing grows
    files = list(madeup.results.rglob("events.*"))
    assert len(files) == 5  # a run's each, and the study's
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "tensorboard.main", "--logdir", str(madeup.results), "--host", "127.0.0.1"]
    server = subprocess.Popen(
        [*words, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    everything = {
        "experimentName": "",
        "colParams": [],
        "startIndex": 0,
        "sliceSize": 100,
        "allowedStatuses": ["STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING", "STATUS_UNKNOWN"],
    }
    try:
        deadline = time.monotonic() + 120
        groups: list = []
        while len(groups) < 4 and time.monotonic() < deadline:
            time.sleep(0.5)
            try:
                groups = ask(port, "hparams/session_groups", everything).get("sessionGroups", [])
            except OSError:
                continue
        found = {group["name"]: group for group in groups}
        first = found["hidden=[8, 8]/mixed=1/rate=0.1/seed=1"]
        assert first["hparams"] == {"rate": 0.1, "hidden": "[8, 8]", "mixed": "1", "seed": 1.0}
        scores = {m["name"]["tag"]: m["value"] for m in first["metricValues"]}
        assert scores == {"validation/accuracy": pytest.approx(0.06), "validation/loss": pytest.approx(0.94)}
        other = found["hidden=[8]/kind=a/mixed=b/rate=1/seed=1"]
        assert other["hparams"] == {"rate": 1.0, "hidden": "[8]", "kind": "a", "mixed": "b", "seed": 1.0}
        assert "value" not in str(other.get("metricValues", ""))  # it diverged: no number, no scalar
        run = "tensorboard/hidden=[8, 8]/mixed=1/rate=0.1/seed=1"
        assert set(ask(port, "scalars/tags")[run]) == {
            "val_accuracy",
            "val_loss",
            "validation/accuracy",
            "validation/loss",
        }
        points = ask(port, f"scalars/scalars?tag=val_loss&run={urllib.request.quote(run)}")
        assert [(step, value) for _, step, value in points] == [
            (1, 1.0),
            (2, 0.5),
            (3, pytest.approx(1 / 3, abs=1e-6)),
        ]
    finally:
        server.terminate()
        server.wait(30)
