"""The SDK: what a training script imports.

It reports steps to the agent through shared memory and hears from it when to save and stop. It
works, and does nothing, where no agent runs. No network call belongs here.
"""
