"""What the rows of a run's first seed say while it goes on: provisional, since one seed decides nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Leader:
    """A row and its mean over devices: on validation data, the greater the better, and on own test data, in words."""

    label: str
    validation: float
    test: str


@dataclass
class SoFar:
    """The best row that trains alone and the best one that combines, by validation data, as the answer chooses them."""

    alone: Leader | None = None
    combining: Leader | None = None

    def add(self, row: Leader, combines: bool) -> str | None:
        """Return a line about both if this row leads its kind now; None otherwise, and before there is one of each."""
        before = self.combining if combines else self.alone
        if before is not None and row.validation <= before.validation:
            return None
        if combines:
            self.combining = row
        else:
            self.alone = row
        if self.alone is None or self.combining is None:
            return None
        best, alone = self.combining, self.alone
        return f"  so far: {best.label} {best.test}, {alone.label} (alone) {alone.test}; one seed decides nothing"
