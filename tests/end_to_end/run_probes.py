"""Steps by themselves, in a folder with the project's sources; prints what was found as JSON. python -m run_probes"""

import json
import sys

from fedcore.pipeline import environment

environment.prepare()

from fedcore.execute.template import open_template
from fedcore.execute.workers import serve

open_template(serve)  # as a flow does

import probe_chunks
import probe_steps

from fedcore.pipeline.orchestration.session import prefect_server

if __name__ == "__main__":
    with prefect_server():
        found = {module.__name__: module.find() for module in (probe_steps, probe_chunks)}
    sys.stdout.write(json.dumps(found) + "\n")
