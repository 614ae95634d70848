"""Frameworks that keep a training state elsewhere than in torch's modules and optimizers.

Belongs here: one package or module a framework, with its `Shards`, and what else its users call.
"""
