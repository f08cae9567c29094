"""Runs with a cache, a record and a registry. Here and in each worker a user's files draw alike when imported."""

from fedcore.types.imports import draw_alike

draw_alike()
