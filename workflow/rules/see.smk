# What there is to look at once a study is complete: plots, TensorBoard's files, and the page.


localrules:
    plot,
    board,
    report,


rule plot:
    """Draw the study as SVG and PNG."""
    input:
        *plan.conclusions,
    output:
        report(
            directory(f"{plan.results}/plots"),
            patterns=["{name}.svg"],
            caption="../report/plots.rst",
            category="Plots",
        ),
    log:
        f"{plan.results}/logs/plot.log",
    conda:
        "../../envs/tensorflow.yaml"
    params:
        program=[f"{plan.scripts}/plot.py", "--results", plan.results],
    shell:
        "exec python {params.program:q} --plots {output:q} > {log:q} 2>&1"


rule board:
    """Write the scalars and hyperparameters that TensorBoard shows."""
    input:
        *plan.conclusions,
    output:
        directory(f"{plan.results}/tensorboard"),
    log:
        f"{plan.results}/logs/board.log",
    conda:
        "../../envs/tensorflow.yaml"
    params:
        program=[f"{plan.scripts}/board.py", "--results", plan.results],
    shell:
        "exec python {params.program:q} --board {output:q} > {log:q} 2>&1"


rule report:
    """Write the study as one page."""
    input:
        *plan.conclusions,
        plots=f"{plan.results}/plots",
    output:
        report(
            f"{plan.results}/study.html",
            caption="../report/study.rst",
            category="Study",
        ),
    log:
        f"{plan.results}/logs/report.log",
    conda:
        "../../envs/tensorflow.yaml"
    params:
        program=[f"{plan.scripts}/report.py", "--results", plan.results],
    shell:
        "exec python {params.program:q} --plots {input.plots:q} --page {output:q}"
        " > {log:q} 2>&1"
