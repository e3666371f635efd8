"""Run one step of one run: `python workflow/scripts/launch STEP RECORD [options] -- COMMAND…`.

Python compiles this file at every start, so that it is as short as can be.
"""

import os
import sys

try:
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    from launch.step import leave
except KeyboardInterrupt:  # Ctrl-C before there is anything to end
    os._exit(130)
leave()
