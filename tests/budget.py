"""Lines of each room and processor seconds of `make test`, beside their budget: exit code 1 where one is above.

python tests/budget.py             compare
python tests/budget.py --lines     compare, and let no seconds decide: a slow machine fails no test
python tests/budget.py --write     make today's numbers the budget
python tests/budget.py --run WORDS run a command, and note the seconds that it took if it succeeds

Lines are all of fedcore/ and tests/, by the folder below them. Seconds are what `time make test` says: user and system,
of every process that another one has waited for.
"""

import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from fedcore.pipeline.environment import processor_name

ROOT = Path(__file__).parents[1]
TREES = "fedcore", "tests"
ABOVE = 1.25
"""What seconds may be above those that were measured: the same tests took 876 and 1,094 on one machine in two hours."""
HEAD = """\
# What this code may grow to (tests/budget.py): lines of each room of fedcore/ and tests/, seconds of `make test`.
# A room grows by removing elsewhere in it, or by a commit that raises its line here and says why.
"""


def rooms(paths: list[str], root: Path) -> dict[str, Counter[str]]:
    """Return the lines of each room of each tree; `.` is what stands beside the rooms."""
    lines: dict[str, Counter[str]] = {tree: Counter() for tree in TREES}
    for path in paths:
        tree, *folders, _ = path.split("/")
        if (root / path).is_file():
            lines[tree][folders[0] if folders else "."] += (root / path).read_bytes().count(b"\n")
    return lines


def table(lines: dict[str, Counter[str]], budget: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return a line for each room, and the rooms that are above their budget."""
    names = sorted({*lines["fedcore"], *lines["tests"]})
    shown, above = [f"{'lines of room':16}" + "".join(f"{tree:>9}{'budget':>9}" for tree in TREES)], []
    for name in names:
        pairs = [(lines[tree][name], budget[tree].get(name, 0)) for tree in TREES]
        shown.append(f"{name:16}" + "".join(f"{n:9,}{most:9,}" if n or most else " " * 18 for n, most in pairs))
        above += [f"{tree}/{name}: {n:,} lines" for tree, (n, most) in zip(TREES, pairs, strict=True) if n > most]
    sums = [(sum(lines[tree].values()), sum(budget[tree].values())) for tree in TREES]
    return [*shown, f"{'sum':16}" + "".join(f"{n:9,}{most:9,}" for n, most in sums)], above


def time_of(seconds: float | None, budget: dict[str, Any], here: str) -> tuple[str, list[str]]:
    """Return a line about the seconds; those of a processor that is not the budget's are above none."""
    most, of = budget["seconds"], budget["processor"]
    measured = "not measured here" if seconds is None else f"{seconds:,.0f}"
    line = f"processor seconds of make test: {measured}; budget {most:,} ({of})"
    return line, [line] if seconds is not None and seconds > most and here == of else []


def processor() -> str:
    """Return what seconds are compared on: one name, such as AMD EPYC, is of processors with AVX-512 and without."""
    known = Path("/proc/cpuinfo")
    return processor_name() + ", AVX512" * (known.is_file() and "avx512f" in known.read_text())


def upper(number: float) -> int:
    return -(-int(number) // 10) * 10


def write(lines: dict[str, Counter[str]], seconds: float | None, budget: dict[str, Any], here: str) -> str:
    """Return the budget of today's numbers, lines rounded up to ten; without seconds those of before."""
    now = {tree: {name: upper(n) for name, n in sorted(lines[tree].items())} for tree in TREES}
    time = {"seconds": upper(ABOVE * seconds), "processor": here} if seconds is not None else {}
    return HEAD + yaml.safe_dump({**budget, **now, **time}, sort_keys=False)


def measure(words: list[str], noted: Path) -> int:
    """Run a command and note the seconds of a processor that it took."""
    code = subprocess.run(words).returncode
    if code == 0:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        noted.write_text(f"{used.ru_utime + used.ru_stime:.0f}\n")
    return code


def main(words: list[str]) -> int:
    file, noted = ROOT / "tests/budget.yaml", ROOT / ".venv/test-seconds"
    if words[:1] == ["--run"]:
        return measure(words[1:], noted)
    listed = subprocess.check_output(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *TREES], cwd=ROOT, text=True
    )
    lines, budget, here = rooms(sorted({*listed.split()}), ROOT), yaml.safe_load(file.read_text()), processor()
    seconds = float(noted.read_text()) if noted.exists() else None
    if words == ["--write"]:
        file.write_text(write(lines, seconds, budget, here))
        budget = yaml.safe_load(file.read_text())
    shown, above = table(lines, budget)
    line, late = time_of(seconds, budget, here)
    print("\n".join([*shown, line]))
    if above or late:
        print("above the budget, remove lines or raise tests/budget.yaml and say why:", *above, *late, sep="\n  ")
    return bool(above or (late and words != ["--lines"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
