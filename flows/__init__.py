"""Readable lists of tasks: prepare, federate, compare."""
