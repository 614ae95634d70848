"""Holdfast inside a training script.

```python
import holdfast

job = holdfast.init()
for step in range(start, steps):
    loss = train_step()
    if job.step(step + 1, samples=batch, loss=loss) is holdfast.SAVE_AND_STOP:
        save(step + 1)
        break
```

Everything here works without an agent, where it does nothing. No torch is imported, and nothing
calls the network: a script and its agent share one page of memory (`holdfast.page`).
"""

from holdfast.job import CONTINUE, SAVE_AND_STOP, Action, Job, init
from holdfast.page import Section

__all__ = ["CONTINUE", "SAVE_AND_STOP", "Action", "Job", "Section", "init"]
