"""One thread and no denormal numbers while something computes as a worker does."""

import pytest
import torch

from fedcore.execute.accelerator import flushes_denormals, one_thread


@pytest.mark.parametrize("before", [True, False])
def test_what_was_set_comes_back(before: bool):
    threads = torch.get_num_threads()
    torch.set_flush_denormal(before)
    try:
        with one_thread():
            assert flushes_denormals()
            assert torch.get_num_threads() == 1
        assert flushes_denormals() == before
        assert torch.get_num_threads() == threads
    finally:
        torch.set_flush_denormal(False)
