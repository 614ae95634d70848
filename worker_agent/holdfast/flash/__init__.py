"""Flash checkpoint: memory, storage, and what stands between them.

`Checkpointer` is what a training script uses. The modules that only move bytes (arena, commit,
keeper) import no torch, so that an agent can run them; no module here imports it before it is used.
"""
