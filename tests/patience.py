"""How long tests wait for what must come."""

PATIENCE = 600
"""Seconds after which a process or a thread is taken to hang: no check of speed, so enough for a machine with other
work. What a test waits for has come long before on any machine."""
