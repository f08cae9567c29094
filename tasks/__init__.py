"""The pipeline's steps: each loads, makes one call into fedcore, and saves."""
