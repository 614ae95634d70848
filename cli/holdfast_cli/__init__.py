"""The command line: `holdfast …`, its live view and the local runner.

It talks to masters over their public gRPC service and starts processes by their commands.
Decisions do not belong here.
"""
