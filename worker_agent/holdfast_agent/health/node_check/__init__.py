"""Node check: measurements of one node, alone or with a partner, each with a deadline.

`runner` has a child process (`program`) carry out tasks and report each figure at once. `process`
is the child's life: an agent keeps one for all rounds of a check.
A task that hangs or crashes takes the child with it, never the agent. The runner then names the
resource that was being measured, and goes on with the next task in another child. `main` is the
tool behind `holdfast check`.

An agent uses it like this, in a thread, because `run` blocks until the deadlines:

    alone = run(alone_tasks(storage="/checkpoints"))
    listener = link.listen(own_address)          # its port goes to the partner, by the master
    pair = run([serve_task(listener, tls)], pass_fds=[listener.fileno()])
    pair = run([join_task(address, tls)])        # on the other node

Torch is imported by the child only, once. No verdict belongs here.
"""
