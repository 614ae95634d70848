"""Costs of the flash checkpoint, beside torch.save and torch's DCP, as × of a plain copy."""
