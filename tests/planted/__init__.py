"""Faults of the kinds that were mended in this project, planted one at a time: which tests find them."""
