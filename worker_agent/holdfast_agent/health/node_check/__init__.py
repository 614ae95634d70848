"""Node check: measurements of one node, alone or with a partner, each with a deadline.

`runner` has a child process (`program`, kept in `process`) carry out tasks and report each figure
at once. A task that hangs or crashes takes the child with it, never the agent: the runner names the
resource that was being measured, and goes on in another child. `main` is the tool behind `holdfast
check`. Torch is imported by the child only, once. An agent calls `run` in a thread:

    alone = run(alone_tasks(storage="/checkpoints"))
    listener = link.listen(own_address)          # its port goes to the partner, by the master
    pair = run([serve_task(settings)], pass_fds=[listener.fileno()])
    pair = run([join_task(host, port, settings)])        # on the other node
"""
