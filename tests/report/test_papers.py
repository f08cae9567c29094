"""The index of the papers' figures: what it shows, and that the committed one is that of the files."""

from pathlib import Path

from project_params import PARAMS, ROOT, refusal

from fedcore.config.papers import Condition, Figure, Paper, Statement, Value, read_papers
from fedcore.report.papers import index

CLAIMS = """study,says,rule,of,where,verdict,numbers
code_fig8,a,b,c,,holds,1
code_fig8,a,b,c,,not tested,1
code_fig8,a,b,c,,holds,1
code_fig8,(ours) a,b,c,,holds,1
code_fig8,(ours) a,b,c,,does not hold,1
code_fig9,a,b,c,,does not hold,1
code_fig9,a,b,c,,holds in most,1
"""

PAPER = Paper(
    conditions=[
        Condition(
            setting="pixels | bits",
            paper="not said",
            place="VII-A",
            ours=0.1307,
            reason="as\nusual",
            effect=".87 not .73",
        )
    ],
    figures=[
        Figure(name="Fig. 1", shows="a drawing", status="nothing to run"),
        Figure(
            name="Fig. 8",
            shows="accuracy",
            status="part",
            study="code_fig8",
            command="fedcore run study=code_fig8",
            reason="SGD: 40 min",
            values=[
                Value(what="LMF", paper=0.876, ours=0.861, spread=0.02, seeds=5, source="results/mine.csv"),
                Value(what="CODE", paper=0.9),
            ],
        ),
        Figure(name="Fig. 9", shows="epochs", status="not run", study="code_fig9", reason="3 h"),
    ],
    theory=[
        Statement(name="(1)", says="a sum", tests=["tests/a.py::test_a", "tests/b.py::test_b"]),
        Statement(name="(2)", says="a step", reason="a step of a proof"),
    ],
)


def project(folder: Path) -> Path:
    (folder / "docs" / "results").mkdir(parents=True)
    (folder / "docs" / "results" / "mine.csv").write_text("a\n1\n")
    (folder / "docs" / "results" / "some-claims.csv").write_text(CLAIMS)
    (folder / "docs" / "methods").mkdir()
    (folder / "docs" / "methods" / "code.md").write_text("# CODE\n")
    return folder


def test_every_figure_has_a_line_with_status_command_reason_and_verdicts(tmp_path: Path):
    text = index({"code": PAPER}, project(tmp_path))
    lines = text.splitlines()
    assert "| [code](#code) | 0 | 1 | 1 | 1 |" in lines
    assert "[The method and its studies](methods/code.md)" in lines
    assert "| Fig. 1 | a drawing | nothing to run |  |  |  |" in lines
    command = "`fedcore run study=code_fig8`"
    counts = "2 hold, 1 not tested; ours: 1 hold, 1 do not ([some-claims](results/some-claims.csv))"
    assert f"| Fig. 8 | accuracy | part | {command} | SGD: 40 min | {counts} |" in lines
    counts = "1 hold in most settings, 1 do not ([some-claims](results/some-claims.csv))"
    assert f"| Fig. 9 | epochs | not run | `code_fig9` | 3 h | {counts} |" in lines


def test_values_and_conditions_stand_beside_the_papers(tmp_path: Path):
    lines = index({"code": PAPER}, project(tmp_path)).splitlines()
    ours = "0.861, std 0.02 (5 seeds) | -0.015 | within 3 sd | [mine.csv](results/mine.csv)"
    assert f"| Fig. 8 | LMF | 0.876 | {ours} |" in lines
    assert "| Fig. 8 | CODE | 0.9 |  |  | not measured |  |" in lines
    assert "| pixels \\| bits | not said | VII-A | 0.1307 | as usual | .87 not .73 |" in lines
    assert "| (1) | a sum | `a.py::test_a`, `b.py::test_b` |  |" in lines
    assert "| (2) | a step |  | a step of a proof |" in lines


def test_a_source_may_be_named_from_the_projects_root(tmp_path: Path):
    whole = project(tmp_path)
    value = Value(what="LMF", paper=1.0, ours=1.0, source="docs/results/mine.csv")
    paper = Paper(figures=[Figure(name="F", shows="?", status="run", command="x", values=[value])])
    assert "[mine.csv](results/mine.csv)" in index({"code": paper}, whole)
    (whole / "docs/results/mine.csv").unlink()
    assert refusal(index, {"code": paper}, whole) == "papers: LMF: source 'docs/results/mine.csv' does not exist"


def test_without_papers_the_page_says_so(tmp_path: Path):
    assert index({}, tmp_path).endswith("No paper has an entry yet.\n")


def test_the_index_of_the_papers_is_made():
    """The site builds it, see docs/assets/papers_page.py."""
    text = index(read_papers(PARAMS["studies"], ROOT), ROOT)
    assert text.startswith("# Figures and tables of the papers")
    assert all(f"## {family}" in text for family in ("code", "dfl", "fedasa", "st_lf"))
