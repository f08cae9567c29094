"""The precision of a net's products: float32, or fewer bits of the mantissa where the hardware is faster with them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Literal, TypeAlias

import torch

from fedcore.errors import InputError
from fedcore.execute.accelerator import using_tf32

Precision: TypeAlias = Literal["float32", "tf32", "bfloat16"]


def computing_in(precision: Precision, kind: str) -> Callable[[], AbstractContextManager[None]]:
    """Return what makes the context in which products have a precision.

    kind: of the device that computes, as PyTorch names it. Raises InputError where it has no such products.
    """
    if precision == "float32":
        return nullcontext
    if precision == "tf32":
        if kind != "cuda":
            raise InputError(f"training.precision = 'tf32': is for NVIDIA's accelerators, not for {_called(kind)}")
        return partial(using_tf32, True)
    if kind == "cpu" and not has_bfloat16():
        raise InputError(
            "training.precision = 'bfloat16': this processor has neither AVX-512 BF16 nor AMX; use float32"
        )
    return partial(torch.autocast, kind, torch.bfloat16)


def has_bfloat16() -> bool:
    """Tell whether this processor multiplies bfloat16 numbers faster than float32 ones."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _called(kind: str) -> str:
    return "a processor" if kind == "cpu" else kind
