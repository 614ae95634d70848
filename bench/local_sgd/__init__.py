"""Local SGD beside DDP."""
