"""The models that devices would run now, and their scores on the devices' own and on the shared test examples."""

from collections.abc import Callable, Mapping

from fedcore.pipeline import work
from fedcore.types.federation import Data, Device, Params, Scoring
from fedcore.types.method import Deploy, Message, Model, Scores


@work.deploy
def deploy(part: Deploy, memory: Params, message: Message) -> Model:
    """Make the model that a device runs, which is scored, registered and served."""
    return part(memory, message)


@work.evaluate
def evaluate(
    part: Callable[..., Scores], deploy: Deploy, memory: Params, message: Message, devices: Mapping[str, Device],
    test: Data, scoring: Scoring = Scoring(),
) -> Scores:  # fmt: skip
    """Score a deployed model on the devices that run it. The scores decide which model is proposed."""
    return part(deploy, memory, message, devices, test, scoring)
