"""fedcore: compare ways to combine models trained on many devices with unequal, private data."""
