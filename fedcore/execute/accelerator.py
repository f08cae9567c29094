"""What computes: the cores of this machine, one thread per process, and an accelerator (CUDA), if there is one.

Steps are written for the CPU. Their tensors move to the accelerator and their results back to the CPU, where all
messages, memories and files are; tensors that a step creates are on the accelerator. Random numbers (orders, noise,
initial weights, dropout) are drawn on the CPU, as without an accelerator. The server's steps run on the CPU.

The same seed gives the same bits on the same kind of accelerator, but not those of a CPU.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional, init
from torch.overrides import TorchFunctionMode

from fedcore.types.method import Stage, StepId

T = TypeVar("T")

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS does not give the same bits twice

MAKING = {torch.rand, torch.randn, torch.randint, torch.randperm}
DROPPING = {torch.dropout, functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d}
DRAWING = MAKING | DROPPING | {
    torch.bernoulli, torch.multinomial, torch.normal, torch.rand_like, torch.randn_like, torch.randint_like,
    functional.alpha_dropout, functional.feature_alpha_dropout, Tensor.bernoulli, Tensor.multinomial,
}  # fmt: skip
FILLING = {
    Tensor.bernoulli_, Tensor.exponential_, Tensor.normal_, Tensor.random_, Tensor.uniform_,
    init.uniform_, init.normal_, init.kaiming_uniform_,
}  # fmt: skip
"""Functions that draw random numbers: MAKING a new tensor, DRAWING from arguments, FILLING an existing tensor.
DROPPING: the product of the input and of what the function returns for ones."""


def cores() -> int:
    """Return the number of cores that this process may use; where the system does not tell, of all cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute as a worker does: in one thread, with denormal numbers flushed to zero.

    More threads would hardly speed up a server's sums, and are much slower when other processes use the cores.
    """
    threads, flushed = torch.get_num_threads(), flushes_denormals()
    compute_alone()
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed)
        torch.set_num_threads(threads)


def compute_alone() -> None:
    """Let this thread compute as `one_thread` says from now on."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def flushes_denormals() -> bool:
    """Tell whether this thread takes denormal numbers as zero."""
    return not (torch.full((), 1e-39) * 1.0).item()


def find_accelerator(wanted: str) -> str | None:
    """Return the kind of accelerator for steps, or None. wanted: "auto" (use one if available) or "none"."""
    return "cuda" if wanted == "auto" and torch.cuda.is_available() else None


def accelerate(step: Callable[..., T], kind: str | None) -> Callable[..., T]:
    """Return a function that runs the step on that kind of accelerator; the step itself if `kind` is None.

    What does not train (:func:`fedcore.types.method.step_word`) stays where it is.
    """
    return partial(run_on, step, kind) if kind and trains(step) else step


def trains(step: Any) -> bool:
    """Tell whether a step may train: in a stage without `combine` the stage is bound to it."""
    while isinstance(step, partial):
        step = next((part.local for part in step.args if isinstance(part, Stage)), step.func)
    return getattr(step, "trains", True)


def run_on(step: Callable[..., T], kind: str, *args: Any) -> T:
    """Run a step with its tensors on the accelerator and return its result on the CPU."""
    seeds = [at.generator("accelerator").initial_seed() for at in args if isinstance(at, StepId)]
    torch.cuda.manual_seed(seeds[0] if seeds else 0)  # for draws not listed above
    with deterministic(), torch.device(kind), DrawOnCpu(kind):
        return move(step(*move(args, kind)), "cpu")


@contextmanager
def deterministic() -> Iterator[None]:
    """Use algorithms that give the same bits again, with all bits of float32; warn where there is none."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with using_tf32(False):
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@contextmanager
def using_tf32(allowed: bool) -> Iterator[None]:
    """Let an NVIDIA accelerator round the factors of float32 products to tf32, or not: PyTorch does in convolutions."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def move(value: T, where: str) -> T:
    """Return a value with all its tensors on a device; tensors already there are not copied."""
    moved: Any = value.to(where) if isinstance(value, Tensor) else rebuild(value, lambda part: move(part, where))
    return moved  # type: ignore[no-any-return]


def rebuild(value: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to the parts of a container; returns the same object if a dataclass has no part that changes."""
    if isinstance(value, dict):
        return {key: change(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(change(part) for part in value)
    moved = {}
    for name in part_names(type(value)):  # type: ignore[arg-type]
        part = getattr(value, name)
        if (other := change(part)) is not part:
            moved[name] = other
    return replace(value, **moved) if moved else value


@cache
def part_names(kind: type) -> tuple[str, ...]:
    """Return the fields of a dataclass that may hold tensors or references; none of other types and of handles."""
    names = tuple(of.name for of in fields(kind)) if is_dataclass(kind) else ()
    return () if "digest" in names else names


class DrawOnCpu(TorchFunctionMode):
    """Draws random numbers on the CPU and moves them to the accelerator. draw: calls a function that draws."""

    def __init__(self, kind: str, draw: Callable[..., Any] = lambda func, args, kwargs: func(*args, **kwargs)) -> None:
        super().__init__()
        self.kind = kind
        self.draw = draw

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in FILLING:
            into, rest = (args[0], args[1:]) if args else (kwargs.pop("tensor"), ())
            with torch.no_grad():
                return into.copy_(self.draw(func, (torch.empty_like(into, device="cpu"), *rest), kwargs))
        if func not in DRAWING or kwargs.get("training") is False:  # dropout in evaluation draws nothing
            return func(*args, **kwargs)
        if func in DROPPING and args:
            ones = torch.ones_like(args[0], device="cpu")
            return args[0] * move(self.draw(func, (ones, *args[1:]), kwargs), self.kind)
        on_cpu = move(kwargs, "cpu") | ({"device": "cpu"} if func in MAKING else {})
        return move(self.draw(func, move(args, "cpu"), on_cpu), self.kind)
