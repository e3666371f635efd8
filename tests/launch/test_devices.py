"""Which devices a run may use: CUDA_VISIBLE_DEVICES as CUDA reads it, by NVML or without it."""

import json
import os
import re
import subprocess

import pytest
from launch.devices import UNKNOWN, Device, Machine, machine
from processes import SCRIPTS

UUIDS = ["GPU-aaaa1111", "GPU-aaaa2222", "GPU-bbbb3333", "MIG-cccc4444"]


@pytest.mark.parametrize(
    ("text", "uuids", "ids"),
    [
        (None, UUIDS, UUIDS),
        ("", [], []),
        ("-1", [], []),
        ("2,0", ["GPU-bbbb3333", "GPU-aaaa1111"], ["2", "0"]),
        (" 2 , 1 ", ["GPU-bbbb3333", "GPU-aaaa2222"], ["2", "1"]),
        ("1,1,2,", ["GPU-aaaa2222", "GPU-bbbb3333"], ["1", "2"]),
        ("GPU-bbbb3333", ["GPU-bbbb3333"], ["GPU-bbbb3333"]),
        ("GPU-bb", ["GPU-bbbb3333"], ["GPU-bb"]),  # any beginning that is no other's
        ("GPU-aaaa", [], []),
        ("MIG-cccc4444", ["MIG-cccc4444"], ["MIG-cccc4444"]),
        ("1,GPU-aaaa2222", ["GPU-aaaa2222"], ["1"]),  # one device under two names
        ("0,-1,1", ["GPU-aaaa1111"], ["0"]),  # what is unknown hides the rest
        ("0,9,1", ["GPU-aaaa1111"], ["0"]),
        ("0,nonsense", ["GPU-aaaa1111"], ["0"]),
    ],
)
def test_visible_devices_where_they_are_known(text, uuids, ids):
    """https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars"""
    environ = {} if text is None else {"CUDA_VISIBLE_DEVICES": text}
    found = Machine([Device(uuid) for uuid in UUIDS]).allowed(environ)
    assert ([d.uuid for d in found], [d.id for d in found]) == (uuids, ids)
    assert [d.place for d in found] == list(range(len(found)))


@pytest.mark.parametrize(
    ("text", "ids"),
    [("2,3", ["2", "3"]), ("3, 1", ["3", "1"]), ("GPU-x,GPU-x", ["GPU-x"]), ("MIG-y", ["MIG-y"]), ("-1", [])],
)
def test_visible_devices_are_believed_where_none_are_known(text, ids):
    """Without NVML, in a container say: what the user or the cluster says is there."""
    found = Machine([]).allowed({"CUDA_VISIBLE_DEVICES": text})
    assert [d.id for d in found] == ids
    assert all(not d.measured and d.memory == UNKNOWN for d in found)
    assert Machine([]).allowed({}) == []


def test_inventory_is_read_anew_for_what_is_used(tmp_path):
    path = tmp_path / "inventory.json"
    device = {"uuid": "GPU-x", "memory": 1000}
    path.write_text(json.dumps({"driver": "1.2", "devices": [device]}))
    found = machine({"SNAKESWEEP_INVENTORY": str(path)})
    assert (found.driver, found.devices[0].usage()) == ("1.2", [])
    path.write_text(json.dumps({"devices": [device | {"used": [[7, 30]]}]}))
    assert found.devices[0].usage() == [(7, 30)]


def test_what_we_ask_of_nvml_is_there():
    """There is no GPU where this runs, but the library can be imported."""
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    names = set(re.findall(r"pynvml\.(\w+)", (SCRIPTS / "launch/devices.py").read_text()))
    assert len(names) > 10
    assert [name for name in names if not hasattr(pynvml, name)] == []


def test_what_children_use_is_their_ancestors(tmp_path):
    child = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    try:
        grandchild = int(child.stdout.readline())
        device = Device("GPU-x", memory=1000, processes=lambda: [(grandchild, 300), (1, 20), (0, 5)])
        assert device.used_by(os.getpid()) == device.used_by(child.pid) == 300
        assert device.strangers({child.pid}) == 25
        assert device.strangers(set()) == 325
    finally:
        os.kill(grandchild, 9)
        child.wait()
        child.stdout.close()
