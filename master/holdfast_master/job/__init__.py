"""What the pure core knows of a job and does about it, one noun to a module.

Belongs here: the durable state and its fold, the working papers, the handlers of inputs and
deadlines. Does not belong here: policies (`decide`), clocks, I/O, logging, randomness.

The order of layers: `state roster world case ledger timers` know; `desk` holds them together;
`incidents charges losses reports hellos operators users` note what they are told; `steering` asks
the policies what to do next, through `rounds rescale stopping ending responses stores
replacements`.
"""
