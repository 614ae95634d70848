"""The master as a process: sources of its configuration, storage, logs, assembly, life.

No decision about the job belongs here, and no gRPC method.
"""
