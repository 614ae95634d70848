"""The journal on disk: segments, the writer's group commit, reading, compaction.

The core decides which facts are written; `job.state` has their meaning.
"""
