"""Types of settings: the annotations of a builder are checked before anything runs."""

from typing import Annotated, TypeAlias

from annotated_types import Ge, Gt, Le, Lt

Count: TypeAlias = Annotated[int, Ge(1)]
Positive: TypeAlias = Annotated[float, Gt(0)]
Fraction: TypeAlias = Annotated[float, Gt(0), Le(1)]
Chance: TypeAlias = Annotated[float, Gt(0), Lt(1)]
Share: TypeAlias = Annotated[float, Ge(0), Le(1)]
Amount: TypeAlias = Annotated[float, Ge(0)]
Depth: TypeAlias = Annotated[int, Ge(0)]
