"""Run a command of fedcore, and kill it at one of its events: python -m kill_at NUMBER COUNT WORDS...

An event is what Python's audit hooks see in this process that changes files of the current folder, or opens a database.
NUMBER: of the event, from 1; 0 kills at none. COUNT: a file for the number of events of a command that was not killed.
"""

import os
import signal
import sys
from pathlib import Path

CHANGES = {"os.rename", "os.remove", "os.link", "os.symlink", "os.mkdir", "os.rmdir", "os.truncate", "sqlite3.connect"}
FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def main(number: int, count: Path, words: list[str]) -> None:
    home, seen = os.getcwd(), 0

    def look(event: str, args: tuple[object, ...]) -> None:
        nonlocal seen
        writes = event in CHANGES or (event == "open" and isinstance(args[2], int) and args[2] & FLAGS)
        if not writes or not os.path.abspath(os.fsdecode(str(args[0]))).startswith(home):
            return
        seen += 1
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)
    from fedcore.cli.main import main as fedcore

    try:
        fedcore(words)
    finally:
        total, number = seen, 0
        count.write_text(str(total))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
