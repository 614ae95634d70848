"""The operator with 30,000 pods: memory, CPU, requests; beside it kubectl and plain kopf."""
