"""From a space to its combinations: grid, zip, random, exclude, defaults, and what repeats."""

import itertools
import math
from statistics import correlation

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import naming, space
from sweep.config import SCHEMA
from sweep.errors import SweepError
from sweep.space import Combination, Random, Space, expand
from sweep.yamlfile import read_yaml

FEW = settings(max_examples=100, deadline=None, derandomize=True)


def rows(config, omitted: dict | None = None) -> list[dict]:
    """Expand a config into dictionaries."""
    found, _ = expand(getattr(config, "space", config), omitted or {})
    return [dict(zip(c.names, c.values, strict=True)) for c in found]


def paths(config, omitted: dict | None = None) -> list[str]:
    """Expand a config into paths."""
    return [c.path for c in expand(getattr(config, "space", config), omitted or {})[0]]


def points(n: int, ranges: dict, seed: int = 0, stratified: bool = False) -> dict[str, list]:
    """Draw points: name → its values, point by point."""
    # One more axis, so that no two points are equal and merged; it changes none of the others.
    random = Random(n, seed, ranges | {"zzz": ("int", [0, 2**32 - 1])}, stratified)
    drawn = rows(Space(random=random))
    assert len(drawn) == n
    return {name: [row[name] for row in drawn] for name in ranges}


# ---- grid and zip ------------------------------------------------------------------------------------------


def test_product_in_the_configs_order(read):
    assert rows(read("grid: {b: [2, 1], a: [x, y, z]}")) == [
        {"b": b, "a": a} for b, a in itertools.product([2, 1], "xyz")
    ]


def test_union_of_grids(read):
    """The example of the design: momentum only beside sgd; 2 + 4 - 1 excluded."""
    config = read("""\
    grid:
      - optimizer: adam
        learning_rate: [0.001, 0.01]
      - optimizer: sgd
        learning_rate: [0.01, 0.1]
        momentum: [0.0, 0.9]
    exclude: [{optimizer: sgd, learning_rate: 0.1, momentum: 0.9}]
    """)
    assert paths(config) == [
        "learning_rate=0.001/optimizer=adam",
        "learning_rate=0.01/optimizer=adam",
        "learning_rate=0.01/momentum=0.0/optimizer=sgd",
        "learning_rate=0.01/momentum=0.9/optimizer=sgd",
        "learning_rate=0.1/momentum=0.0/optimizer=sgd",
    ]


def test_an_empty_grid_is_one_combination(read):
    """All hyperparameters fixed: the seeds alone make the runs."""
    assert paths(read("grid: {}\nfixed: {epochs: 2}")) == [""]


def test_zip_is_taken_row_by_row_and_crossed(read):
    config = read("grid: {lr: [1, 2]}\nzip: {width: [32, 64, 128], depth: [4, 2, 1]}")
    assert [(r["lr"], r["width"], r["depth"]) for r in rows(config)] == [
        *((1, 32, 4), (1, 64, 2), (1, 128, 1)),
        *((2, 32, 4), (2, 64, 2), (2, 128, 1)),
    ]
    assert len(rows(read("zip: [{a: [1, 2], b: [1, 2]}, {c: [1, 2, 3], d: [4, 5, 6]}]"))) == 6
    assert len(rows(read("grid: [{x: 1}, {y: [1, 2]}]\nzip: {a: [1, 2]}"))) == 2 + 4


def test_zip_rows_may_hold_lists(read):
    assert paths(read("zip: {hidden: [[64], [64, 32]], name: [a, b]}")) == [
        *("hidden=64+/name=a", "hidden=64+32/name=b"),
    ]


atoms = st.sampled_from([0, 1, 1.0, "1", "a", True, None, 0.5])
axes = st.dictionaries(
    st.sampled_from("abc"), st.lists(atoms, min_size=1, max_size=3, unique_by=naming.to_text), max_size=3
)
tables = st.dictionaries(
    st.sampled_from("de"), st.lists(atoms, min_size=2, max_size=2), min_size=1, max_size=2
)


@FEW
@given(
    st.lists(axes, min_size=1, max_size=3),
    st.lists(tables, max_size=1),
    st.dictionaries(st.sampled_from("af"), atoms, max_size=2),
)
def test_expansion_is_the_plain_nested_loop(grids, zips, defaults):
    """Against the simplest possible writing of the same rules."""
    expected = []
    for grid in grids:
        for values in itertools.product(*grid.values()):
            for zipped in itertools.product(*(zip(*table.values(), strict=True) for table in zips)):
                row = dict(zip(grid, values, strict=True))
                for table, cells in zip(zips, zipped, strict=True):
                    row |= dict(zip(table, cells, strict=True))
                expected.append(defaults | row)
    left_out = {naming.to_pair(n, v) for n, v in defaults.items()}
    first: dict[tuple, dict] = {}
    for row in expected:
        first.setdefault(tuple(naming.to_flags(row.items())), row)
    found, notes = expand(Space(grids, zips, defaults=defaults), defaults)
    assert [c.pairs for c in found] == [
        "/".join(p for p in (naming.to_pair(n, v) for n, v in sorted(row.items())) if p not in left_out)
        for row in first.values()
    ]
    assert all(c.names == tuple(sorted(c.names)) for c in found)
    assert bool(notes) == (len(first) < len(expected))
    assert [dict(zip(c.names, map(naming.to_text, c.values), strict=True)) for c in found] == [
        {n: naming.to_text(v) for n, v in row.items()} for row in first.values()
    ]


def test_ten_thousands_of_combinations(read):
    config = read(
        "grid: {a: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], b: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], c: [1, 2, 3]}"
    )
    config.space.grids[0]["d"] = list(range(100))
    found, notes = expand(config.space, {})
    assert len({c.path for c in found}) == len(found) == 30000
    assert notes == []


# ---- what repeats, what shares a path -----------------------------------------------------------------------


def test_equal_numbers_are_one_value(read):
    """C10, https://github.com/gdsfactory/kfactory/issues/165: the same number twice, and numbers that are close."""
    assert paths(read("grid: {lr: [1.0e-05, 0.00001]}")) == ["lr=1e-05"]
    assert paths(read("grid: {lr: [0.1234567, 0.12345678, 1.0000001, 1.0]}")) == [
        *("lr=0.1234567", "lr=0.12345678", "lr=1.0000001", "lr=1.0"),
    ]
    close = "123456789.0, 123456790.0, 16777216.0, 16777217.0, 0.3, 0.30000000000000004"
    config = read(f"grid: {{lr: [{close}]}}")
    assert [r["lr"].hex() for r in rows(config)] == [float(n).hex() for n in close.split(", ")]
    assert len(set(paths(config))) == 6


def test_repeats_are_merged_and_told(read):
    """C12, https://github.com/wandb/sweeps/pull/41."""
    found, [note] = expand(read("grid: {lr: [0.01, 0.001, 1e-4, 0.0001], batch_size: [4, 8]}").space, {})
    assert len(found) == 6
    assert note == (
        "2 combinations are asked for more than once and run once (for one: batch_size=4/lr=0.0001)"
    )


def test_grids_that_overlap_are_merged(read):
    config = read("grid: [{a: [1, 2]}, {a: [2, 3]}, {b: 1, a: 2}]")
    found, [note] = expand(config.space, {})
    assert [c.path for c in found] == ["a=1", "a=2", "a=3", "a=2/b=1"]
    assert note.startswith("1 combination is")


def test_null_and_absence_are_one_command_line(read):
    """Null is no flag, so a run with it and a run without the hyperparameter would be the same run twice."""
    config = read("grid:\n  - {a: [1]}\n  - {a: [1, 2], momentum: [null]}")
    found, notes = expand(config.space, {})
    assert [c.path for c in found] == ["a=1", "a=2/momentum=null"]
    assert notes == ["1 combination is asked for more than once and run once (for one: a=1/momentum=null)"]


def test_null_is_not_absence_where_absence_means_a_default(read):
    config = read("grid:\n  - {a: [1]}\n  - {a: [1], momentum: [null]}")
    found, _ = expand(config.space, {"momentum": 0.9})
    assert [c.path for c in found] == ["a=1", "a=1/momentum=null"]


def test_a_repeat_at_the_default_is_merged(read):
    config = read("defaults: {dropout: 0.0}\ngrid: [{a: 1}, {a: 1, dropout: [0.0, 0.5]}]")
    found, [note] = expand(config.space, {"dropout": 0.0})
    assert [c.path for c in found] == ["a=1", "a=1/dropout=0.5"]
    found, [note] = expand(read("defaults: {a: 1}\ngrid: {a: [1, 1]}").space, {"a": 1})
    assert note.endswith("(for one: all defaults)")


def test_reordering_changes_no_path(read):
    """C13, https://github.com/snakemake/snakemake/issues/2212."""
    one = paths(read("grid: {lr: [0.1, 0.01], units: [8, 9]}\nzip: {a: [1, 2], b: [3, 4]}"))
    other = paths(read("zip: {b: [4, 3], a: [2, 1]}\ngrid: {units: [9, 8], lr: [0.01, 0.1]}"))
    assert sorted(one) == sorted(other)


def test_two_combinations_with_one_path_stop_the_plan_and_are_both_named():
    """C08. Only a collision of two 48-bit digests can bring this about, so the two are made up."""
    one = Combination(("a",), (1,), "a=1", "more=0123456789ab")
    other = Combination(("a",), (2,), "a=2", "more=0123456789ab")
    with pytest.raises(SweepError, match=r"share the path more=0123456789ab: a=1 and a=2; shorten"):
        space._check_paths({"a=1": one, "a=2": other})


def test_paths_that_differ_only_in_case_are_warned_of(study):
    """On a file system that tells them apart, as here; one that does not can't be made in a test."""
    study.edit("config.yaml", "y: [adam, sgd]", "y: [adam, Adam]")
    outcome = study.snakemake("-n")
    assert "Note: x=1/y=adam and x=1/y=Adam differ only in case" in outcome.text
    assert outcome.jobs == (8, 8)


# ---- exclude --------------------------------------------------------------------------------------------


def test_exclude_needs_all_of_a_rules_values(read):
    config = read("grid: {a: [1, 2], b: [1, 2]}\nexclude: [{a: 1, b: 2}, {b: 1, a: 2}]")
    assert paths(config) == ["a=1/b=1", "a=2/b=2"]
    assert paths(read("grid: {a: [1, 2], b: [1, 2]}\nexclude: [{a: 1}]")) == ["a=2/b=1", "a=2/b=2"]


def test_excludes_may_overlap(read):
    """A rule that only matches what another excludes does match something."""
    assert len(rows(read("grid: {a: [1, 2], b: [1, 2]}\nexclude: [{a: 1}, {a: 1, b: 1}]"))) == 2


@pytest.mark.parametrize(
    ("values", "rule", "left"),
    [
        ("[1, 1.0, true, 'x']", "1", 3),  # 1 is neither 1.0 nor true
        ("[1, 2]", "'1'", 1),  # but the text "1" is the run of 1
        ("[0.001, 2]", "1e-3", 1),
        ("[[64], [64, 64]]", "[64]", 1),
        ("[null, 1]", "null", 1),
        ("['true', true]", "true", 1),
    ],
)
def test_exclude_matches_as_runs_are_told_apart(read, values, rule, left):
    assert len(rows(read(f"grid: {{a: {values}}}\nexclude: [{{a: {rule}}}]"))) == left


def test_exclude_sees_zip_random_and_defaults(read):
    config = read("""\
    grid: {a: [1, 2]}
    zip: {b: [1, 2], c: [3, 4]}
    random: {n: 2, ranges: {d: {choice: [5]}}}
    defaults: {e: 6}
    exclude: [{a: 1, b: 2, d: 5, e: 6}]
    """)
    assert [(r["a"], r["b"]) for r in rows(config)] == [(1, 1), (2, 1), (2, 2)]


def test_exclude_of_another_mappings_name(read):
    """A conditional hyperparameter: the combinations without it don't match."""
    config = read("grid: [{o: adam}, {o: sgd, m: [0.0, 0.9]}]\nexclude: [{m: 0.9}]")
    assert paths(config) == ["o=adam", "m=0.0/o=sgd"]


# ---- defaults -------------------------------------------------------------------------------------------


def test_a_default_leaves_the_path_and_stays_a_flag(read):
    config = read("defaults: {dropout: 0.0}\ngrid: {lr: [0.1]}")
    [combination], _ = expand(config.space, config.space.defaults)
    assert combination.path == "lr=0.1"
    assert naming.to_flags(zip(combination.names, combination.values, strict=True)) == [
        *("--dropout=0.0", "--lr=0.1"),
    ]


def test_c14_a_new_hyperparameter_renames_no_run(read):
    """https://github.com/tensorflow/tensorboard/issues/2014: the paths only; the runs in test_reruns.py."""
    finished = paths(read("grid: {lr: [0.1, 0.01]}"))
    assert finished == ["lr=0.1", "lr=0.01"]
    known = {"dropout": 0.0}  # what results/defaults.yaml says once the default was declared
    assert paths(read("defaults: {dropout: 0.0}\ngrid: {lr: [0.1, 0.01]}"), known) == finished
    both = read("defaults: {dropout: 0.0}\ngrid: {lr: [0.1, 0.01], dropout: [0.0, 0.5]}")
    assert paths(both, known) == ["lr=0.1", "dropout=0.5/lr=0.1", "lr=0.01", "dropout=0.5/lr=0.01"]
    # The default changed later: an ordinary point, written in the path, and the old runs keep theirs.
    later = read("defaults: {dropout: 0.1}\ngrid: {lr: [0.1, 0.01]}")
    assert paths(later, known) == ["dropout=0.1/lr=0.1", "dropout=0.1/lr=0.01"]
    assert {r["dropout"] for r in rows(later, known)} == {0.1}
    # No longer declared: the results folder still says what a path without it means.
    gone = read("grid: {lr: [0.1, 0.01], dropout: [0.0]}")
    assert paths(gone, known) == finished
    # The same value in another type is another run.
    assert paths(read("grid: {lr: 0.1, dropout: 0}"), known) == ["dropout=0/lr=0.1"]


# ---- random ---------------------------------------------------------------------------------------------

RANGES = {
    "batch": ("choice", [32, 64, 128]),
    "layers": ("int", [1, 5]),
    "lr": ("loguniform", [1e-4, 1e-1]),
    "momentum": ("uniform", [0, 1]),
}


@pytest.mark.parametrize(
    ("seed", "stratified", "expected"),
    [
        (
            0,
            False,
            [(32, 5, 0.0005131, 0.4554), (32, 2, 0.03044, 0.174), (128, 2, 0.06614, 0.7058)],
        ),
        (1, False, [(64, 3, 0.01994, 0.7099), (64, 3, 0.0001731, 0.2154)]),
        (
            0,
            True,
            [(64, 2, 0.005624, 0.5446), (128, 5, 0.0004294, 0.05746), (128, 2, 0.02225, 0.8711)],
        ),
    ],
)
def test_the_same_points_everywhere_and_for_ever(seed, stratified, expected):
    """Recorded when the samplers were written: another release or machine must draw the same points."""
    drawn = points(len(expected), RANGES, seed, stratified)
    assert list(zip(*(drawn[name] for name in sorted(RANGES)), strict=True)) == expected


ranges = st.dictionaries(
    st.sampled_from(["a", "b", "c.d", "e-f"]),
    st.sampled_from(
        [*RANGES.values(), ("uniform", [-3.0, 1e6]), ("int", [-10, 10**9]), ("choice", [[1], None])]
    ),
    min_size=1,
)


@FEW
@given(ranges, ranges, st.integers(1, 9), st.integers(1, 20), st.integers(0, 99), st.booleans())
def test_more_points_or_ranges_keep_those_there_were(few, more, n, extra, seed, stratified):
    before = points(n, few, seed, stratified)
    after = points(n + extra, more | few, seed, stratified)
    assert all(after[name][:n] == before[name] for name in few)


@pytest.mark.parametrize("stratified", [False, True])
def test_seeds_and_names_draw_other_points(stratified):
    drawn = points(20, {"a": ("uniform", [0, 1]), "b": ("uniform", [0, 1])}, 0, stratified)
    other = points(20, {"a": ("uniform", [0, 1])}, 1, stratified)
    assert len({*drawn["a"], *drawn["b"], *other["a"]}) > 55  # equal by chance alone


@FEW
@given(
    st.sampled_from(["uniform", "loguniform"]),
    st.floats(1e-9, 1e9),
    st.floats(1e-6, 1e6),
    st.integers(0, 99),
    st.booleans(),
)
def test_floats_have_four_significant_digits_within_the_bounds(kind, low, width, seed, stratified):
    high = low + width if kind == "uniform" else low * (1 + width)
    if low < high:
        for value in points(20, {"a": (kind, [low, high])}, seed, stratified)["a"]:
            assert type(value) is float
            assert low <= value <= high
            # A bound is a bound even where it has more digits.
            assert value in (low, high) or float(f"{value:.3e}") == value


@pytest.mark.parametrize("stratified", [False, True])
def test_bounds_of_integers_are_included(stratified):
    drawn = points(200, {"a": ("int", [-1, 3])}, 0, stratified)["a"]
    assert set(drawn) == {-1, 0, 1, 2, 3}
    assert {type(value) for value in drawn} == {int}


def test_a_float_may_round_to_its_bounds_and_no_further():
    assert set(points(64, {"a": ("uniform", [1.0, 1.001])}, 0)["a"]) == {1.0, 1.001}
    assert set(points(64, {"a": ("uniform", [1.0004, 1.0006])}, 0)["a"]) == {1.0004, 1.0006}


@pytest.mark.parametrize("stratified", [False, True])
def test_draws_are_spread_evenly(stratified):
    """4,096 points in 16 equal cells of u: 256 each; by chance within 5 standard deviations, 78."""
    drawn = points(
        4096, {"a": ("int", [0, 2**16 - 1]), "b": ("choice", list("abcdefghijklmnop"))}, 3, stratified
    )
    cells = [[value >> 12 for value in drawn["a"]].count(cell) for cell in range(16)]
    chosen = [drawn["b"].count(letter) for letter in "abcdefghijklmnop"]
    assert sum(cells) == sum(chosen) == 4096
    spread = 0 if stratified else 78
    assert all(abs(count - 256) <= spread for count in cells + chosen)


def test_loguniform_is_uniform_in_the_logarithm():
    """Of 256 stratified points, each of four decades has a quarter."""
    drawn = points(256, {"lr": ("loguniform", [1e-4, 1.0])}, 5, True)["lr"]
    assert [sum(d <= math.log10(v) + 4 < d + 1 for v in drawn) for d in range(4)] == [64] * 4


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["a", "learning_rate", "net.width"])
def test_stratified_leaves_no_gaps(seed, name):
    """Each aligned block of 2^k points has one in each interval of length 2^-k (Owen 1995)."""
    drawn = points(64, {name: ("int", [0, 2**20 - 1])}, seed, True)[name]
    for k in range(7):
        for start in range(0, 64, 2**k):
            block = drawn[start : start + 2**k]
            assert sorted(value >> (20 - k) for value in block) == list(range(2**k))


AXES = [f"axis{i}" for i in range(8)]


@pytest.mark.parametrize("stratified", [False, True])
def test_axes_are_not_correlated(stratified):
    """28 pairs of axes, 256 points: by chance r has a standard deviation of 1/16; five of these is 0.31."""
    drawn = points(256, {name: ("uniform", [0, 1]) for name in AXES}, 0, stratified)
    found = [abs(correlation(drawn[a], drawn[b])) for a, b in itertools.combinations(AXES, 2)]
    assert max(found) < 0.31
    assert sum(found) / len(found) < 0.1  # the mean of |r| by chance: 0.05


@pytest.mark.parametrize("seed", range(4))
def test_stratified_axes_visit_all_quadrants(seed):
    """64 points, 16 expected in each quadrant of a pair of axes."""
    drawn = points(64, {name: ("uniform", [0, 1]) for name in AXES}, seed, True)
    for a, b in itertools.combinations(AXES, 2):
        quadrants = [(x < 0.5, y < 0.5) for x, y in zip(drawn[a], drawn[b], strict=True)]
        assert all(quadrants.count((x, y)) >= 6 for x in (True, False) for y in (True, False))


def test_random_is_crossed_with_the_rest(read):
    config = read("""\
    grid: [{o: adam}, {o: sgd, m: [0.0, 0.9]}]
    zip: {a: [1, 2], b: [1, 2]}
    random: {n: 5, seed: 7, ranges: {lr: {loguniform: [1e-4, 1e-1]}, w: {int: [1, 9]}}}
    """)
    assert len(rows(config)) == (1 + 2) * 2 * 5
    lrs = [r["lr"] for r in rows(config) if (r["o"], r["a"]) == ("adam", 1)]
    assert lrs == points(5, {"lr": ("loguniform", [1e-4, 1e-1])}, 7)["lr"]


def test_the_sampler_is_documented():
    described = read_yaml(SCHEMA)[0]["properties"]["random"]["properties"]["sampler"]["description"]
    assert "low-discrepancy" in described
