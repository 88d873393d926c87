"""Recurrent layers, one file each; `rotrnn.nn.registry` lists them by the names that recipes use."""
