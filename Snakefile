"""Train and evaluate every combination of hyperparameters that config.yaml asks for, and compare them."""

import sys

sys.path.insert(0, f"{workflow.basedir}/workflow/scripts")

from launch.call import announce
from launch.orphans import cancel_orphans
from launch.stop import end_jobs_on_signal
from launch.warm import explain
from see.progress import Follow
from sweep.plan import Plan

# Reads, checks and expands config.yaml, and says what is there and what is stale.
plan = Plan(workflow)
# Hands out the GPUs; the rules ask for this many.
gpus = announce(workflow, plan.gpus_per_run)
# Shows how the study goes, in place of a message for every job.
progress = Follow(workflow, plan)


wildcard_constraints:
    run=plan.RUN,


localrules:
    all,
    summarize,
    conclude,
    accept,


rule all:
    input:
        *plan.conclusions,
        *plan.pages,


rule train:
    """Train one combination with one seed, in a process of its own."""
    input:
        *plan.train.inputs,
    output:
        **plan.train.outputs,
    log:
        plan.train.log,
    conda:
        "envs/tensorflow.yaml"
    threads: plan.threads
    resources:
        **plan.resources,
        gpu=gpus,
    params:
        command=plan.train.command,
        fixed=plan.train.fixed,
        code=plan.train.code,
        data=plan.train.data,
        launch=plan.train.launch,
    shell:
        "exec python {params.launch}"


rule evaluate:
    """Score one trained model on validation data, in a process of its own."""
    input:
        *plan.evaluate.inputs,
        model=plan.evaluate.model,
    output:
        **plan.evaluate.outputs,
    log:
        plan.evaluate.log,
    conda:
        "envs/tensorflow.yaml"
    threads: plan.threads
    resources:
        **plan.resources,
        gpu=gpus,
    params:
        command=plan.evaluate.command,
        fixed=plan.evaluate.fixed,
        code=plan.evaluate.code,
        data=plan.evaluate.data,
        launch=plan.evaluate.launch,
    shell:
        "exec python {params.launch}"


checkpoint summarize:
    """Compare the combinations of a complete study and choose the best."""
    input:
        plan.summary_marker,
        lambda wildcards: plan.metrics,
    output:
        summary=f"{plan.results}/summary.csv",
        effects=f"{plan.results}/effects.csv",
        best=f"{plan.results}/best.json",
    log:
        f"{plan.results}/logs/summarize.log",
    conda:
        "envs/tensorflow.yaml"
    params:
        study=lambda wildcards: plan.study,
        program=plan.summarize,
    shell:
        "exec python {params.program:q} --study {params.study:q} --summary {output.summary:q} --best {output.best:q}"
        " --effects {output.effects:q} 2> >(tee {log:q} >&2)"


use rule evaluate as test with:
    """Score one model of the chosen combination on test data."""
    input:
        *plan.test.inputs,
        model=plan.test.model,
    output:
        **plan.test.outputs,
    log:
        plan.test.log,
    params:
        command=plan.test.command,
        fixed=plan.test.fixed,
        code=plan.test.code,
        data=plan.test.data,
        launch=plan.test.launch,


rule conclude:
    """Put the chosen combination's model at hand, and its test score into a file and a ledger."""
    input:
        lambda wildcards: plan.choice.needs(checkpoints.summarize.get().output.best),
    output:
        **plan.choice.outputs,
    log:
        f"{plan.results}/logs/conclude.log",
    conda:
        "envs/tensorflow.yaml"
    params:
        program=plan.conclude,
    shell:
        "exec python {params.program:q} 2> >(tee {log:q} >&2)"


rule accept:
    """Declare that the code as it now is gives the results that are there (`snakemake accept`)."""
    log:
        f"{plan.results}/logs/accept.log",
    conda:
        "envs/tensorflow.yaml"
    params:
        program=plan.accept,
    shell:
        "exec python {params.program:q} > >(tee {log:q}) 2>&1"


include: "workflow/rules/see.smk"


onstart:
    end_jobs_on_signal()
    plan.start()
    cancel_orphans(workflow, plan.private / "slurm", log)
    explain(plan.warm)
    progress.start()


onsuccess:
    progress.stop()
    plan.end()


onerror:
    progress.stop()
    plan.end()
