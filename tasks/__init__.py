"""What the flows do, by trade: Prefect tasks of a few lines each; STEPS are those that run the steps of a method."""

from tasks.steps import STEPS

__all__ = ["STEPS"]
