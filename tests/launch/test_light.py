"""What stands in for modules of the standard library gives what they give."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launch.light import from_json, sha256, suppress, to_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_json_is_written_and_read_as_by_json(value):
    assert to_json(value) == json.dumps(value)
    assert to_json(value, "\n") == json.dumps(value, indent=1)
    assert from_json(json.dumps(value, indent=2)) == value


@pytest.mark.parametrize("value", [math.nan, math.inf, {"a": [-math.inf]}])
def test_no_number(value):
    with pytest.raises(ValueError):
        to_json(value)


def test_no_json():
    with pytest.raises(TypeError):
        to_json({"a": {1}})


@pytest.mark.parametrize("text", [' {"a": 1}\n', "[NaN, Infinity, -Infinity]", "1e400", "1", '"\\ud800"'])
def test_odd_texts(text):
    assert repr(from_json(text)) == repr(json.loads(text))


@pytest.mark.parametrize(
    "text", ["", " ", "{", "[1,]", "{} {}", "nul", "'a'", '{"a": 1}x', "\ufeff1", '"\n"']
)
def test_mistakes_are_worded_by_json(text):
    with pytest.raises(ValueError) as expected:
        json.loads(text)
    with pytest.raises(ValueError) as found:
        from_json(text)
    assert str(found.value) == str(expected.value)


def test_too_deep():
    with pytest.raises(RecursionError):
        from_json("[" * 1_000_000)


@pytest.mark.parametrize("size", [0, 1, 1 << 30])
def test_digests(size):
    import hashlib

    digest = sha256(size)
    digest.update(b"abc")
    assert digest.hexdigest() == hashlib.sha256(b"abc").hexdigest()


def test_suppress():
    with suppress(OSError, ValueError):
        raise FileNotFoundError
    with pytest.raises(KeyError), suppress(OSError):
        raise KeyError
