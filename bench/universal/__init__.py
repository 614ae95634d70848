"""Saves, loads and reshaping of DeepSpeed's and Megatron's state, beside their own ways."""
