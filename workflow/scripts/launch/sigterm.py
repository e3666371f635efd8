"""End a whole study on SIGTERM: Snakemake itself would wait for its running jobs and signal none of them."""

import signal
from contextlib import suppress


def end_on_sigterm() -> None:
    """Make SIGTERM do what Ctrl-C does, and pass it on to the running jobs.

    To be called once Snakemake has installed its own handler (`onstart:`).
    """
    import psutil  # Snakemake has it; `launch` itself needs nothing

    def handler(number, frame):
        signal.signal(number, signal.SIG_IGN)
        for process in psutil.Process().children():  # each passes it on to what it started
            with suppress(psutil.Error):
                process.terminate()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, handler)
