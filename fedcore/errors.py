"""The error for input that cannot be used. Commands refuse by it before anything slow is imported."""


class InputError(ValueError):
    """Input that cannot be used. The message is one line: which key, which value, what is allowed.

    It may quote names from data: what would end the line, or steer a terminal, is shown by its escape sequence.
    """

    def __str__(self) -> str:
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in super().__str__())
