"""YAML as its author meant it: what is a number, a text, a boolean, and what is refused or told.

Where PyYAML 6.0.4 reads a text otherwise, the comment says how.
"""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep.errors import SweepError
from sweep.yamlfile import read_yaml

FEW = settings(max_examples=200, deadline=None, derandomize=True)


@pytest.fixture
def read(tmp_path):
    """Read a document from its text: the document and the warnings."""

    def read(text: str | bytes):
        path = tmp_path / "config.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_yaml(path)

    return read


def refusal(read, text: str | bytes) -> str:
    """Return the message with which a document is refused."""
    with pytest.raises(SweepError) as raised:
        read(text)
    return str(raised.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # C01, https://github.com/EducationalTestingService/skll/issues/318: texts to PyYAML.
        ("1e-3", 0.001),
        ("5e-05", 5e-05),
        ("1e3", 1000.0),
        ("3e6", 3000000.0),
        ("1.0e3", 1000.0),
        ("-1e-3", -0.001),
        ("1E5", 100000.0),
        (".5e1", 5.0),
        # Numbers to PyYAML as well.
        ("1.0e-3", 0.001),
        ("1.e-3", 0.001),
        ("1.0e+3", 1000.0),
        ("0.001", 0.001),
        (".5", 0.5),
        ("5.", 5.0),
        ("+0.5", 0.5),
        ("-0.0", -0.0),
        ("1_000.5", 1000.5),
        ("0", 0),
        ("-1", -1),
        ("+1", 1),
        ("64", 64),
        ("1_000", 1000),
        ("0x1F", 31),
        ("-0x1f", -31),
        ("0b101", 5),
        ("123456789012345678901234567890", 123456789012345678901234567890),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        # Texts.
        ("adam", "adam"),
        ("1e", "1e"),
        ("e5", "e5"),
        ("1e-3x", "1e-3x"),
        ("1.2.3", "1.2.3"),
        (".", "."),
        ("0x", "0x"),
        ("0x_", "0x_"),
        ("0b", "0b"),
        ("１２", "１２"),  # full-width digits, which Python's int() would read
        ("٣.٥", "٣.٥"),
        ("=", "="),
        ("y", "y"),
        ("N", "N"),
        ("tRUE", "tRUE"),
        ("'1e-3'", "1e-3"),
        ('"1"', "1"),
        ("'true'", "true"),
        ("'null'", "null"),
        ("''", ""),
        ("'~'", "~"),
        ("'2020-10-10'", "2020-10-10"),
        ("'010'", "010"),
        ("|\n  1", "1\n"),
        # Booleans and null.
        ("true", True),
        ("False", False),
        ("TRUE", True),
        ("null", None),
        ("~", None),
        ("Null", None),
        ("", None),
    ],
)
def test_scalars(read, text, value):
    document, warnings = read(f"a: {text}\n")
    assert document == {"a": value}
    assert type(document["a"]) is type(value)
    assert math.copysign(1, document["a"]) == math.copysign(1, value) if isinstance(value, float) else True
    assert warnings == []


def test_nan(read):
    assert math.isnan(read("a: .nan")[0]["a"])


@FEW
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_as_python_writes_it(tmp_path_factory, number):
    """Unquoted, with or without a point (`1e-05`), it is that number to the last bit."""
    path = tmp_path_factory.getbasetemp() / "float.yaml"
    path.write_text(f"[{number!r}, {str(number).replace('e+', 'e')}]")
    document, _ = read_yaml(path)
    assert [value.hex() for value in document] == [number.hex()] * 2


@FEW
@given(st.integers())
def test_every_integer_as_python_writes_it(tmp_path_factory, number):
    path = tmp_path_factory.getbasetemp() / "int.yaml"
    path.write_text(f"[{number}, {number:+d}, {number!r}]")
    document, _ = read_yaml(path)
    assert document == [number] * 3
    assert {type(value) for value in document} == {int}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("010", "'010'"),  # 8 to YAML 1.1, 10 to YAML 1.2
        ("08", "'08'"),  # a text to PyYAML, 8 to YAML 1.2
        ("-017", "'-017'"),
        ("00", "'00'"),
        ("1:30", "'1:30'"),  # 90 to YAML 1.1
        ("12:30:45", "'12:30:45'"),
        ("1:30.5", "'1:30.5'"),
        ("2020-10-10", "'2020-10-10'"),  # a date to YAML 1.1
        ("2020-10-10T10:00:00Z", "'2020-10-10T10:00:00Z'"),
    ],
)
def test_what_is_read_differently_elsewhere_is_refused(read, text, word):
    message = refusal(read, f"grid:\n  a: [1, {text}]\n")
    assert "line 2: grid.a: " in message
    assert word in message
    assert "quote it" in message


@pytest.mark.parametrize("number", ["9" * 5000, "0x" + "f" * 5000, "-" + "1" * 4301])
def test_a_number_too_long_for_python_is_refused(read, number):
    """Python refuses to convert more than 4,300 decimal digits, with a traceback."""
    message = refusal(read, f"a: {number}")
    assert f"a: '{number[:10]}…' has {len(number)} digits" in message
    assert "quote it" in message


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("!!str 1e-3", "!!str"),
        ("!!int 3", "!!int"),
        ("!!float 3", "!!float"),
        ("!!binary aGk=", "!!binary"),
        ("!!python/object:os.system {}", "!!python/object:os.system"),
        ("!!python/tuple [1, 2]", "!!python/tuple"),
        ("!!set {x, y}", "!!set"),
        ("!mine [1]", "!mine"),
        ("&anchor !!float 1", "!!float"),
        ("[1, !!str 2]", "!!str"),
    ],
)
def test_tags_are_refused(read, text, tag):
    message = refusal(read, f"\ufeffé😀: 1\r\ngrid: {{a: {text}}}")
    assert f"line 2: grid.a: the tag {tag} is not taken" in message
    assert "write the value plainly" in message


@pytest.mark.parametrize(
    ("word", "value"), [("no", "false"), ("On", "true"), ("OFF", "false"), ("yes", "true")]
)
def test_words_read_as_booleans_are_told(read, word, value):
    """C02, https://github.com/FCP-INDI/C-PAC/pull/2204."""
    document, [warning] = read(f"grid: {{augment: {word}}}")
    assert document == {"grid": {"augment": value == "true"}}
    assert warning.startswith(f"grid.augment: '{word}' is read as the boolean {value}")
    assert "quote it" in warning


@pytest.mark.parametrize("word", ["None", "none", "nan", "NaN", "inf", "-inf"])
def test_texts_that_look_like_null_or_numbers_are_told(read, word):
    """C03, https://github.com/wandb/wandb/issues/4016: `None` is the text to every YAML."""
    document, [warning] = read(f"fixed:\n  restart: {word}")
    assert document == {"fixed": {"restart": word}}
    assert warning.startswith(f"fixed.restart: '{word}' is the text")
    assert "write null" in warning
    assert read(f"fixed: {{restart: '{word}'}}")[1] == []


@pytest.mark.parametrize(
    ("items", "word", "value", "text"),
    [
        ("no, flip", "no", "false", "flip"),
        ("off, cosine", "off", "false", "cosine"),
        ("no, 'flip'", "no", "false", "flip"),
        ("true, flip", "true", "true", "flip"),
        ("1, flip, False", "False", "false", "flip"),
        ("'1', yes", "yes", "true", "1"),
    ],
)
def test_booleans_mixed_with_texts_are_refused(read, items, word, value, text):
    """C02: `augment: [no, flip]` meant the words."""
    message = refusal(read, f"grid:\n  augment: [{items}]")
    assert (
        f"line 2: grid.augment: '{word}' is read as the boolean {value}, beside the text '{text}'" in message
    )
    assert f"quote '{word}'" in message


@pytest.mark.parametrize(
    ("items", "values"),
    [
        ("true, false", [True, False]),
        ("'no', flip", ["no", "flip"]),
        ("1, 1.0, true, '1'", [1, 1.0, True, "1"]),
        ("true, 'flip'", [True, "flip"]),
        ("null, None", [None, "None"]),
        ("[true], [a]", [[True], ["a"]]),
    ],
)
def test_lists_that_are_meant(read, items, values):
    document, _ = read(f"a: [{items}]")
    assert document == {"a": values}
    assert [type(value) for value in document["a"]] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("grid: {}\ngrid: {a: 1}", 2, "grid"),
        ("grid:\n  a: 1\n  b: 2\n  a: 3", 4, "grid.a"),
        ("grid:\n  - {a: 1, 'a': 2}", 2, "grid.a"),
        ("grid: [{opt: {lr: 1,\n  lr: 2}}]", 2, "grid.opt.lr"),
    ],
)
def test_repeated_keys_are_refused(read, text, line, key):
    """PyYAML lets the second win without a word."""
    message = refusal(read, text)
    assert f"line {line}: {key}: stands here a second time; keep one of the two" in message


def test_anchors_and_merges(read):
    document, _ = read("base: &base {a: 1, b: 2}\none: {<<: *base, b: 3}\ntwo: [*base, &x 1e-3, *x]")
    assert document["one"] == {"a": 1, "b": 3}
    assert document["two"] == [{"a": 1, "b": 2}, 0.001, 0.001]
    # Of several, the first named wins, as YAML has it.
    assert read("a: &a {x: 1}\nb: &b {x: 2, y: 2}\nc: {<<: [*a, *b]}")[0]["c"] == {"x": 1, "y": 2}
    assert read("a: {'<<': 1}")[0] == {"a": {"<<": 1}}


def test_keys_are_texts(read):
    assert read("yes: 1\n1: 2\nnull: 3\n1e-3: 4")[0] == {"yes": 1, "1": 2, "null": 3, "1e-3": 4}


def test_comments_formatting_and_order_change_nothing(read):
    plain = read("grid: {lr: [0.1, 0.01]}\nfixed: {epochs: 2}")[0]
    assert (
        read("# a comment\nfixed:\n    epochs: 2   # more\n\ngrid:\n  lr:\n  - 0.1\n  - 0.01\n")[0] == plain
    )
    assert read("\ufeffgrid: {lr: [0.1, 0.01]}\r\nfixed: {epochs: 2}\r\n")[0] == plain


def test_an_empty_document(read):
    assert read("# nothing\n") == (None, [])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1, 2", "line 2, column 1"),
        ("a: 'x", "line 1"),
        ("a: b: c", "line 1, column 5"),
        ("a:\n\t- b", "line 2"),
        ("a: 1\n---\nb: 2", "line 2"),
        ("a: *b", "alias"),
        ("a: \x07", "no valid YAML"),
        ("? [a]\n: 1", "a key must be plain text"),
        ("a: &x [*x]", "a: refers to itself; write it out"),
        ("a: &x {b: *x}", "a.b: refers to itself"),
        ("<<: 3", "'<<' takes a mapping"),
        (b"a: \xff", "is not UTF-8 text (byte 3); save it as UTF-8"),
    ],
)
def test_no_yaml_is_refused_with_the_place(read, text, says):
    message = refusal(read, text)
    assert "config.yaml" in message
    assert says in message
    assert "\n" not in message


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(SweepError, match=r"none\.yaml: can't be read .*--configfile"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(SweepError, match="can't be read"):
        read_yaml(tmp_path)
