"""`config.yaml`: what is taken, and that every mistake is refused by key, value and remedy.

The cases C01 to C09 and C12 are faults of other tools, from their public trackers (addresses beside them).
"""

import json
import re
import shlex

import pytest
from study import CONFIG, ROOT
from sweep import naming
from sweep.config import SCHEMA, fill, placeholders, read_config
from sweep.digest import missing_program
from sweep.errors import SweepError
from sweep.space import Random, expand
from sweep.yamlfile import read_yaml

TRAIN = "python train.py {flags} --seed {seed} --model {model}"


def combinations(config) -> list[dict]:
    """Expand a config's space into dictionaries."""
    return [dict(zip(c.names, c.values, strict=True)) for c in expand(config.space, {})[0]]


def paths(config) -> list[str]:
    """Expand a config's space into paths."""
    return [c.path for c in expand(config.space, {})[0]]


@pytest.fixture
def refused(read):
    """Read and expand a config that must be refused; check that each line names the file; give the text."""

    def refused(text: str, *fragments: str, overrides: dict | None = None) -> str:
        with pytest.raises(SweepError) as raised:
            expand(read(text, overrides).space, {})
        message = str(raised.value)
        for fragment in fragments:
            assert fragment in message
        assert "Traceback" not in message
        return message

    return refused


# ---- cases --------------------------------------------------------------------------------------------


def test_c01_unquoted_exponents_are_numbers(read):
    """https://github.com/EducationalTestingService/skll/issues/318: 1e-3 is a text to PyYAML."""
    config = read("grid: {lr: [1e-3, 1.0e-3, 0.001, 5e-05, 1e3]}")
    assert paths(config) == ["lr=0.001", "lr=5e-05", "lr=1000.0"]
    assert all(type(c["lr"]) is float for c in combinations(config))
    # Quoted text stays text: another command line, so another run.
    assert paths(read("grid: {lr: [1e-3, '1e-3']}")) == ["lr=0.001", "lr=~31e-3"]


def test_c02_booleans_beside_words_are_refused(refused):
    """https://github.com/FCP-INDI/C-PAC/pull/2204: no and off are false."""
    refused("grid: {augment: [no, flip]}", "grid.augment: 'no' is read as the boolean false", "quote 'no'")
    refused("grid: {lr_schedule: [off, cosine]}", "grid.lr_schedule: 'off' is read as the boolean false")


def test_c02_real_booleans_are_booleans(read):
    config = read("grid: {batch_norm: [true, false]}")
    assert combinations(config) == [{"batch_norm": True}, {"batch_norm": False}]
    assert [naming.to_flags(c.items()) for c in combinations(config)] == [
        ["--batch_norm"],
        ["--no-batch_norm"],
    ]


def test_c03_null_is_not_the_word_none(read):
    """https://github.com/wandb/wandb/issues/4016."""
    config = read("grid: {clipnorm: [null, 0.5]}\nfixed: {restart: None}")
    assert combinations(config) == [{"clipnorm": None}, {"clipnorm": 0.5}]
    assert paths(config) == ["clipnorm=null", "clipnorm=0.5"]
    assert config.fixed == {"restart": "None"}
    [warning] = config.warnings
    assert "fixed.restart: 'None' is the text" in warning
    assert paths(read("grid: {clipnorm: [null, 'None', 'null']}")) == [
        *("clipnorm=null", "clipnorm=None", "clipnorm=~6Eull"),
    ]


def test_c04_a_list_is_a_value(read):
    """https://github.com/wandb/wandb/issues/4488."""
    config = read("grid: {hidden_units: [[64, 64], [128], []]}\nfixed: {kernel: [3, 3]}")
    assert [c["hidden_units"] for c in combinations(config)] == [[64, 64], [128], []]
    assert paths(config) == ["hidden_units=64+64", "hidden_units=128+", "hidden_units=+"]
    assert config.fixed == {"kernel": [3, 3]}


def test_c04_a_bare_value_is_a_list_of_one(read):
    assert combinations(read("grid: {lr: 0.01, optimizer: adam}")) == [{"lr": 0.01, "optimizer": "adam"}]


def test_c05_dotted_nested_and_hyphened_keys(read):
    """https://github.com/wandb/wandb/issues/3827, https://github.com/snakemake/snakemake/issues/1349."""
    config = read("""\
    grid:
      optimizer.name: [sgd, adam]
      optimizer:
        lr: [0.1, 0.01]
      batch-size: [32, 64]
    """)
    assert len(paths(config)) == 8
    assert paths(config)[0] == "batch-size=32/optimizer.lr=0.1/optimizer.name=sgd"
    assert {tuple(c.values()) for c in combinations(config)} == {
        (b, lr, n) for b in (32, 64) for lr in (0.1, 0.01) for n in ("sgd", "adam")
    }


def test_c06_slashes_make_no_directories(read):
    """https://github.com/hydra-ecosystem/hydra/issues/3018."""
    config = read("grid: {dataset: [data/a.csv, data//a.csv, ../a.csv, /abs/a.csv]}")
    assert paths(config) == [
        "dataset=data~2Fa.csv",
        "dataset=data~2F~2Fa.csv",
        "dataset=..~2Fa.csv",
        "dataset=~2Fabs~2Fa.csv",
    ]
    assert [naming.to_flags(c.items()) for c in combinations(config)][2] == ["--dataset=../a.csv"]


def test_c07_odd_texts_are_one_argument_each(read):
    """https://github.com/snakemake/snakemake/issues/2981, https://github.com/python/cpython/issues/105712."""
    tags = [
        "a b",
        "it's",
        'say "x"',
        "50%",
        "k=v",
        "a,b",
        "$HOME",
        "x;touch PWNED",
        "*",
        "é-σ",
        "-adam",
        "-1e-3",
    ]
    config = read(f"grid:\n  tag: {json.dumps(tags)}\n  momentum: [-0.5]\n  shift: [-1.0e-3]")
    flags = [naming.to_flags(c.items()) for c in combinations(config)]
    assert flags == [["--momentum=-0.5", "--shift=-0.001", f"--tag={tag}"] for tag in tags]
    assert len(set(paths(config))) == 12
    assert all(re.fullmatch(r"momentum=-0\.5/shift=-0\.001/tag=[A-Za-z0-9._~-]+", p) for p in paths(config))


def test_c08_escaping_is_one_to_one(read):
    """https://github.com/benchflow-ai/benchflow/pull/720."""
    assert paths(read("grid: {arch: [v1.5, v1_5, v1/5]}")) == ["arch=v1.5", "arch=v1_5", "arch=v1~2F5"]
    assert paths(read("grid: [{a: '1,b=2'}, {a: 1, b: 2}]")) == ["a=1~2Cb~3D2", "a=1/b=2"]


def test_c09_types_that_look_alike(read):
    """https://github.com/wandb/sweeps/pull/109. 1, 1.0 and true are three runs; the text "1" is the run of 1."""
    config = read("grid: {units: [1, 1.0, true, '1'], kl: [0, 1.0e-4, 1]}")
    assert [c["units"] for c in combinations(config)][::3] == [1, 1.0, True]
    assert [type(c["units"]) for c in combinations(config)][::3] == [int, float, bool]
    assert [c["kl"] for c in combinations(config)][:3] == [0, 0.0001, 1]
    assert len(set(paths(config))) == 9
    assert "grid.units: 1 and '1' are the same on the command line, so they are one run" in config.warnings
    assert naming.to_flags([("units", 64)]) == ["--units=64"]


def test_c12_repeated_combinations_run_once_and_are_told(read):
    """https://github.com/Rob2U/adni_transformer/blob/HEAD/sweep_config.py, wandb/sweeps#41."""
    config = read("grid: {lr: [0.01, 0.001, 0.0001, 0.0001], batch_size: [4, 8]}")
    found, [note] = expand(config.space, {})
    assert len(found) == 6
    assert note.startswith("2 combinations are asked for more than once")
    assert "batch_size=4/lr=0.0001" in note
    _, [note] = expand(read("grid: {a: [1, 1, 1, 2]}").space, {})
    assert note.startswith("1 combination is asked for more than once")


# ---- spellings that are the same ------------------------------------------------------------------------


def test_dotted_and_nested_are_the_same_to_the_last_byte(read):
    dotted = read("""\
    fixed: {opt.beta: 0.9, opt.sub.eps: 1e-7}
    defaults: {opt.clip: null}
    grid: {opt.name: [sgd, adam], net.width: [8]}
    zip: {opt.a: [1, 2], opt.b: [3, 4]}
    random: {n: 3, ranges: {opt.lr: {loguniform: [1e-4, 1e-1]}, opt.m: {choice: [0, 1]}}}
    exclude: [{opt.name: sgd, opt.a: 1}]
    """)
    nested = read("""\
    fixed: {opt: {beta: 0.9, sub: {eps: 1e-7}}}
    defaults: {opt: {clip: null}}
    grid: {opt: {name: [sgd, adam]}, net: {width: [8]}}
    zip: {opt: {a: [1, 2], b: [3, 4]}}
    random: {n: 3, ranges: {opt: {lr: {loguniform: [1e-4, 1e-1]}, m: {choice: [0, 1]}}}}
    exclude: [{opt: {name: sgd, a: 1}}]
    """)
    assert dotted == nested
    assert expand(dotted.space, {}) == expand(nested.space, {})
    assert len(paths(dotted)) == 2 * 2 * 3 - 3


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("grid: {opt.lr: [1], opt: {lr: [2]}}", "grid.opt.lr: stands here twice, dotted and nested"),
        ("grid: [{a: 1}, {opt: {lr: 1}, opt.lr: 1}]", "grid[1].opt.lr: stands here twice"),
        ("grid: {a: 1}\nfixed: {o: {p: 1}, o.p: 1}", "fixed.o.p: stands here twice"),
        ("grid: {a: 1}\nexclude: [{o: {p: 1}, o.p: 1}]", "exclude[0].o.p: stands here twice"),
    ],
)
def test_a_name_spelled_both_ways_is_refused(refused, section, says):
    refused(section, says, "keep one of the two")


def test_order_of_keys_and_lists(read):
    """C13, https://github.com/snakemake/snakemake/issues/2212: nothing but the order of rows changes."""
    one = read("grid: {lr: [0.1, 0.01], units: [8]}\nfixed: {opt: {name: adam, beta: 0.9}}\nthreads: 2")
    other = read("threads: 2\nfixed: {opt: {beta: 0.9, name: adam}}\ngrid: {units: [8], lr: [0.01, 0.1]}")
    assert sorted(paths(one)) == sorted(paths(other))
    assert naming.to_flags(one.fixed.items()) == naming.to_flags(other.fixed.items())
    assert one.fixed == other.fixed


def test_seeds(read):
    assert read("grid: {a: 1}\nseeds: 5").seeds == (0, 1, 2, 3, 4)
    assert read("grid: {a: 1}\nseeds: [3, 0, 999999]").seeds == (3, 0, 999999)


def test_data_is_one_path_or_a_list(read):
    train = f"train: {TRAIN} --data {{data}}\ngrid: {{a: 1}}\n"
    assert read(train + "data: a b.npz").data == ("a b.npz",)
    assert read(train + "data: [a, b]").data == ("a", "b")


def test_results_and_model(read):
    config = read("grid: {a: 1}\nresults: out/\nmodel: model/")
    assert config.results == "out"
    assert config.model == "model/"


def test_commands_are_split_once_as_a_shell_would(read):
    config = read("""grid: {a: 1}\ntrain: python "my train.py" --x='a b' {flags} --m={model}""")
    assert config.train == ("python", "my train.py", "--x=a b", "{flags}", "--m={model}")


def test_single_values_may_be_set_on_the_command_line(read, refused):
    config = read("grid: {a: 1}\nresults: here", overrides={"results": "there", "seeds": 3, "threads": 2})
    assert (config.results, config.seeds, config.threads) == ("there", (0, 1, 2), 2)
    refused("grid: {a: 1}", "--config seeds=…: only single values", overrides={"seeds": [1, 2]})
    refused("grid: {a: 1}", "threads: 0 is not taken", overrides={"threads": 0})
    refused("grid: {a: 1}", "learning_rate: no such key", overrides={"learning_rate": 0.1})


def test_a_jobs_process_reads_the_same_without_the_schema(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    assert read_config(path, {}, check=False) == read_config(path, {})


def test_the_shipped_config_is_valid():
    config = read_config(ROOT / "config.yaml", {})
    assert expand(config.space, {})[0]


# ---- refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("gird: {a: 1}", ["gird: no such key; did you mean 'grid'?", "grid: is missing"]),
        ("grid: {a: 1}\nnonsense: 1", ["nonsense: no such key; known keys: train, eval, data,"]),
        ("grid: {a: 1}\nselect: {metrc: f1}", ["select.metrc: no such key; did you mean 'metric'?"]),
        (
            "random: {n: 1, ranges: {a: {int: [1, 2]}}, sed: 1}",
            ["random.sed: no such key; did you mean 'seed'?"],
        ),
        ("seeds: 1", ["grid: is missing; give at least one of grid, zip and random"]),
        ("grid: 5", ["grid: 5 is not taken; the values to combine", "for example {'learning_rate'"]),
        ("grid:", ["grid: None is not taken"]),
        ("grid: []", ["grid: [] is not taken"]),
        ("grid: [1]", ["grid: [1] is not taken"]),
        ("zip: {}", ["zip: {} is not taken; lists of equal length"]),
        ("random: {n: 4}", ["random.ranges: is missing; add it"]),
        ("random: {ranges: {a: {int: [1, 2]}}}", ["random.n: is missing; add it"]),
        ("random: {n: 0, ranges: {a: {int: [1, 2]}}}", ["random.n: 0 is not taken; how many points"]),
        ("random: {n: 1, ranges: {}}", ["random.ranges: {} is not taken"]),
        (
            "random: {n: 1, sampler: sobol, ranges: {a: {int: [1, 2]}}}",
            ["random.sampler: 'sobol' is not taken", "'uniform'"],
        ),
        ("grid: {a: 1}\nmodel: a/b.keras", ["model: 'a/b.keras' is not taken", "for example 'model.keras'"]),
        ("grid: {a: 1}\nmodel: ../x", ["model: '../x' is not taken"]),
        ("grid: {a: 1}\nresults: 'out{x}'", ["results: 'out{x}' is not taken; where runs are kept"]),
        ("grid: {a: 1}\ndata: []", ["data: [] is not taken; the data: one path or a list"]),
        ("grid: {a: 1}\ndata: 3", ["data: 3 is not taken"]),
        (
            "grid: {a: 1}\nfixed: [1]",
            ["fixed: [1] is not taken; hyperparameters that are the same in every run"],
        ),
        ("grid: {a: 1}\ndefaults: 1", ["defaults: 1 is not taken"]),
        ("grid: {a: 1}\nfiles: a", ["files: 'a' is not taken; hyperparameters whose values name files"]),
        ("grid: {a: 1}\nfiles: [3]", ["files.0: 3 is not taken"]),
        ("grid: {a: 1}\nexclude: {a: 1}", ["exclude: {'a': 1} is not taken; combinations to leave out"]),
        ("grid: {a: 1}\nexclude: [{}]", ["exclude.0: {} is not taken"]),
        (
            "grid: {a: 1}\nselect: {mode: maximum}",
            ["select.mode: 'maximum' is not taken; whether more or less"],
        ),
        (
            "grid: {a: 1}\ngpus_per_run: 1.5",
            ["gpus_per_run: 1.5 is neither a share of one GPU nor whole ones"],
        ),
        ("grid: {a: 1}\ngpus_per_run: 0.001", ["gpus_per_run: 0.001 of a GPU is too small a share"]),
        ("grid: {a: 1}\ngpus_per_run: some", ["gpus_per_run: 'some' is not taken"]),
        ("grid: {a: 1}\ntime_limit: 2w", ["time_limit: '2w' is not taken"]),
        ("grid: {a: 1}\ntime_limit: 0", ["time_limit: 0 is not taken"]),
        ("grid: {a: 1}\ngpus_per_run: -1", ["gpus_per_run: -1 is not taken"]),
        ("grid: {a: 1}\nthreads: true", ["threads: True is not taken; CPU threads of one run"]),
        ("grid: {a: 1}\nthreads: '2'", ["threads: '2' is not taken"]),
        ("grid: {a: 1}\ntrain: 5", ["train: 5 is not taken; the command that trains one run"]),
        ("grid: {a: 1}\neval: ''", ["eval: '' is not taken; the command that scores one trained model"]),
    ],
)
def test_the_schema_is_strict_and_its_messages_are_ours(refused, text, fragments):
    message = refused(text, *fragments)
    assert all(re.match(r".*config\.yaml: [\w.]+: ", line) for line in message.splitlines())


@pytest.mark.parametrize("key", ["train", "eval", "seeds"])
def test_needed_keys(tmp_path, key):
    lines = [line for line in CONFIG.splitlines() if not line.startswith(f"{key}:")]
    path = tmp_path / "config.yaml"
    path.write_text("\n".join(lines))
    with pytest.raises(SweepError, match=rf"config\.yaml: {key}: is missing; add it, for example {key}: "):
        read_config(path, {})


@pytest.mark.parametrize("text", ["", "# only a comment", "- 1", "just text"])
def test_no_mapping_at_all(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(SweepError, match="holds no keys; it needs at least train, eval, seeds and grid"):
        read_config(path, {})


def test_long_values_are_cut(refused):
    message = refused(f"grid: {{a: 1}}\nmodel: '/{'x' * 500}'", f"model: '/{'x' * 75}… is not taken")
    assert len(message.partition("model: ")[2]) < 250


def test_all_mistakes_are_told_at_once(refused):
    message = refused("gird: {a: 1}\nthreads: 0\nmodel: a/b")
    assert [line.split(": ")[1] for line in message.splitlines()] == ["gird", "grid", "model", "threads"]


@pytest.mark.parametrize(
    "seeds",
    ["0", "-1", "[-1]", "[]", "[0.5]", "1.0", "true", "[true]", "[1000000]", "two", "['1']", "{a: 1}"],
)
def test_bad_seeds(refused, seeds):
    """TensorFlow takes seeds from 0 to 2**32 - 1; 1.0 would make another path than 1."""
    message = refused(f"grid: {{a: 1}}\nseeds: {seeds}", "seeds: ", "is not taken", "from 0 to 999999")
    assert "for example [0, 1]" in message


def test_a_seed_given_twice(refused):
    refused("grid: {a: 1}\nseeds: [1, 0, 1]", "seeds: 1 stands there twice; list each seed once")


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("train: python t.py --model {model}", ["train: lacks {flags}"]),
        ("train: python t.py {flags}", ["train: lacks {model}"]),
        ("eval: python e.py --model {model}", ["eval: lacks {metrics}"]),
        ("eval: python e.py --metrics {metrics}", ["eval: lacks {model}"]),
        (f"train: {TRAIN} {{lr}}", ["train: '{lr}' in '{lr}' is no placeholder; there are {flags}, {seed}"]),
        (f"train: {TRAIN} {{split}}", ["train: '{split}' in"]),
        ("eval: e {model} {metrics} {state}", ["eval: '{state}' in", "there are {flags}, {seed}, {data}"]),
        (f"train: {TRAIN} --x={{}}", ["train: '{' in '--x={}' is no placeholder", "write {{ and }}"]),
        (f"train: {TRAIN} {{seed", ["train: '{' in '{seed'"]),
        ("train: python t.py --x={flags} {model}", ["train: {flags} must be a word of its own"]),
        (f"train: {TRAIN} --data={{data}}\ndata: a", ["train: {data} must be a word of its own"]),
        (f"train: {TRAIN} {{data}}", ["train: uses {data}, but there is no data; add the key data"]),
        (f"""train: "{TRAIN} 'x" """, ["train: ", "can't be split into words", "mend its quotes"]),
        ("train: '  '", ["train: is empty; give the command that you would type"]),
    ],
)
def test_commands_that_cannot_be_run(refused, text, fragments):
    refused(f"grid: {{a: 1}}\n{text}", *fragments)


def test_literal_braces_in_a_command(read):
    config = read(f"grid: {{a: 1}}\ntrain: {TRAIN} {{{{x}}}}")
    assert placeholders(config.train) == {"flags", "seed", "model"}


def test_filling_a_command():
    words = ["python", "{flags}", "--seed={seed}", "{{x}}", "{data}", "{flags}{{"]
    values = {"flags": ["--a", "--b=1"], "seed": ["7"], "data": [], "model": ["m"]}
    assert fill(words, values) == ["python", "--a", "--b=1", "--seed=7", "{{x}}", "--a{{"]
    assert fill(["{data}"], {"data": ["a b", "c"]}) == ["a b", "c"]


@pytest.mark.parametrize(
    ("grid", "fragments"),
    [
        (
            "{seed: [1]}",
            ["grid: 'seed' is reserved (the seed is the last level of every path)", "another name"],
        ),
        ("{more: [1]}", ["grid: 'more' is reserved"]),
        ("{help: [1]}", ["grid: 'help' is reserved"]),
        ("{1lr: [1]}", ["grid: '1lr' can't be a flag; use letters"]),
        ("{l r: [1]}", ["grid: 'l r' can't be a flag"]),
        ("{'a=b': [1]}", ["grid: 'a=b' can't be a flag"]),
        ("{'': [1]}", ["grid: '' can't be a flag"]),
        ("{ü: [1]}", ["grid: 'ü' can't be a flag"]),
        ("{opt: {l/r: [1]}}", ["grid: 'opt.l/r' can't be a flag"]),
        ("{no-augment: [1]}", ["grid: 'no-augment' reads as a switched-off 'augment'"]),
        ("[{a: 1}, {2: 1}]", ["grid[1]: '2' can't be a flag"]),
        ("{model: [a]}", ["model: its flag --model stands in the train command as well", "rename"]),
        ("{a: [.nan]}", ["grid.a: nan is no finite number; use a finite one, or null"]),
        ("{a: [1, .inf]}", ["grid.a: inf is no finite number"]),
        ("{a: [1e999]}", ["grid.a: inf is no finite number"]),
        ("{a: [[[1]]]}", ["grid.a: [[1]] is nested; write a single value or a flat list"]),
        ("{a: [{b: 1}]}", ["grid.a: {'b': 1} (dict) can't be a value"]),
        ("{a: {}}", ["grid.a: {} (dict) can't be a value; write null, a boolean, a number"]),
        ("{a: []}", ["grid.a: has no value; give at least one (an empty list as a value is [[]])"]),
        (r'{a: ["x\0"]}', ["grid.a: 'x\\x00' holds a NUL character", "remove it"]),
        ("{a: [[-adam]]}", ["grid.a: the list item '-adam' begins with a dash", "pass it as a scalar"]),
        ("{a: [[-1e-5]]}", ["grid.a: the list item '-1e-05' begins with a dash", "without an exponent"]),
        ("{a: [true, [1]]}", ["grid.a: mixes booleans with lists", "split it in two"]),
        ("{a: [010]}", ["line 1: grid.a: '010' is read differently"]),
    ],
)
def test_names_and_values_outside_the_domain(refused, grid, fragments):
    refused(f"grid: {grid}", *fragments)


@pytest.mark.parametrize("section", ["fixed: {a: [[1]]}", "defaults: {a: [[1]]}", "exclude: [{a: [[1]]}]"])
def test_values_are_checked_everywhere(refused, section):
    key = "exclude[0].a" if "exclude" in section else f"{section.partition(':')[0]}.a"
    refused(f"grid: {{b: 1}}\n{section}", f"{key}: [[1]] is nested")
    refused(f"grid: {{b: 1}}\n{section.replace('{a:', '{9:')}", "'9' can't be a flag")


@pytest.mark.parametrize("word", ["--model", "--epochs", "--epochs=5", "--epochs={seed}"])
def test_a_flag_that_the_command_has_already(refused, word):
    name = word.strip("-").partition("=")[0]
    more = "" if name == "model" else f" {word}"
    refused(
        f"fixed: {{{name}: 1}}\ngrid: {{a: 1}}\ntrain: {TRAIN}{more}",
        f"{name}: its flag --{name} stands in the train command as well",
        f"remove --{name} from train",
    )


def test_words_that_are_no_flags_clash_with_nothing(read):
    assert read(f"grid: {{thon: 1, ain.py: 1, odel: 1, u: 1}}\ntrain: {TRAIN} -u -- {{seed}}").train


def test_eval_gets_no_flags_so_nothing_clashes(read, refused):
    metrics = "eval: e --model {model} --metrics {metrics}"
    assert read(f"grid: {{metrics: [1]}}\n{metrics}").eval[-1] == "{metrics}"
    refused(
        f"grid: {{metrics: [1]}}\n{metrics} {{flags}}",
        "metrics: its flag --metrics stands in the eval command",
    )


@pytest.mark.parametrize(
    "section",
    [
        "grid: {hidden: [[64, 64]]}",
        "zip: {hidden: [[64, 64]]}",
        "grid: {a: 1}\nfixed: {hidden: [64]}",
        "grid: {a: 1}\ndefaults: {hidden: []}",
        "random: {n: 1, ranges: {hidden: {choice: [[64], [32]]}}}",
    ],
)
def test_a_list_must_not_swallow_a_word(refused, read, section):
    """argparse: `--hidden 64 64 d.npz` takes d.npz for an item."""
    refused(
        f"{section}\ntrain: t {{flags}} {{model}}",
        "train: '{model}' follows {flags}, so a list-valued hyperparameter would swallow it",
        "put {flags} last, or before an option",
    )
    assert read(f"{section}\ntrain: t {{flags}} --model {{model}}").train
    assert read(f"{section}\ntrain: t {{model}} {{flags}}").train


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("grid: {a: [1]}\nfixed: {a: 1}", ["fixed.a: is varied as well; keep it in one place"]),
        ("grid: {a: [1]}\nzip: {a: [1], b: [2]}", ["zip.a: is in grid as well; keep it in one place"]),
        ("grid: [{a: 1}, {b: 1}]\nzip: {b: [1]}", ["zip.b: is in grid as well"]),
        ("zip: [{a: [1]}, {a: [2]}]", ["zip.a: is in zip as well"]),
        ("grid: {a: 1}\nrandom: {n: 1, ranges: {a: {int: [1, 2]}}}", ["random.a: is in grid as well"]),
        ("zip: {a: [1]}\nrandom: {n: 1, ranges: {a: {int: [1, 2]}}}", ["random.a: is in zip as well"]),
        ("zip: {a: [.nan]}", [": zip.a: nan is no finite number"]),
        ("zip: [{a: [.nan]}]", [": zip.a: nan is no finite number"]),
        ("zip: [{b: [1]}, {a: [.nan]}]", [": zip[1].a: nan is no finite number"]),
        ("grid: [{a: [.nan]}]", [": grid.a: nan is no finite number"]),
        ("zip: {a: [1, 2], b: [1, 2, 3]}", ["zip: lists must be of equal length, but a has 2, b has 3"]),
        ("zip: {a: [1, 2], b: 1}", ["a has 2, b has 1; add or remove values"]),
        ("grid: {a: 1}\nfiles: [data]", ["files: 'data' is no hyperparameter of this study; there are: a"]),
        (
            "grid: {a: [1]}\nexclude: [{a: 2}]",
            ["exclude[0]: a=2 matches no combination; remove it or mend it"],
        ),
        ("grid: {a: [1]}\nexclude: [{a: 1.0}]", ["exclude[0]: a=1.0 matches no combination"]),
        ("grid: {a: [1]}\nexclude: [{b: 2}]", ["exclude[0].b: no such hyperparameter; there are: a"]),
        (
            "grid: {a: [1]}\nexclude: [{a: 1}]",
            ["exclude: leaves no combination to run; remove one of its items"],
        ),
    ],
)
def test_parts_that_do_not_fit_together(refused, text, fragments):
    refused(text, *fragments)


@pytest.mark.parametrize(
    ("spec", "fragments"),
    [
        ("{uniform: [1, 0]}", ["random.ranges.a.uniform: [1, 0] is no range; write [low, high]"]),
        ("{uniform: [1, 1]}", ["random.ranges.a.uniform: [1, 1] is no range"]),
        ("{uniform: [1]}", ["random.ranges.a.uniform: [1] is no range"]),
        ("{uniform: [a, b]}", ["random.ranges.a.uniform: ['a', 'b'] is no range"]),
        ("{uniform: [0, .inf]}", ["random.ranges.a.uniform: [0, inf] is no range"]),
        ("{uniform: [.nan, 1]}", ["random.ranges.a.uniform: [nan, 1] is no range"]),
        ("{uniform: [false, true]}", ["random.ranges.a.uniform: [False, True] is no range"]),
        (f"{{int: [0, 1{'0' * 400}]}}", ["random.ranges.a.int: [0, 1000"]),
        ("{loguniform: [0, 1]}", ["random.ranges.a.loguniform: [0, 1] reaches zero"]),
        ("{loguniform: [-1, 1]}", ["random.ranges.a.loguniform: [-1, 1] reaches zero"]),
        ("{int: [0.5, 2]}", ["random.ranges.a.int: [0.5, 2] must be whole numbers; or use uniform"]),
        ("{choice: []}", ["random.ranges.a.choice: has no value"]),
        ("{choice: [.nan]}", ["random.ranges.a.choice: nan is no finite number"]),
        ("{choice: 5}", ["random.ranges.a: {'choice': 5} is no range"]),
        ("{uniform: [0, 1], int: [0, 1]}", ["random.ranges.a: ", "is no range"]),
        ("{}", ["random.ranges.a: {} is no range"]),
        ("5", ["random.ranges.a: 5 is no range; write for example {uniform: [0, 1]}"]),
        (
            "{unifrom: [0, 1]}",
            ["random.ranges.a.unifrom: is no kind of range", "uniform, loguniform, int, choice"],
        ),
    ],
)
def test_bad_ranges(refused, spec, fragments):
    refused(f"random: {{n: 2, ranges: {{a: {spec}}}}}", *fragments)


def test_names_of_ranges_are_checked(refused):
    refused("random: {n: 1, ranges: {seed: {int: [1, 2]}}}", "random.ranges: 'seed' is reserved")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("python train.py", None),
        ("python there.R --x=y", None),
        ("./train.py there.R", None),
        ("tool-that-is-nowhere --x", "there is no program 'tool-that-is-nowhere'; install it, or mend"),
        ("python tain.py", "there is no file 'tain.py' in "),
        ("Rscript fit.R", "Rscript"),
        ("bash --rcfile=run.sh", "there is no file '--rcfile=run.sh' in "),
        ("python --script=train.py", None),
        ("python train.py --out {model}.py", None),
    ],
)
def test_missing_programs(tmp_path, words, says):
    for name in ("train.py", "there.R"):
        (tmp_path / name).touch()
    problem = missing_program(shlex.split(words), [tmp_path])
    if says is None:
        assert problem is None
    else:
        assert says in problem
        assert "mend" in problem


@pytest.mark.parametrize("word", ["|", ">", "2>&1", ">>", "<", "&&", "||", ";", "&"])
def test_no_shell_is_there_to_understand_it(refused, word):
    refused(
        f"train: python train.py {{flags}} --model {{model}} {word} tee\ngrid: {{a: 1}}",
        f"train: '{word}' would be handed to the program, as no shell runs the command",
    )


def test_null_and_defaults_that_may_not_be_meant_are_told(read):
    warnings = read("grid: {lr: , momentum: [0.1]}\ndefaults: {momentun: 0.0}").warnings
    assert "grid.lr: is null, so the program gets no --lr; if that is not meant, list its values" in warnings
    assert "defaults.momentun: is varied nowhere; did you mean 'momentum'?" in warnings
    assert read("grid: {lr: [0.1, null]}\ndefaults: {momentum: 0.0}").warnings == ()


@pytest.mark.parametrize("seeds", ["[0, 1]", "[5]"])
def test_replicates_without_a_seed_are_warned_of(read, seeds):
    train = "train: python train.py {flags} --model {model}\ngrid: {a: 1}"
    [warning] = read(f"{train}\nseeds: {seeds}").warnings
    assert warning.startswith("train: has no {seed}, so the replicates differ only by chance; add")
    assert read(f"{train}\nseeds: 1").warnings == ()


def test_mistakes_end_snakemake_with_our_message_alone(study):
    """What a user sees of it all: the key, the value, the remedy; no traceback, nothing run."""
    study.edit("config.yaml", "x: [1, 2]", "x: [1, .nan]")
    study.edit("config.yaml", "grid:", "threads: 0\ngrid:")
    outcome = study.snakemake("-n", status=1)
    assert "Snakesweep can't plan this study:" in outcome.text
    assert "config.yaml: threads: 0 is not taken" in outcome.text
    study.edit("config.yaml", "threads: 0\n", "")
    outcome = study.snakemake("-n", status=1)  # (Study.snakemake looks for tracebacks)
    assert (
        "config.yaml: grid.x: nan is no finite number; use a finite one, or null for 'not set'"
        in outcome.text
    )
    assert outcome.jobs == (0, 0)
    assert not study.results.exists()


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("1d", 86400), ("0.5", 0.5)]
)
def test_durations(read, text, seconds):
    config = read(f"grid: {{a: 1}}\ntime_limit: {text}\ngrace_time: {text}")
    assert (config.time_limit, config.grace_time) == (seconds, seconds)


@pytest.mark.parametrize("text", ["0", "0.25", "1", "2", "auto"])
def test_gpus_per_run(read, text):
    assert str(read(f"grid: {{a: 1}}\ngpus_per_run: {text}").gpus_per_run) == text


# ---- the schema ------------------------------------------------------------------------------------------


def schema_keys(schema: dict, prefix: str = "") -> dict[str, dict]:
    """List every key of the schema, dotted."""
    keys = {}
    for name, described in schema.get("properties", {}).items():
        keys[prefix + name] = described
        keys |= schema_keys(described, f"{prefix}{name}.")
    return keys


SCHEMA_KEYS = schema_keys(read_yaml(SCHEMA)[0])


def test_every_key_is_described():
    assert set(SCHEMA_KEYS) >= {"train", "random.ranges", "select.mode", "threads"}
    assert [
        key for key, described in SCHEMA_KEYS.items() if not described.get("description", "").strip()
    ] == []


def test_defaults_of_the_schema_are_those_of_the_code(read):
    config = read("random: {n: 1, ranges: {a: {int: [1, 2]}}}")
    assert config.space.random == Random(
        1, config.space.random.seed, {"a": ("int", [1, 2])}, stratified=False
    )
    found = {
        "model": config.model,
        "results": config.results,
        "fixed": config.fixed,
        "defaults": config.space.defaults,
        "files": list(config.files),
        "random.seed": config.space.random.seed,
        "random.sampler": "stratified" if config.space.random.stratified else "uniform",
        "exclude": config.space.exclude,
        "select.metric": config.metric,
        "select.mode": config.mode,
        "gpus_per_run": config.gpus_per_run,
        "threads": config.threads,
        "grace_time": f"{config.grace_time:g}s",
        "warm": config.warm,
        "confirm": config.confirm,
        "failures": config.failures,
        "keep_models": config.keep_models,
        "report": config.report,
        "resources": config.resources,
    }
    assert found == {key: d["default"] for key, d in SCHEMA_KEYS.items() if "default" in d}
    # An empty `select` is the same as none.
    assert read("grid: {a: 1}\nselect: {}").metric == config.metric


@pytest.mark.parametrize("key", [key for key, described in SCHEMA_KEYS.items() if "examples" in described])
def test_examples_of_the_schema_are_valid(tmp_path, key):
    for example in SCHEMA_KEYS[key]["examples"]:
        document = {
            "train": TRAIN,
            "eval": "python eval.py {model} {split} {metrics}",
            "seeds": 1,
            "grid": {"optimizer": ["sgd", "adam"], "learning_rate": [0.1, 0.2], "dataset": "a.npz"},
            "data": "data.npz",
        }
        if key in ("random", "zip"):
            del document["grid"]
        document[key] = example
        path = tmp_path / "config.yaml"
        path.write_text("\n".join(f"{k}: {v!r}" for k, v in document.items()))
        assert expand(read_config(path, {}).space, {})[0]


@pytest.mark.parametrize("name", ["record.json", "logs/", "state", "metrics.json"])
def test_model_named_like_a_file_of_ours_is_refused(tmp_path, name):
    path = tmp_path / "config.yaml"
    path.write_text(
        f"train: python t.py {{flags}} {{model}}\neval: python e.py {{model}} {{metrics}}\nmodel: {name}\n"
        "grid: {x: [1]}\nseeds: 1\n"
    )
    with pytest.raises(
        SweepError, match=f"model: '{name.rstrip('/')}' is what the workflow calls a file of its own"
    ):
        read_config(path, {})
