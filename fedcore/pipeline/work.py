"""Tasks of a project: functions around the parts of every method, which do the work that they are named after.

A task takes the part that it stands around, and then what that part takes. One that only calls its part is left out, so
that a project that edits no task has the keys of its methods. The source of an edited one is part of its steps' keys.
Workers load this module: it imports no orchestrator.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any, TypeVar

from fedcore.builders import name_of, takes
from fedcore.core.rounds import receive
from fedcore.core.threats import admit
from fedcore.core.together import run_on_together
from fedcore.errors import InputError
from fedcore.execute.accelerator import run_on
from fedcore.types.federation import Device, Params
from fedcore.types.method import Combine, Deploy, Message, Method, Model, RoundInfo, Sent, Update

Function = TypeVar("Function", bound=Callable[..., Any])

PLACES = {
    "local": "part, memory, message, device, step_id", "attach": "part, update, device, step_id",
    "combine": "part, server, updates, round_info", "deploy": "part, memory, message",
    "evaluate": "part, deploy, memory, message, devices, test, scoring", "partition": "part, dataset",
}  # fmt: skip
"""Where a task may stand -> what it takes."""
PARTS = ("local", "attach", "combine")
"""The places in a stage."""

TASKS: dict[tuple[str, str], Callable[..., Any]] = {}
"""(place, word of a step, or "" for all) -> the project's task."""


def local(*words: str) -> Callable[[Function], Function]:
    """Make a function the task of devices' steps with these words (fedcore.types.method.step_word)."""
    return partial(_register, "local", words)


def attach(*words: str) -> Callable[[Function], Function]:
    """Make a function the task of what is attached to updates, of steps with these words."""
    return partial(_register, "attach", words)


def combine(*words: str) -> Callable[[Function], Function]:
    """Make a function the task of the server's steps with these words."""
    return partial(_register, "combine", words)


def deploy(body: Function) -> Function:
    """Make a function the task that makes the model that a device runs."""
    return _register("deploy", ("",), body)


def evaluate(body: Function) -> Function:
    """Make a function the task that scores deployed models."""
    return _register("evaluate", ("",), body)


def partition(body: Function) -> Function:
    """Make a function the task that divides a dataset among devices."""
    return _register("partition", ("",), body)


def _register(place: str, words: tuple[str, ...], body: Function) -> Function:
    wanted = PLACES[place]
    try:
        inspect.signature(body).bind(*wanted.split(", "))
    except TypeError:
        raise InputError(f"{name_of(body)}: a task around {place} must take ({wanted})") from None
    for word in words:
        other = TASKS.setdefault((place, word), body)
        if name_of(other) != name_of(body):
            raise InputError(f"{name_of(body)}: {name_of(other)} is the task of {place} {word!r} already")
        TASKS[place, word] = body
    body.place = place  # type: ignore[attr-defined]
    return body


@cache
def is_edited(body: Callable[..., Any]) -> bool:
    """Tell whether a task does more than call the part that it stands around."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(body))).body[0]
    except OSError:
        return True
    assert isinstance(tree, ast.FunctionDef)
    first, *others = (argument.arg for argument in tree.args.args)
    lines = tree.body[ast.get_docstring(tree, clean=False) is not None :]
    calls_its_part = [ast.unparse(line) for line in lines] == [f"return {first}({', '.join(others)})"]
    return not calls_its_part or len(tree.decorator_list) > 1


def edited(method: Method | None = None) -> dict[str, Callable[..., Any]]:
    """Return the project's edited tasks by their names, such as "tasks.fuse:fuse".

    method: only those that take part in its runs.
    """
    bodies = [body for (place, _), body in TASKS.items() if method is None or place in ("evaluate", "partition")]
    if method is not None:
        parts = [(place, getattr(stage, place, None)) for stage in method.stages for place in PARTS]
        found = [find_task(place, part) for place, part in [*parts, ("deploy", method.deploy)] if part is not None]
        bodies += filter(None, found)
    return {name_of(body): body for body in sorted(bodies, key=name_of) if is_edited(body)}


def find_task(place: str, part: Any) -> Callable[..., Any] | None:
    """Return the task of a part's place and word, if there is one."""
    return TASKS.get((place, word_of(part))) or TASKS.get((place, ""))


def around(place: str, part: Any) -> Any:
    """Return a part of a method with the edited task of its place and word around it, or the part itself."""
    body = find_task(place, part)
    if body is None or not is_edited(body):
        return part
    if takes(part, "sent"):
        return partial(with_sent, part, body)
    return partial(with_device, part, body) if takes(part, "device") else partial(body, part)


def with_sent(
    part: Any, body: Callable[..., Sent], server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *,
    sent: Mapping[str, Message],
) -> Sent:  # fmt: skip
    """Run a task around a `combine` that takes what was sent."""
    bound: Combine = partial(part, sent=sent)
    return body(bound, server, updates, round_info)


def with_device(part: Any, body: Callable[..., Model], memory: Params, message: Message, *, device: Device) -> Model:
    """Run a task around a `deploy` that takes the device."""
    bound: Deploy = partial(part, device=device)
    return body(bound, memory, message)


with_sent.place, with_device.place = "combine", "deploy"  # type: ignore[attr-defined]


def with_tasks(method: Method) -> Method:
    """Return a method whose parts run in the project's edited tasks; the method itself if there are none."""
    if not edited():
        return method
    stages = tuple(
        replace(stage, **{place: around(place, getattr(stage, place)) for place in PARTS
                          if getattr(stage, place, None) is not None})
        for stage in method.stages
    )  # fmt: skip
    return replace(method, stages=stages, deploy=around("deploy", method.deploy))


def build(row: Any, *context: Any) -> Method:
    """Build a row's method, in the project's tasks. context: as for `MethodConfig.build`."""
    return with_tasks(row.build(*context))


def word_of(fn: Any, *args: Any) -> str:
    """Return the word for a step (fedcore.types.method.step_word), whatever its bound arguments and wherever it runs.

    A step of the server has the word of the method's `combine`, one in a task that of its part.
    """
    while True:
        if isinstance(fn, partial):
            fn, args = fn.func, (*fn.args, *args)
        elif fn in (run_on, run_on_together, receive, admit) or hasattr(fn, "place"):
            fn, args = args[0], args[1:]
        else:
            return str(getattr(fn, "word", "") or fn.__name__.partition("_")[0])
