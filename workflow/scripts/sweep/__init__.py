"""Plan a study: from `config.yaml` to runs, and from a run to its path and its flags.

Imported by the Snakefile, in the main process and again in every cluster job, so nothing here imports
TensorFlow or NumPy. It starts no process; what runs lives in `launch`.
"""
