"""What the flash checkpoint costs, beside torch.save and torch's DCP, as × of a plain copy."""
