"""New rows and models are refused before anything slow is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from asked import ROOT

pytestmark = pytest.mark.slow

REFUSED = {
    "promote --versin 3": "No such option '--versin'",
    "promote digits mnist": "unexpected extra argument (mnist)",
    "promote digits": "model = 'digits': not registered",
    "promote digits --list": "model = 'digits': not registered",
    "promote --list": "--version, --list and --no-final-fit: need a model",
    "promote --no-final-fit": "--version, --list and --no-final-fit: need a model",
    "promote digits --list --version 1": "--list: not with --version",
    "promote digits --list --no-final-fit": "--list: not with --version or --no-final-fit",
    "predict": "Missing argument 'ROWS'",
    "predict new.csv --modle digits": "No such option '--modle'",
    "predict nowhere.csv": "nowhere.csv: no such file or folder",
    "predict new.csv --out none/labels.csv": "--out = none/labels.csv: no such folder",
    "predict new.csv --out .": "--out = .: is a folder",
    "predict new.csv": "--model: no model is registered; run fedcore run",
    "predict new.csv --model digits@champion": "model = 'digits': not registered",
}
REFUSING = """
import json, sys
from fedcore.cli.main import main
for words in json.load(sys.stdin):
    try:
        main(words.split())
    except SystemExit as leaving:
        print(leaving.code, *sorted({"torch", "mlflow", "pandas"} & {*sys.modules}))
"""


def test_wrong_words_are_refused_before_pytorch_and_mlflow_are_imported(tmp_path: Path):
    """Their imports take five seconds of a core."""
    (tmp_path / "new.csv").write_text("a,b\n1,2\n")
    (tmp_path / "params.yaml").write_text("run: {}\n")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "FEDCORE_HOME": str(tmp_path)}
    env.pop("MLFLOW_TRACKING_URI", None)
    call = [sys.executable, "-c", REFUSING]
    done = subprocess.run(call, input=json.dumps([*REFUSED]), capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.stdout.splitlines() == ["2"] * len(REFUSED), done.stderr
    for line, words in zip(done.stderr.splitlines(), REFUSED.values(), strict=True):
        assert line.startswith("fedcore: ")
        assert words in line
