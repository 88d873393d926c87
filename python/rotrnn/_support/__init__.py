"""Internal helpers of the package: files, checkpoints, provenance, text."""
