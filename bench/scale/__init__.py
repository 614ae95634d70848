"""The operator with 30,000 pods: its memory, its CPU, its requests, beside kubectl and plain kopf."""
