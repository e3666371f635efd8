"""Train and evaluate every combination of hyperparameters that config.yaml asks for, and compare them."""

import sys

sys.path.insert(0, f"{workflow.basedir}/workflow/scripts")

from launch.stop import end_jobs_on_signal
from sweep.plan import Plan

plan = Plan(
    workflow
)  # reads, checks and expands config.yaml, and says what is there and what is stale
scripts = f"{workflow.basedir}/workflow/scripts"


wildcard_constraints:
    run=plan.RUN,


localrules:
    all,
    summarize,
    accept,


rule all:
    input:
        f"{plan.results}/summary.csv",
        f"{plan.results}/best.json",


rule train:
    """Train one combination with one seed, in a process of its own."""
    input:
        *plan.train.inputs,
    output:
        **plan.train.outputs,
    conda:
        "envs/tensorflow.yaml"
    threads: plan.threads
    resources:
        gpu=plan.gpus,
    params:
        command=plan.train.command,
        fixed=plan.train.fixed,
        code=plan.train.code,
        data=plan.train.data,
        arguments=plan.train.arguments,
    shell:
        "exec python {plan.launch:q} train {output.record:q} --threads {plan.threads} {params.arguments:q}"


rule evaluate:
    """Score one trained model on validation data, in a process of its own."""
    input:
        *plan.evaluate.inputs,
        model=plan.evaluate.model,
    output:
        **plan.evaluate.outputs,
    conda:
        "envs/tensorflow.yaml"
    threads: plan.threads
    resources:
        gpu=plan.gpus,
    params:
        command=plan.evaluate.command,
        fixed=plan.evaluate.fixed,
        code=plan.evaluate.code,
        data=plan.evaluate.data,
        arguments=plan.evaluate.arguments,
    shell:
        "exec python {plan.launch:q} evaluate {output.record:q} --threads {plan.threads} {params.arguments:q}"


rule summarize:
    """Compare the combinations of a complete study and choose the best."""
    input:
        plan.summary_marker,
        lambda wildcards: plan.metrics,
    output:
        summary=f"{plan.results}/summary.csv",
        best=f"{plan.results}/best.json",
    params:
        study=lambda wildcards: plan.study,
        runs=f"{plan.results}/.sweep/study.jsonl",
    shell:
        "exec python {scripts:q}/summarize.py --runs {params.runs:q} --results {plan.results:q}"
        " --study {params.study:q} {plan.select:q} --summary {output.summary:q} --best {output.best:q}"


rule accept:
    """Declare that the code as it now is gives the results that are there (`snakemake accept`)."""
    params:
        versions=lambda wildcards: plan.unaccepted,
    shell:
        "exec python {scripts:q}/accept.py {plan.results:q}/accepted.yaml {params.versions:q}"


onstart:
    end_jobs_on_signal()
    plan.start()


onsuccess:
    plan.end()


onerror:
    plan.end()
