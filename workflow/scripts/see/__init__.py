"""Look at a study: what its files say, and how it goes while it runs.

Reads only what other rooms have written; `plot.py`, `report.py`, `board.py` and `watch.py` use it.
"""
