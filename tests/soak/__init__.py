"""Long runs and faults, in minutes to hours: `make soak`, or `python -m tests.soak` with options."""
