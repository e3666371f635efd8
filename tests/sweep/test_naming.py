"""A run's name is its command line: path and flags, by property over the whole domain and by example.

The right values are those of the design: one level `name=text` per hyperparameter, sorted by name, the seed
last; floats as the shortest text that reads back; everything but `[A-Za-z0-9._-]` escaped as `~` and two
upper-case hexadecimal digits per UTF-8 byte; list items joined by `+`; identity is the command line.
"""

import argparse
import math
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sweep import naming
from sweep.errors import SweepError
from sweep.space import Space, expand

FEW = settings(max_examples=100, deadline=None, derandomize=True)
MANY = settings(max_examples=300, deadline=None, derandomize=True)

# Texts that look like something else: the ones that an encoding mixes up.
LOOKALIKES = [
    *(
        "",
        "~",
        "+",
        "++",
        "-",
        "--",
        ".",
        "..",
        "null",
        "Null",
        "true",
        "True",
        "false",
        "~74rue",
        "None",
        "nan",
    ),
    *("1", "01", "+1", "-1", "-0", "0", "1.0", "1.", ".5", "0.5", "1e-3", "0.001", "1e-05", "1E5", "1e16"),
    *(
        "1e+16",
        "1e999",
        "100000.0",
        "1_000",
        "1,b=2",
        "a+b",
        "1+",
        "a=b",
        "a/b",
        "a~2Fb",
        "50%",
        "%2F",
        "é-σ",
    ),
    *("\n", " ", "😀", "ﬁ", "\x7f", "١٢", "seed=0", "more=0123456789ab"),
]
texts = st.sampled_from(LOOKALIKES) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30
)
numbers = (
    st.integers()
    | st.integers(-(10**60), 10**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, -0.0, 1e16, 1e22, 1e-05])
)
scalars = st.none() | st.booleans() | numbers | texts
values = scalars | st.lists(scalars, max_size=4)
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9._-]{0,11}", fullmatch=True).filter(
    lambda name: naming.check_name(name) is None
)
combinations = st.dictionaries(names, values.filter(lambda v: naming.check_value(v) is None), max_size=6)
seeds = st.integers(0, naming.MAX_SEED)


def word(value) -> str:
    """Write a scalar as the command line has it, by the design's rules alone."""
    if isinstance(value, bool) or value is None:
        return {None: "null", True: "true", False: "false"}[value]
    return value if isinstance(value, str) else repr(value).replace("e+", "e")


def identity(value):
    """Say what a value is to the command line: its kind (null, boolean, word, list of these) and its words."""
    if isinstance(value, list):
        return ("list", *map(identity, value))
    return ("null" if value is None else "boolean" if isinstance(value, bool) else "word", word(value))


def as_read(value):
    """Give what reading a value's text back gives: numbers are the text of their word."""
    if isinstance(value, list):
        return list(map(as_read, value))
    return value if value is None or isinstance(value, bool | str) else word(value)


def path_of(hyperparameters: dict) -> str:
    """Return the path of a combination, as a study with this one combination has it."""
    [combination], _ = expand(Space([{name: [value] for name, value in hyperparameters.items()}]), {})
    return combination.path


# ---- one value --------------------------------------------------------------------------------------


@MANY
@given(values)
def test_value_to_text_to_value(value):
    text = naming.to_text(value)
    assert naming.from_text(text) == as_read(value)
    assert naming.to_text(naming.from_text(text)) == text


@MANY
@given(values)
def test_text_has_only_safe_characters(value):
    """Snakemake cuts wildcards at commas, sbatch expands per cents; none of the rest needs quotes."""
    assert re.fullmatch(r"[A-Za-z0-9._~+-]+", naming.to_text(value))


@MANY
@given(values, values)
@example(1, "1")
@example([None], ["null"])
def test_equal_texts_are_equal_command_lines_of_one_kind(one, other):
    assert (naming.to_text(one) == naming.to_text(other)) == (identity(one) == identity(other))


def test_equal_texts_among_lookalikes():
    """Every pair of values that are easily mixed up, singly and as lists."""
    alike = [None, True, False, 1, 1.0, 0, -0.0, 0.001, 1e-05, 1e16, 10**16, 100000.0, *LOOKALIKES]
    alike += [[], *([value] for value in alike), [None, None], ["", ""], [1, 1], ["1+1"]]
    assert len({naming.to_text(v) for v in alike}) == len({identity(v) for v in alike})
    assert all(
        (naming.to_text(a) == naming.to_text(b)) == (identity(a) == identity(b)) for a in alike for b in alike
    )


@MANY
@given(st.floats(allow_nan=False, allow_infinity=False))
@example(5e-324)
@example(-0.0)
@example(1.7976931348623157e308)
def test_float_is_the_shortest_text_that_reads_back(number):
    text = naming.to_text(number)
    assert math.copysign(1, float(text)) == math.copysign(1, number)
    assert float(text) == number  # to the last bit: no two floats but the zeros are equal
    assert "+" not in text
    digits = len(text.partition("e")[0].replace(".", "").strip("-").strip("0"))
    assert digits < 2 or float(f"{number:.{digits - 2}e}") != number  # one digit less is another number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.001, "0.001"),
        (1e-05, "1e-05"),
        (1e300, "1e300"),
        (1e16, "1e16"),
        (5e-324, "5e-324"),
        (-0.5, "-0.5"),
        (1, "1"),
        (1.0, "1.0"),
        (2**70, "1180591620717411303424"),
        (True, "true"),
        (False, "false"),
        (None, "null"),
        ("", "~"),
        ("adam", "adam"),
        ("v1.5_b-c", "v1.5_b-c"),
        ("true", "~74rue"),
        ("null", "~6Eull"),
        ("True", "True"),
        ("1e-3", "~31e-3"),
        ("1e999", "1e999"),  # no finite number, so no other spelling of one
        ("1", "1"),
        ("data/a.csv", "data~2Fa.csv"),
        ("../a.csv", "..~2Fa.csv"),
        ("a,b", "a~2Cb"),
        ("50%", "50~25"),
        ("k=v", "k~3Dv"),
        ("a b", "a~20b"),
        ("~", "~7E"),
        ("+", "~2B"),
        ("é-σ", "~C3~A9-~CF~83"),
        ("😀", "~F0~9F~98~80"),
        ([64, 64], "64+64"),
        ([128], "128+"),
        ([], "+"),
        ([""], "~+"),
        (["a+b", True, None, "null"], "a~2Bb+true+null+~6Eull"),
    ],
)
def test_text_of_a_value(value, text):
    assert naming.to_text(value) == text
    assert naming.from_text(text) == as_read(value)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("01", "'1'"),
        ("1e-3", "'0.001'"),
        ("+1", "'1'"),
        ("-0", "'0'"),
        ("1.", "'1.0'"),
        (".5", "'0.5'"),
        ("1.50", "'1.5'"),
        ("1e5", "'100000.0'"),
        ("1E16", "'1e16'"),
        ("64+064", "'64+~3064'"),
        ("a~2fb", "'a~2Fb'"),
        ("~C3~a9", "'~C3~A9'"),
        ("a~41b", "'aAb'"),
        ("~61dam", "'adam'"),
        ("~54rue", "'True'"),
        ("~31", "'1'"),
        ("a~", "'a~7E'"),
        ("a~2", "'a~7E2'"),
        ("~zz", "'~7Ezz'"),
        ("~C3", "'~7EC3'"),
        ("~~41", "'~7E~7E41'"),
        ("~ED~A0~80", "'~7EED~7EA0~7E80'"),  # a lone surrogate in UTF-8's manner: no text
        ("a,b", "'a~2Cb'"),
        ("50%", "'50~25'"),
        ("%41", "'~2541'"),
        ("a b", "'a~20b'"),
        ("é", "'~C3~A9'"),
        ("a++b", "'a~2B~2Bb'"),
        ("a+b+", "'a~2Bb~2B'"),
        ("++", "'~2B~2B'"),
        ("a=b", "'a~3Db'"),
        ("", "'~'"),
    ],
)
def test_any_other_spelling_is_refused_and_the_right_one_named(text, right):
    with pytest.raises(SweepError) as raised:
        naming.read_pairs([f"width={text}"])
    message = str(raised.value)
    assert message.startswith("width: ")
    assert right in message
    assert f"'{text}'" in message or not text


@MANY
@given(st.text("Aaet01258.~+-%,=nulrs", max_size=8) | texts)
def test_a_text_is_the_one_right_way_or_refused(text):
    """No spelling is taken for another's, and nothing but SweepError comes of any text."""
    try:
        value = naming.from_text(text)
    except SweepError:
        return
    assert naming.to_text(value) == text


@FEW
@given(texts.filter(lambda t: t not in ("", "true", "false", "null")), st.data())
def test_an_escaped_safe_character_is_refused(value, data):
    text = naming.to_text(value)
    plain = [i for i, c in enumerate(text) if c != "~" and text[max(0, i - 2) : i].find("~") < 0]
    if plain:
        i = data.draw(st.sampled_from(plain))
        with pytest.raises(SweepError):
            naming.from_text(f"{text[:i]}~{ord(text[i]):02X}{text[i + 1 :]}")


@FEW
@given(st.text(st.characters(min_codepoint=0x2A, max_codepoint=0x2F) | st.sampled_from("é😀:?ÿ"), min_size=1))
def test_lower_case_escapes_are_refused(value):
    text = naming.to_text(value)
    lower = re.sub("~(..)", lambda m: f"~{m[1].lower()}", text)
    if lower != text:
        with pytest.raises(SweepError, match=re.escape(text)):
            naming.from_text(lower)


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("a=~00", "NUL"),  # no command line can carry it
        ("a=-adam+", "begins with a dash"),  # argparse takes it for an option
        ("9a=1", "can't be a flag"),
        ("seed=1", "reserved"),
        ("more=0123456789ab", "reserved"),
        ("no-augment=1", "switched-off"),
    ],
)
def test_pairs_outside_the_domain_are_refused(pair, says):
    with pytest.raises(SweepError, match=says):
        naming.read_pairs([pair])


def test_a_name_given_twice_is_refused():
    with pytest.raises(SweepError, match="'a' is there twice"):
        naming.read_pairs(["a=1", "a=2"])


# ---- names and values that are none ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lr", "_x", "optimizer.lr", "batch-size", "A1", "no_x", "seeds", "nothing"])
def test_names_that_are_flags(name):
    assert naming.check_name(name) is None


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("seed", "reserved"),
        ("more", "reserved"),
        ("", "letter"),
        ("1a", "letter"),
        ("-a", "letter"),
        (".a", "letter"),
        ("a b", "letter"),
        ("a=b", "letter"),
        ("a/b", "letter"),
        ("é", "letter"),
        ("a,b", "letter"),
        ("a\n", "letter"),
        ("no-augment", "switched-off 'augment'"),
    ],
)
def test_names_that_are_no_flags(name, says):
    problem = naming.check_name(name)
    assert f"'{name}'" in problem
    assert says in problem


@MANY
@given(scalars)
def test_every_scalar_of_the_domain_is_taken(value):
    assert naming.check_value(value) is None


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (math.nan, "no finite number"),
        (math.inf, "no finite number"),
        (-math.inf, "null for 'not set'"),
        ([1, math.nan], "no finite number"),
        ([[1]], "nested"),
        ([{"a": 1}], "nested"),
        ({"a": 1}, "(dict) can't be a value"),
        ("a\0b", "NUL"),
        ("\ud800", "no valid Unicode"),
        (["a\0"], "NUL"),
        (b"a", "(bytes) can't be a value"),
        (1j, "(complex) can't be a value"),
        (["-adam"], "begins with a dash"),
        (["--"], "begins with a dash"),
        ([-1e-05], "write the number without an exponent"),
    ],
)
def test_values_outside_the_domain_are_refused_by_name(value, says):
    assert says in naming.check_value(value)


@pytest.mark.parametrize("value", [[-1, -0.5], ["a-b"], [""], [None, True]])
def test_list_items_that_argparse_takes(value):
    assert naming.check_value(value) is None


# ---- a combination ------------------------------------------------------------------------------------


def test_seeds_are_what_tensorflow_takes():
    """From 0 to 2**32 - 1; any other is refused by it."""
    assert naming.MAX_SEED == 4294967295


def test_the_example_run():
    values = {"learning_rate": 0.001, "optimizer": "adam", "hidden": [64, 64], "augment": True}
    assert (
        naming.run_path(path_of(values), 0)
        == "augment=true/hidden=64+64/learning_rate=0.001/optimizer=adam/seed=0"
    )
    assert naming.to_flags(values.items()) == [
        *("--augment", "--hidden", "64", "64"),
        *("--learning_rate=0.001", "--optimizer=adam"),
    ]


def test_flags_of_each_kind():
    values = {"a": None, "b": False, "c": [], "d": "", "e": "-1e-3", "f": [0.5, "x"], "g.h": 1e-05}
    assert naming.to_flags(values.items()) == [
        *("--no-b", "--c", "--d=", "--e=-1e-3", "--f", "0.5", "x", "--g.h=1e-05"),
    ]


@FEW
@given(combinations, seeds)
def test_path_is_sorted_with_the_seed_last_and_matches_the_wildcard(hyperparameters, seed):
    run = naming.run_path(path_of(hyperparameters), seed)
    assert re.fullmatch(naming.RUN_PATTERN, run)
    assert re.fullmatch(r"[A-Za-z0-9._~+=/-]+", run)
    *pairs, last = run.split("/")
    assert last == f"seed={seed}"
    found = [pair.partition("=")[0] for pair in pairs]
    if "more" in found:
        assert found.pop() == "more"
    assert found == sorted(hyperparameters)[: len(found)]


@FEW
@given(combinations)
def test_path_to_flags_is_combination_to_flags(hyperparameters):
    path = path_of(hyperparameters)
    if "more=" not in path:
        read = naming.read_pairs(path.split("/") if path else [])
        assert naming.to_flags(read.items()) == naming.to_flags(hyperparameters.items())
        assert read == {name: as_read(value) for name, value in hyperparameters.items()}


@FEW
@given(combinations, combinations)
def test_paths_are_injective(one, other):
    same = {n: identity(v) for n, v in one.items()} == {n: identity(v) for n, v in other.items()}
    assert (path_of(one) == path_of(other)) == same


argument_kinds = {
    "int": (st.integers(), {"type": int}),
    "float": (st.floats(allow_nan=False, allow_infinity=False), {"type": float}),
    "text": (texts, {"type": str}),
    "boolean": (st.booleans(), {"action": argparse.BooleanOptionalAction}),
    "ints": (st.lists(st.integers(), max_size=4), {"type": int, "nargs": "*"}),
    "floats": (
        st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=4),
        {"type": float, "nargs": "*"},
    ),
    "texts": (st.lists(texts, max_size=4), {"type": str, "nargs": "*"}),
}


@FEW
@given(st.dictionaries(names, st.sampled_from(sorted(argument_kinds)), max_size=6), st.data())
def test_a_real_argparse_parser_reads_the_flags_back(kinds, data):
    """Combination → flags → combination through the parser that a program would write."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    values = {}
    for name, kind in kinds.items():
        drawn, options = argument_kinds[kind]
        drawn = (st.none() | drawn).filter(lambda v: naming.check_value(v) is None)
        values[name] = data.draw(drawn, label=name)
        parser.add_argument(f"--{name}", dest=name, **options)
    read = vars(parser.parse_args(naming.to_flags(values.items())))
    assert read == values
    assert {n: type(v) for n, v in read.items()} == {n: type(v) for n, v in values.items()}


# ---- folding ------------------------------------------------------------------------------------------


LONG = {f"p_very_long_name_{i:02}": "123456789012345" for i in range(1, 21)}


@FEW
@given(st.dictionaries(names, texts | st.text("ab/", min_size=40, max_size=120), max_size=8), seeds)
def test_path_has_at_most_200_bytes_and_replicates_are_siblings(hyperparameters, seed):
    path = path_of(hyperparameters)
    runs = [naming.run_path(path, s) for s in (0, seed, 2**32 - 1)]
    assert all(len(run.encode()) <= 200 for run in runs)
    assert len({run.rpartition("/")[0] for run in runs}) == 1
    whole = [naming.to_pair(n, v) for n, v in sorted(hyperparameters.items())]
    # Folded only where the longest seed, `/seed=4294967295`, would not fit, whatever the seed is.
    folded = len("/".join(whole)) > 200 - 16
    assert ("more=" in path) == folded
    if folded:
        *kept, more = path.split("/")
        assert re.fullmatch("more=[0-9a-f]{12}", more)
        assert kept == whole[: len(kept)]  # the last names go first
        assert len("/".join([*whole[: len(kept) + 1], more])) > 200 - 16  # and no more than need be


def test_folding_starts_at_the_185th_byte():
    assert path_of({"a": "x" * 182}) == "a=" + "x" * 182  # 184 bytes
    assert path_of({"a": "x" * 183}).startswith("more=")
    assert path_of({"a": "x" * 80, "b": "y" * 99}) == "a=" + "x" * 80 + "/b=" + "y" * 99
    assert path_of({"a": "x" * 80, "b": "y" * 100}).startswith("a=" + "x" * 80 + "/more=")
    # A pair of 166 bytes stays beside `/more=` and its 12 digits, 18 bytes; one of 167 is folded too.
    assert path_of({"a": "x" * 164, "b": "y" * 40}).startswith("a=" + "x" * 164 + "/more=")
    assert path_of({"a": "x" * 165, "b": "y" * 40}).startswith("more=")


def test_bytes_count_not_characters():
    """C11, https://github.com/snakemake/snakemake/issues/1771: 128 é are 256 bytes (and 768 escaped)."""
    assert path_of({"a": "é" * 30}) == "a=" + "~C3~A9" * 30
    assert path_of({"a": "é" * 31}).startswith("more=")


def test_folded_paths_are_the_same_everywhere():
    """C11: the short name is the same on every call and every machine. SHA-256 of the pairs left out."""
    kept = "/".join(f"p_very_long_name_0{i}=123456789012345" for i in range(1, 5))
    assert path_of(LONG) == f"{kept}/more=660bc607f262"
    assert path_of(dict(reversed(LONG.items()))) == path_of(LONG)


def test_folded_paths_tell_apart():
    """C11: two values that differ in the last character alone, and a few thousand others."""
    last = "p_very_long_name_20"
    assert path_of(LONG | {last: "12345678901234a"}) != path_of(LONG | {last: "12345678901234b"})
    many = {path_of(LONG | {last: i, "p_very_long_name_10": j}) for i in range(50) for j in range(50)}
    assert len(many) == 2500
    # Where a pair ends is part of what is digested.
    assert path_of(LONG | {last: "x/y=1"}) != path_of(LONG | {last: "x", "y": "1"})


@pytest.mark.parametrize("run", ["seed=0", "a=1/seed=4294967295", "a=~/b=+/seed=10"])
def test_the_wildcard_takes_runs(run):
    assert re.fullmatch(naming.RUN_PATTERN, run)


@pytest.mark.parametrize(
    "run", ["", "a=1", "seed=007", "seed=", "seed=-1", "a/seed=0", "a=/seed=0", "a=1//seed=0"]
)
def test_the_wildcard_takes_nothing_else(run):
    assert not re.fullmatch(naming.RUN_PATTERN, run)
