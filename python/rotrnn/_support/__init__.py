"""What the rest of the package stands on and users need not know: files, checkpoints, provenance, text."""
