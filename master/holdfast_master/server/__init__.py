"""The master's gRPC server: services, authorization, streams, queues to slow peers.

Nothing is decided here: each call becomes an input of the loop.
"""
