"""Places of a model's weights: DDP, FSDP2 and FSDP1. Megatron-core has a folder of its own."""
