"""A project of one's own."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import fedcore
from fedcore.builders import suggestion
from fedcore.cli.project import PATH, open_yaml
from fedcore.errors import InputError, plural, require_extra

if TYPE_CHECKING:
    import pandas as pd

    from fedcore.data.schema import DecimalMark

COPIED = (
    "flows", "tasks", "prefect.yaml", "prefect.toml", ".gitignore", ".dvcignore", ".dvc/config", ".dvc/.gitignore",
    ".dvc/plots",
)  # fmt: skip
"""Files and folders of a project that are those of fedcore's own repository."""
OPS = ("fedcore.service", "fedcore.timer", "Containerfile", "compose.yaml", "databases.sql")
"""Files for a schedule by systemd or in containers, in ops/ of a project that asks for them."""
DRAWN = ("devices", "alpha", "classes", "share", "domains", "unlabelled", "unlabelled_classes", "hidden")
"""Settings of devices that are drawn, for which data that name their devices have no use."""
FIRST = """\
# Study my_data sets federation.partition, net.name, run.every, run.lr_factors and the rounds of its methods itself
# (studies/my_data.yaml): change them there, or type them.
"""
"""The first lines of a new params.yaml: its settings come before a study's only where the study sets none."""
STUDY = "my_data"
SEEDS = ((5_000, 10), (50_000, 5), (float("inf"), 3))
"""The most rows of the data -> how many seeds a project begins with (docs/results/false_recommendations.md)."""
BATCHES = ((50_000, 16), (500_000, 64), (float("inf"), 256))
"""The most rows of the data -> the examples of a minibatch. On made tables of 10 sites, 100,000 rows take a fifth of
the time with 64 in place of 16 and reach the same accuracy; with 20,000 it is 2 points lower."""
ROWS = 80
"""Of fewer rows for each drawn device, shares by the default federation.alpha often leave one without min_size."""
MOST_SITES = 50
"""The most values of a column that may name devices."""
DROPS = "drop_unlabelled", "drop_without_device"
LARGE = 100 * 2**20
"""Bytes of a data file above which it is not copied."""

LOOK = "fedcore run 'seeds=[0,1,2]' 'methods=[local_only,analytic_local,fedavg,fedprox,analytic]'"
"""A run of a few methods and seeds."""


@click.command()
@click.argument("folder", type=PATH)
@click.option("--data", type=PATH, help="A CSV or Parquet file, a folder of one per device, or of pictures by class.")
@click.option("--label", "labels", multiple=True, help="The column to predict; of several labels once for each.")
@click.option("--device", help="The column that says which device, site or client a row is of.")
@click.option("--decimal", type=click.Choice(["comma", "point"]), help="What decimals have, where 1,234 may be either.")
@click.option("--nightly", is_flag=True, help="Also nightly.yaml (alerts, what is kept) and ops/: units, containers.")
def init(
    folder: Path, data: Path | None, labels: tuple[str, ...], device: str | None, decimal: DecimalMark | None,
    nightly: bool,
) -> None:  # fmt: skip
    """Make a project of your own in FOLDER. It has settings, a study of methods, flows, tasks, DVC and Prefect files.

    \b
    fedcore init my-sites --data machines.csv --label fault --device site
    cd my-sites
    fedcore preview
    """
    require_extra("pipeline")
    from fedcore.config.files import read_mapping, template

    source = template()
    frames, training = check(folder, data, labels, device, decimal or "auto")
    folder.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        copy(source / name, folder / name)
    (folder / "studies").mkdir()
    copy(source / "studies" / f"{STUDY}.yaml", folder / "studies" / f"{STUDY}.yaml")
    (folder / "data").mkdir()
    data_path = bring(data, folder) if data else None
    rows = sum(map(len, frames.values())) or len(pictures_in(data))
    names = [name for name in (*labels, device) if name is not None]
    empty = any(frame.drop(columns=names).isna().any(axis=None) for frame in frames.values())
    changes = suggest(training, labels[0], device) if len(labels) == 1 and training else []
    draws = device is None and data is not None and data.is_file()
    federation = read_mapping(source / "params.yaml", "sections")["federation"]
    most, min_size = federation["devices"], federation["min_size"]
    count = min(most, max(2, rows // ROWS))
    changes = [("federation.devices", count, f"{rows:,} rows are few for {most}")] * (draws and count < most) + changes
    changes += [("data.decimal", decimal, "--decimal says it")] * (decimal is not None)
    settings = project_settings(source / "params.yaml", data_path, labels, device, rows, empty, changes)
    (folder / "params.yaml").write_text(settings)
    (folder / "dvc.yaml").write_text(stages(source / "dvc.yaml"))
    requirements = (source / "ops" / "PROJECT.txt").read_text()
    (folder / "requirements.txt").write_text(requirements.format(version=fedcore.__version__))
    if nightly:
        write_ops(source / "ops", folder)
    from fedcore.config.settings import model_name_of
    from fedcore.config.studies import MOST_LEFT_OUT

    model = model_name_of(data_path.stem, labels) if data_path else "MODEL"
    readme = (source / "ops" / "PROJECT.md").read_text()
    words = {"name": folder.resolve().name, "promote": f"fedcore promote {model}", "look": LOOK}
    (folder / "README.md").write_text(readme.format(**words))
    kind = "a project and git repository" if start_git(folder, data_path) else "a project"
    print(f"{folder}: {kind}; next: cd {shlex.quote(str(folder))} && fedcore preview")
    if draws:
        print(drawn(training[0], labels, count))
    for key, value, why in changes:
        print(f"params.yaml: {key} = {value}, since {why}")
    ignored = [name for key, value, _ in changes if key == "data.ignore" for name in value]
    asked = [*problems(frames, [frame.drop(columns=ignored) for frame in training], labels, device, min_size, ignored)]
    if empty:
        how = "common_median (the usual choice), median or drop: fedcore docs missing"
        asked.append(f"some cells are empty: data.missing={how}")
    first = "Settle this first: fedcore preview --save KEY=VALUE. Settle what the preview asks, too. " if asked else ""
    print(*asked, f"{first}Then try five methods: {LOOK}", sep="\n")
    sites = {*chain(*(rows[device].dropna() for rows in training))} if device else ()
    if 1 < len(sites) <= MOST_LEFT_OUT:
        print(f"The best methods run again, each time without one of {len(sites)} devices: fedcore plan counts them.")
    print("If three seeds cannot say, add some: finished steps are used again, also after Ctrl-C.")
    print("Plain `fedcore run` tries all: minutes, or longer for large tables. Boosted trees and pooled rows alone:")
    print("fedcore run 'methods=[local_only,xgb_local,xgb_bagging,pooled]'")


def check(
    folder: Path, data: Path | None, labels: Sequence[str], device: str | None, decimal: DecimalMark = "auto"
) -> tuple[dict[Path, pd.DataFrame], list[pd.DataFrame]]:
    """Refuse what no project can be made of, before anything is written.

    Returns the rows of each file, and those of files that are not for tests.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: is not empty; give a new folder")
    named = [*(("--label", label) for label in labels), *([] if device is None else [("--device", device)])]
    if data is None:
        for option, value in named:
            raise InputError(f"{option} = {value!r}: names a column of --data, which is not given")
        return {}, []
    if not labels and pictures_in(data):
        return {}, []
    if labels and pictures_in(data):
        raise InputError(f"--label = {labels[0]!r}: {data} has pictures, whose classes are its folders; leave it out")
    if twice := [value for _, value in named if [*labels, device].count(value) > 1]:
        options = " and ".join(option for option, value in named if value == twice[0])
        raise InputError(f"{options} are both {twice[0]!r}: name different columns; --label is the one to predict")
    from fedcore.data.schema import MISSING_VALUES
    from fedcore.data.tables import read_sources  # takes pandas

    label = labels[0] if labels else None
    try:
        sources, files, _ = read_sources(data, MISSING_VALUES, label, device, None, (), (label,), "written", decimal)
    except InputError as refused:
        words = str(refused).replace("data.path", "--data", 1)
        words = words.replace("data.decimal=", "--decimal ").replace("data.decimal", "--decimal")
        raise InputError(words.replace("data.device", "--device")) from None
    frames = {file: raw.frame for file, raw in files.items()}
    for file, frame in frames.items():
        columns = ", ".join(map(str, frame))
        if not labels:
            raise InputError(f"--label: must name the column to predict; {file} has {columns}")
        for option, value in named:
            if value not in frame:
                hint = suggestion(value, frame) or ";"
                raise InputError(f"{option} = {value!r}: {file} has no such column{hint} it has {columns}")
    return frames, [frames[source.file] for source in sources if source.part != "test"]


def suggest(training: Sequence[pd.DataFrame], label: str, device: str | None) -> list[tuple[str, Any, str]]:
    """Return what training rows ask for: a setting, its value and why.

    Columns of numbers are scaled where their spans differ much, by each device's own numbers where devices lie apart;
    so they are where only devices lie apart, and the label is a class.
    Sites of unlike sizes ask how they count. Where one class has most of the rows, rare ones count more in training (a
    threshold would move their balance a second time); columns of few values, of which one has rows of a rare class
    alone, more than by chance, are left out: the label may tell them. Where equal columns often have unequal labels,
    each such row is held out by itself.
    """
    import numpy as np
    import pandas as pd

    from fedcore.data.encoding import column_texts
    from fedcore.data.overview import BY_CHANCE, FEW_VALUES, OFFSET, SPREAD, between, identifies, rounded, widths
    from fedcore.data.tables import has_many_values, inspect
    from fedcore.report.preview import CONTRADICTED
    from fedcore.results.criterion import LARGEST, UNEQUAL

    rows = pd.concat(training).reset_index(drop=True)
    inputs = rows.drop(columns=[name for name in (label, device) if name is not None])
    numbers = inputs.select_dtypes(["number", "bool"], "timedelta").astype(float)
    seen = {name: inspect({Path(): inputs}, str(name), False, FEW_VALUES) for name in inputs if name not in numbers}
    texts = [name for name, column in seen.items() if not isinstance(column, str) and column.kind != "number"]
    spans = widths(numbers.max() - numbers.min(), texts)
    changes: list[tuple[str, Any, str]] = []
    owner = rows[device].to_numpy() if device else np.repeat(np.arange(len(training)), [*map(len, training)])
    cells = column_texts(rows[[label]], label)
    values = pd.to_numeric(pd.Series(cells[cells != ""]).str.replace(",", "."), errors="coerce")
    amounts = has_many_values(cells) and values.notna().all()
    strata = np.zeros(len(rows)) if amounts else cells
    sites = len(numbers.columns) > 0 and (device is not None or len(training) > 2)  # two files may be train and val
    apart = bool(sites and between(numbers, owner, strata).median() > OFFSET)  # as the preview has it
    within = "devices differ within a class"
    if len(spans) > 1 and spans.max() > SPREAD * spans.min():
        why = f"{spans.idxmin()!r} spans {spans.min():.4g}, {spans.idxmax()!r} {spans.max():,.0f}"
        left = {scale: len(rounded(numbers, owner, scale)) for scale in ("common", "device")}
        rounds = left["device"] < left["common"]
        why += "; common would round numbers" if rounds else f"; {within}" * apart
        changes.append(("federation.scale", "device" if rounds or apart else "common", why))
    elif apart and not amounts:  # beside a number as label a device's level may be what tells it
        changes.append(("federation.scale", "device", within))
    sizes = rows[device].value_counts() if device else pd.Series([*map(len, training)] if len(training) > 2 else [])
    if len(sizes) and sizes.max() >= UNEQUAL * sizes.min():  # two files may be train and val
        why = f"devices have {sizes.min():,} to {sizes.max():,} rows; examples, if rows matter and not devices"
        changes.append(("run.weigh", "devices", why))
    y = pd.Series(column_texts(rows[[label]], label))[rows[label].notna().to_numpy()]
    shares = y.value_counts(normalize=True)
    # where all cells of a column differ, texts are names of rows, and numbers that look it
    several = [name for name in inputs if rows[name].nunique() < len(rows)]
    known = [*several, *(n for n in numbers if n not in several and not identifies(str(n), numbers[n].to_numpy()))]
    given = pd.util.hash_pandas_object(rows[[*known, *([device] if device else [])]], index=False)
    other = (y.groupby(given).transform("nunique") > 1).mean()
    if known and len(shares) <= FEW_VALUES and other > CONTRADICTED:
        changes.append(("federation.hold_out", "stable_each", f"{other:.0%} of rows have the columns of another label"))
    if not (1 < len(shares) <= FEW_VALUES and shares.iloc[0] > LARGEST):
        return changes
    rare, share = str(shares.index[-1]), shares.iloc[-1]
    why = f"{rare!r} has {share:.1%} of the rows"
    those = "methods with a loss of their own do not run with it, analytic ones ignore it"
    changes.append(("training.class_weights", "balanced", f"{why}; {those}"))
    why_metric = f"one class has over {LARGEST:.0%} of the rows; below that, auto would become accuracy"
    changes.append(("run.metric", "balanced_accuracy", why_metric))
    telling = []
    for name in inputs:
        if inputs[name].nunique() <= FEW_VALUES:
            classes = y.groupby(inputs[name]).agg(["nunique", "size", "first"])
            alone = classes[(classes["nunique"] == 1) & (classes["first"] != shares.index[0])]
            chance = alone["first"].map(shares).astype(float) ** alone["size"]
            telling += [str(name)] * bool((chance < BY_CHANCE).any())
    why = "a value has only rows of one rare class; keep what is known before it"
    return changes + [("data.ignore", telling, why)] * bool(telling)


def drawn(rows: pd.DataFrame, labels: Sequence[str], devices: int) -> str:
    """Return a line about devices that no column names, with the first column of texts that may name them."""
    texts = rows.drop(columns=[*labels]).select_dtypes(exclude=["number", "bool", "datetime"])
    name = next((name for name in texts if 2 <= texts[name].nunique() <= MOST_SITES), None)
    more = "" if name is None else f"; does {name!r} say whose rows they are? Then in a new folder, --device '{name}'"
    return f"no --device: {devices} devices are drawn at random{more}"


def pictures_in(data: Path | None) -> list[Path]:
    """Return the pictures in a folder."""
    from fedcore.data.pictures import pictures

    return pictures(data.rglob("*")) if data is not None and data.is_dir() else []


def problems(
    frames: Mapping[Path, pd.DataFrame], training: Sequence[pd.DataFrame], labels: Sequence[str], device: str | None,
    min_size: int = 0, ignored: Sequence[str] = (),
) -> Iterator[str]:  # fmt: skip
    """Yield a line for each thing of the data that a run refuses or a user hardly means, and what to do.

    min_size: the least rows of a device. ignored: columns that data.ignore has.
    """
    import numpy as np
    import pandas as pd

    from fedcore.data.encoding import FEW_TEXTS, column_texts, count_as_empty, few_words, numbers
    from fedcore.data.names import typed_setting
    from fedcore.data.overview import FEW_VALUES, identifies, telling
    from fedcore.data.readers import line_of
    from fedcore.data.tables import ONE_OR_ZERO, has_many_values, holds_times
    from fedcore.partition.partitions import check_sizes

    for option, named in (("--label", labels[0] if labels else None), ("--device", device)):
        if named is None or not training:
            continue
        column = pd.concat([of[named] for of in training])
        least = len(column) / 2 if named == device else len(column) - 1
        values = numbers(column.astype("str").str.replace(",", "."))
        amounts = named != device and np.isfinite(values).all() and not identifies(named, values)
        if len(column) > FEW_VALUES and column.nunique() > least and not amounts:
            each = "each row" if column.nunique() == len(column) else "most rows"
            yield f"{option} = {named!r}: another value in {each}, as an identifier has; name another column?"
    for name in (*labels, *([] if device is None else [device])):
        if gaps := sum(int(frame[name].isna().sum()) for frame in frames.values()):
            where, drops = f"{name!r} is empty in {plural(gaps, 'row')}", DROPS[name == device]
            yield f"{where}: fill it in, or data.{drops}=true"
    for name in labels if len(labels) > 1 else ():
        given = pd.concat([frame[[name]] for frame in frames.values()]).dropna()
        if other := [text for text in column_texts(given, name).tolist() if text not in ONE_OR_ZERO]:
            yield f"--label = {name!r}: of several labels each must be 1 or 0, not {other[0]!r}; change the file"
    times = dict.fromkeys(str(name) for frame in frames.values() for name in frame if holds_times(frame[name]))
    if times.keys() - {*ignored}:
        ignore = typed_setting("data.ignore", dict.fromkeys([*ignored, *times]))
        yield f"dates and times cannot be used: {ignore}"
    if device is not None and training:
        rows_of = Counter(column_texts(pd.concat(training).dropna(subset=[device]), device))
        try:
            check_sizes({str(who): count for who, count in rows_of.items()}, min_size, in_table=True)
        except InputError as error:
            yield str(error)
    if len(labels) == 1 and training:
        rows = pd.concat(training).dropna(subset=[*labels])
        inputs = rows[rows.columns.difference([*labels, device, *times], sort=False)]
        y = numbers(rows[labels[0]].astype("str").str.replace(",", "."))  # a label is read as text
        number = np.isfinite(y).all() and has_many_values(y)
        yield from telling(inputs.items(), y if number else pd.factorize(rows[labels[0]])[0], [*ignored, *times])
    for file, frame in frames.items():
        for name in frame.columns.difference([*labels, device, *times]):
            cells = frame[name].dropna()
            texts = cells[~np.isfinite(numbers(cells))]
            if 0 < len(texts) < FEW_TEXTS * len(cells):
                row, first = texts.index[0], repr(texts.iloc[0])
                where = f"{file.name}{line_of(file, row)}, row {row}, column {name!r}: {first} among numbers"
                empty = count_as_empty(few_words(texts, frame) or [str(texts.iloc[0])])
                yield f"{where} ({plural(len(texts), 'such cell')}); correct the file, or {empty}"


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copyfile(source, target)


def bring(data: Path, folder: Path) -> Path:
    """Copy the data into the project, and return their place from there; large ones stay where they are."""
    files = [data] if data.is_file() else [file for file in data.rglob("*") if file.is_file()]
    if sum(file.stat().st_size for file in files) > LARGE:
        return data.resolve()
    copied = Path("data") / data.name
    copy(data, folder / copied)
    return copied


def project_settings(
    source: Path, data: Path | None, labels: Sequence[str], device: str | None, rows: int, empty: bool = False,
    changes: Sequence[tuple[str, Any, str]] = (),
) -> str:  # fmt: skip
    """Return params.yaml of a project: fedcore's own, on the project's data.

    empty: whether cells are empty, so that a run needs `missing`. changes: settings, their values and why.
    """
    from ruamel.yaml.comments import CommentedSeq

    params, text = open_yaml(source)
    params["run"]["studies"] = [STUDY]
    if data is not None:
        params["run"]["seeds"] = [*range(next(seeds for most, seeds in SEEDS if rows <= most))]
        params["training"]["batch"] = next(batch for most, batch in BATCHES if rows <= most)
        several = CommentedSeq(labels)
        several.fa.set_flow_style()
        label = {"label": labels[0] if len(labels) == 1 else several} if labels else {}
        params["data"].update({"name": "table" if labels else "image_folder", "path": str(data), **label})
        if empty:
            params["data"]["missing"] = "refuse"
            params["data"].yaml_add_eol_comment("cells are empty: choose common_median, median or drop", "missing")
        params["federation"]["hold_out"] = "stable"  # data grow, and a champion is challenged on what stays held out
        if device is not None:
            params["data"].insert([*params["data"]].index("label"), "device", device)
            params["federation"]["partition"] = "auto"
            for name in DRAWN:
                del params["federation"][name]
    for key, value, why in changes:
        section, name = key.split(".")
        params[section][name] = value
        params[section].yaml_add_eol_comment(why, name)
    params["net"] = {"name": "auto"}
    return FIRST + text()


def write_ops(source: Path, folder: Path) -> None:
    """Write the settings of a schedule, units and containers for this folder and this fedcore, and their secrets."""
    copy(source / "nightly.yaml", folder / "nightly.yaml")
    (folder / "ops").mkdir()
    command = shutil.which("fedcore") or str(Path(sys.executable).with_name("fedcore"))
    for name in OPS:
        text = (source / name).read_text()
        if name.endswith((".service", ".timer")):
            text = text.replace("FOLDER", str(folder.resolve())).replace("FEDCORE", command)
        (folder / "ops" / name).write_text(text)
    (folder / ".dockerignore").write_text("*\n!requirements.txt\n!wheels\n")
    (folder / ".fedcore").mkdir(mode=0o700)
    secret = folder / ".fedcore" / "nightly.env"
    secret.touch(mode=0o600)
    settings = {
        "FEDCORE_USER": f"{os.getuid()}:{os.getgid()}",
        "FEDCORE_PASSWORD": secrets.token_urlsafe(24),
        "FEDCORE_DATABASE_PASSWORD": secrets.token_hex(24),  # a part of addresses
    }
    secret.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


def stages(source: Path) -> str:
    """Return dvc.yaml of a project: fedcore's own, whose stages depend on its version in place of its source."""
    from ruamel.yaml import YAML

    writer = YAML()
    writer.indent(sequence=4, offset=2)
    config = writer.load(source.read_text())
    for stage in config["stages"].values():
        own = {path: path.split("/")[0] in ("fedcore", "claims", "papers") for path in stage["deps"]}
        stage["deps"] = [*dict.fromkeys("requirements.txt" if is_own else path for path, is_own in own.items())]
    text = StringIO()
    writer.dump(config, text)
    return text.getvalue()


def start_git(folder: Path, data: Path | None) -> bool:
    """Make the project a git repository with a first commit, unless it is in one or there is no git.

    Returns whether it is one. Without a name and address in git's settings the files stay to be committed. Data in the
    project are tracked by DVC, and not in git.
    """
    if shutil.which("git") is None:
        return False

    def git(*arguments: str) -> bool:
        return subprocess.run(["git", *arguments], cwd=folder, capture_output=True).returncode == 0

    inside = git("rev-parse")
    if not inside and not git("init", "--quiet"):
        return False
    if data is not None and not data.is_absolute():
        from fedcore.pipeline.record.tracked import track

        track(folder, folder / data)
    return inside or (git("add", "--all") and (git("commit", "--message", "Begin a project") or True))
