"""End a whole study when Snakemake is told to end: alone it would wait for its jobs and signal none of them."""

import signal
from contextlib import suppress


def end_jobs_on_signal() -> None:
    """Have SIGTERM and SIGINT end the running jobs and then Snakemake, as Ctrl-C in a terminal does.

    To be called once Snakemake has installed its own handler (`onstart:`).
    """
    import psutil  # Snakemake has it; `launch` itself needs nothing

    def handler(number, frame):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        for process in psutil.Process().children():  # each passes it on to what it started
            with suppress(psutil.Error):
                process.terminate()
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)
