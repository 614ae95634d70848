"""What happened to jobs, as Kubernetes events on them: `kubectl describe` and `kubectl events`.

`digest` decides what is written (pure), `report` writes it. The words are the master's own.
"""
