"""The core types, by idea: `federation`, `method`, and the `ranges` of settings; and `imports` of a user's files."""


def __getattr__(name: str) -> object:
    if name[:1].isupper():  # a module of the package is not
        raise ImportError(f"fedcore.types has no {name}; write `import fedcore as fc` and fc.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
