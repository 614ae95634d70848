"""Jobs in a Kubernetes cluster: finding them and reaching their masters.

Everything goes through the API server: the job by its name, a key pair for people from the job's
Secret, and the master by a port-forward of this process.
"""
