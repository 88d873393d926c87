"""Models of others, read: folders of Hugging Face, and checkpoints of Flax."""
