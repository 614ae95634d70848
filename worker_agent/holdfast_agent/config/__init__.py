"""Settings of the agent: variables and command line, parsed once into frozen values.

Nothing else in the agent reads the environment.
"""
