"""Start a program of a run, in a process of its own, and put what it made in place only when it is whole.

The only thing that starts `train` and `eval`. It knows nothing of hyperparameters or of Snakemake: it gets a
command with places to fill, and leaves files. Standard library only.
"""
