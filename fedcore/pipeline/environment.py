"""The folders of the pipeline, and the settings that must be made before Prefect or MLflow is imported.

Everything is inside one folder, the project's (or FEDCORE_HOME): `.fedcore/` for the cache, Prefect's server and logs,
`mlflow.db` and `mlruns/` for the record. A variable that the user has set in the environment is never changed.
"""

import atexit
import gc
import os
import platform
import re
import sys
import tempfile
from pathlib import Path

from fedcore.pipeline.command import Failed
from fedcore.pipeline.state import find_home, quarantine

HOME = find_home()
STATE = HOME / ".fedcore"
BLOBS = STATE / "blobs"
STEPS = STATE / "steps"
LOCKS = STATE / "locks"
REGISTERED = STATE / "registered"
PREFECT = STATE / "prefect"
TRACKING = f"sqlite:///{HOME / 'mlflow.db'}"
ARTIFACTS = HOME / "mlruns"

FILES = (
    "flows.lock", "history.jsonl", "history.lock", "journal.jsonl", "last_run.json", "password", "project",
    "server.json", "server.lease", "server.lock", "server.log", "mlflow.lock", "mlflow.log",
)  # fmt: skip
FOLDERS = ("blobs", "copies", "flows", "locks", "prefect", "registered", "repeats", "steps")
"""What there may be in STATE."""

DEFAULTS = {
    "PREFECT_HOME": str(PREFECT),
    "PREFECT_PROFILES_PATH": str(PREFECT / "profiles.toml"),
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLI_PROMPT": "false",
    # A flow's lines go to Prefect's page; the terminal has them already and needs no line per task.
    "PREFECT_LOGGING_LEVEL": "INFO",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "WARNING",
    "PREFECT_LOGGING_LOGGERS_PREFECT_TASK_RUNS_LEVEL": "WARNING",
    "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
    # An answer of 503 does not say why; its log then does.
    "PREFECT_SERVER_LOG_RETRYABLE_ERRORS": "true",
    # Steps are recorded by the hundred, at most a second late: one by one they take the server twice the time.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    # Events are not stored: they were three quarters of the database, and half of the server's work, for one list.
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED": "false",
    # Its server deletes by itself what it knows of older runs.
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": str(30 * 86400),
    # Who holds a deployment's only slot is known after a kill of the server: in its memory the slot was held for ever.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    "DO_NOT_TRACK": "1",
    "MLFLOW_TRACKING_URI": TRACKING,
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # One thread per process: workers provide the parallelism, and sums must not depend on the number of threads.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


def prepare() -> None:
    """Set the variables that are not set. Call this before importing Prefect or MLflow.

    The imports of torch, Prefect and MLflow create some 440,000 objects that live until the end. Searching them for
    garbage took a fifth of the import time, and at exit most of two seconds.
    """
    if os.name == "nt":
        sys.exit("fedcore: the pipeline needs Linux or macOS; on Windows run it in WSL")
    gc.set_threshold(50_000)
    atexit.register(gc.freeze)
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        STATE.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        sys.exit(f"fedcore: {STATE}: no folder for the cache ({error.strerror})")
    for path in (STATE / name for name in (*FILES, *FOLDERS)):
        if path.exists() and path.is_dir() != (path.name in FOLDERS):
            quarantine(path, "is a folder, not a file" if path.is_dir() else "is a file, not a folder")


def processor_name() -> str:
    """Return the model of the processor, or its kind where Linux does not say."""
    try:
        match = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        match = None
    return match[1] if match else platform.machine()


def require_writable() -> None:
    """Raise Failed if what a run writes cannot be written: it would say so at its end, and Prefect say nothing."""
    ours = os.environ["MLFLOW_TRACKING_URI"] == TRACKING
    for folder in (STATE, *(STATE / name for name in FOLDERS), ARTIFACTS, Path("runs"), *([HOME] if ours else [])):
        if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
            raise Failed(f"{folder}: cannot be written, so that nothing would be kept; make it writable")
    record = HOME / "mlflow.db"
    if ours and record.exists() and not os.access(record, os.W_OK):
        raise Failed(f"{record}: cannot be written, so that there would be no record; make it writable")
    try:
        tempfile.gettempdir()
    except OSError:
        raise Failed("no folder for temporary files can be written; set TMPDIR to one") from None
