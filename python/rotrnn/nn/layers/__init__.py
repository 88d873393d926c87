"""Recurrent layers, one file each. `rotrnn.nn.registry` lists them by the names used in recipes."""
