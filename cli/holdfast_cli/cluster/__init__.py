"""Jobs in a Kubernetes cluster, as the command line finds and reaches them.

Everything goes through the API server: the job by its name, the key pair for people from its
Secret, and the master by a port-forward of this process's own.
"""
