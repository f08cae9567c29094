"""What a script gets back: the models that are deployed, the result of a run, and a comparison."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedcore.api.federation import DividedDataset, federation_of
from fedcore.builders import unknown_value
from fedcore.config.methods import MethodConfig
from fedcore.core.evaluation import decided_by, outputs_of_new, predicted_classes
from fedcore.core.metrics import METRICS, Metric
from fedcore.core.rounds import RoundResult, State, deployments, digest_of_rows, functions
from fedcore.data.encoding import are_fractions, encode, unknown_texts
from fedcore.data.inputs import Input, apart, as_mapping, check_rows, in_order, require_unmasked, side_by_side
from fedcore.data.prepare import in_unit, prepare, standardise_channels, undo_channels
from fedcore.data.schema import Fit, Schema
from fedcore.data.task import CLASSIFICATION, LABEL_KINDS, MULTILABEL, LabelKind, require_classes
from fedcore.errors import InputError
from fedcore.execute.workers import one_thread
from fedcore.nets.builders_by_path import describe_net
from fedcore.nets.copies import template
from fedcore.nets.inputs import takes_integers
from fedcore.report import latex
from fedcore.report.latex import Spread
from fedcore.report.phrases import AnswerInWords
from fedcore.results import summary
from fedcore.results.criterion import Criterion
from fedcore.results.summary import SPLITS, format_bytes, last_round, standings
from fedcore.types.federation import Costs, Data, Federation, LabelScale, Net
from fedcore.types.method import Method, Model

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class DeployedModel:
    """The model deployed on a device.

    shape: an example's. scale: prepares new examples as the device prepared its own. encode: the same for the rows of a
    data frame, by the names of its columns; None for data that are not a table. task: what labels are. label_scale: the
    mean and the deviation by which a number as label was standardised. several: the inputs of an example. pixels:
    whether it learnt bytes, which are divided by 255. costs: of mistakes, by which it predicts a class.
    """

    model: Model
    net: Net
    shape: tuple[int, ...]
    scale: Callable[[Data], Data]
    encode: Callable[[pd.DataFrame], Tensor] | None = None
    task: LabelKind = CLASSIFICATION
    label_scale: LabelScale = (0.0, 1.0)
    several: tuple[Input, ...] = ()
    pixels: bool = False
    costs: Costs | None = None
    channels: Fit | None = None

    def __repr__(self) -> str:
        """Name the net, and count the parameters of all nets that the model runs, buffers included."""
        nets = self.model.params
        count = sum(tensor.numel() for params in nets for tensor in params.values())
        several = f"{len(nets)} nets like " if len(nets) > 1 else ""
        return f"DeployedModel: {several}{describe_net(self.model.net or self.net)}, {count:,} parameters"

    def probabilities(self, x: ArrayLike | pd.DataFrame) -> NDArray[np.float32]:
        """Return the probabilities of the classes, or of several labels, (N, K), of examples x (N, *shape) as loaded.

        Where each step has a label they are (N, T, K).

        x may be a data frame with the columns of the table that was learnt from, several inputs by name, or pictures as
        bytes, which are standardised if those of the data were. Raises
        InputError for examples of another shape or that are not numbers, for a frame that lacks a column or has a cell
        of another kind, and where labels are numbers.
        """
        if self.task.standardised:
            require_classes(self.task.name, "probabilities:")
        probabilities: NDArray[np.float32] = self.task.probabilities(self._answers(x)).numpy()
        return probabilities

    def _answers(self, x: ArrayLike | pd.DataFrame) -> Tensor:
        """Return what the model says of examples: log-probabilities, standardised numbers, or logits of labels."""
        inputs = self.encode(x) if self.encode is not None and isinstance(x, pd.DataFrame) else self._prepared(x)
        with one_thread():
            return decided_by(self.model, outputs_of_new(self.model, self.net, inputs, self.task), self.costs)

    def _prepared(self, x: Any) -> Tensor:
        """Return an array's examples as the device prepares them."""
        if hasattr(x, "columns"):
            raise InputError("predict: it learnt from an array; give one, x.to_numpy() with its columns")
        require_unmasked(x, "predict: x")
        if self.several and (as_mapping(x) or apart(x, self.several)):
            x = side_by_side(x, self.several)
        try:
            values = np.asarray(x.detach().to_dense().resolve_neg() if isinstance(x, Tensor) else x)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"predict: x must be an array of numbers, got a {type(x).__name__}: {error}") from None
        if values.shape[1:] != self.shape or values.dtype.kind not in "biuf":
            raise InputError(
                f"predict: x has the shape {values.shape} and type {values.dtype}, must be numbers of shape "
                f"{('N', *self.shape)}{in_order(self.several)}".replace("'", "")
            )
        check_rows(values, self.several)
        kind = values.dtype.newbyteorder("=") if values.dtype.kind != "f" else np.float64
        examples = torch.tensor(np.ascontiguousarray(values, kind))
        if not examples.isfinite().all():
            raise InputError("predict: x has values that are not finite numbers")
        if takes_integers(template(self.net)):
            return examples.float()
        if self.pixels or self.channels is not None:
            whole = values.dtype.kind in "iu"
            if whole or self.channels is None:
                right = whole and bool(((values >= 0) & (values <= 255)).all())
            else:
                near = undo_channels(examples.float(), self.channels).abs() < 2  # pixels are 0 to 1
                right = bool(near.all()) and not are_fractions(values)
            if not right:
                raise InputError(f"predict: x is {values.dtype}, but the model learnt bytes, 0 to 255; give uint8")
            examples = examples.to(torch.uint8) if whole else examples
            if self.channels is not None and whole:  # pictures as their files have them
                examples = standardise_channels(examples.float() / 255, self.channels)
        return self.scale(Data(examples if self.pixels else examples.double(), torch.zeros(0))).inputs().float()

    def predict(self, x: ArrayLike | pd.DataFrame) -> NDArray[Any]:
        """Return the numbers of the most probable classes, (N,), of examples x, as for `probabilities`.

        If costs decided, they are those of least expected cost. Where each step has a label, of each step, (N, T).
        Where labels are numbers themselves, it returns these, in the unit of those learnt from; of several labels,
        (N, K), which are more probable than not, 0 or 1.
        """
        answers = self._answers(x)
        if self.task == MULTILABEL:
            return (answers > 0).long().numpy()
        if self.task.predicts_classes:
            return predicted_classes(answers, self.costs).numpy()
        predicted: NDArray[Any] = in_unit(answers[:, 0], self.label_scale).numpy()
        return predicted


@dataclass(frozen=True)
class Result:
    """The result of a method with one seed.

    Attributes:
        config: the method with its settings.
        rounds: the outcome of each round.
        models: the model deployed on each device, by its name.
        table: a row for each number, with the columns study, dataset, setting, method, seed, stage, round, device,
            split, metric and value (units: fedcore docs columns). Traffic in it is one device's, in bytes.
        costs: of mistakes, by which models predict a class.
    """

    config: MethodConfig
    seed: int
    fed: DividedDataset | Federation
    method: Method
    rounds: tuple[RoundResult, ...]
    table: pd.DataFrame
    costs: Costs | None = None

    def __repr__(self) -> str:
        """Name the method, and give its accuracies, or errors in the label's unit, after the last round."""
        last = last_round(self.table)
        scores, metric = [], Criterion().of_table(self.table).metric
        for split, where in SPLITS.items():
            values = last["value"][(last["split"] == split) & (last["metric"] == metric.column)].dropna()
            if len(values):
                worst = values.max() if metric.less else values.min()
                scores.append(f"{where} {metric.named(values.mean())}, worst device {metric.value(worst)}")
        return "; ".join([f"Result of {self.config.label}, seed {self.seed}, rounds: {len(self.rounds)}", *scores])

    @property
    def state(self) -> State:
        """The state after the last round, from which `run(..., state=)` goes on."""
        rows = digest_of_rows(federation_of(self.fed, self.seed))
        return replace(self.rounds[-1].state, of=functions(self.method), seed=self.seed, rows=rows)

    @cached_property
    def models(self) -> dict[str, DeployedModel]:
        fed = federation_of(self.fed, self.seed)
        groups = deployments(self.method, fed, self.rounds[-1].state)
        with one_thread():
            models = {name: deploy(*inputs) for names, (deploy, *inputs) in groups for name in names}
        divided = self.fed if isinstance(self.fed, DividedDataset) else None
        schema = divided.schema(self.seed) if divided else None
        return {
            name: DeployedModel(
                models[name], device.net, tuple(device.data.train.x.shape[1:]),
                partial(prepare, fit=schema.devices[name]) if schema else _as_given,
                partial(_encode, schema=schema, device=name) if schema and schema.columns else None,
                LABEL_KINDS[fed.task], fed.scoring.label_scale, schema.several if schema else (),
                (divided.dataset if divided else device.data).train.x.dtype == torch.uint8, self.costs,
                divided.dataset.channels if divided else None,
            )
            for name, device in fed.devices.items()
        }  # fmt: skip


def _encode(rows: pd.DataFrame, schema: Schema, device: str) -> Tensor:
    sys.stderr.writelines(f"{line}\n" for line in unknown_texts(rows, schema))
    return encode(rows, schema, device)


def _as_given(data: Data) -> Data:
    return data


@dataclass(frozen=True)
class Comparison:
    """The results of several methods.

    Attributes:
        results: method by method for each seed.
        claims: a row for each claim, with the columns rule, verdict and numbers among others.
        table: the results' tables, one below the other.
        summary: a row for each method, the best first: method, control, rank, test_mean, test_worst, shared_mean, ...
            (accuracies after the last round, fractions), bytes_up and bytes_down (of all devices together), rounds,
            n_devices, n_seeds and others, see fedcore docs columns.
        answer: what to do, and why; print it. It counts the bytes of one device.
        left_out: methods that diverged, each with the reason; they have no results.
        criterion: what decides, and which devices count.
    """

    results: tuple[Result, ...]
    claims: pd.DataFrame
    table: pd.DataFrame
    summary: pd.DataFrame
    answer: AnswerInWords
    left_out: Mapping[str, str] = field(default_factory=dict)
    criterion: Criterion = Criterion()

    def __repr__(self) -> str:
        """Show the answer, and the summary's main columns: accuracies in %, and the bytes of all devices together."""
        metric = METRICS[self.summary["metric"].iloc[0]]
        scores = self.summary[[f"{split}_{part}" for split in SPLITS for part in ("mean", "worst")]]
        columns = pd.DataFrame({"method": self.summary["method"], "rank": standings(self.summary)})
        columns = columns.join(scores.dropna(axis=1, how="all").map(metric.value))
        columns["all send"], columns["all receive"] = (
            self.summary[f"bytes_{way}"].map(format_bytes) for way in ("up", "down")
        )
        omitted = "".join(f"\n{label} is left out: {reason}" for label, reason in self.left_out.items())
        return f"{self.answer}\n{columns.to_string(index=False)}{omitted}"

    def to_latex(self, by: Literal["method", "device"] = "method", spread: Spread = "interval") -> str:
        """Return a table for a paper, for LaTeX with booktabs, in the metric that decides; the best is bold.

        by: "method": a row per method, with means over devices and seeds; "device": a row per device, a column per
        method. spread: what follows a mean: half of its 95 % "interval", or the standard deviation, "std", over seeds.
        """
        for key, word, allowed in (("by", by, ("method", "device")), ("spread", spread, get_args(Spread))):
            if word not in allowed:
                raise unknown_value(f"to_latex.{key}", word, allowed)
        if by == "method":
            return latex.method_table(self.summary, spread)
        return latex.device_table(self.table, METRICS[self.summary["metric"].iloc[0]], [*self.summary["method"]])

    def curves(self, metric: str | None = None) -> Figure:
        """Return a figure of a metric after every evaluated round, a band of its 95 % interval over seeds.

        metric: its name in the table; None: the one that decides. `found.curves().savefig("curves.pdf")` writes it.
        """
        from fedcore.report.figures.results import curves  # matplotlib takes a while

        name = metric or METRICS[self.summary["metric"].iloc[0]].column
        by_column = {metric.column: metric for metric in METRICS.values()}
        course = summary.curves(self.table, self.criterion)
        if name not in set(course["metric"]):
            raise unknown_value("curves.metric", name, sorted(set(course["metric"])))
        return curves(course, by_column.get(name, Metric(name, words=name, per=1)))
