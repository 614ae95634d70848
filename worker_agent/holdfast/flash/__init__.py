"""Flash checkpoint: memory, storage, and what stands between them.

`Checkpointer` is the class for training scripts. The modules that only move bytes (`memory`,
`storage`, `server`) import no torch, so that an agent can run them. No module here imports torch
before torch is used.
"""
