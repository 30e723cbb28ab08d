"""The same training on a Ray cluster: actors, learner and replay of the local engine, wired over many machines.

    workers  --- blocks of experience, frames once --->  shards  --- batches, prefetched --->  learner
       ^                                                    ^------- new priorities -----------'  |
       '------------------ weights with a version, through the object store <--------------------'

The driver, which is the `rbi train` that a person started, moves references and counts; experience itself never passes
through it. It asks workers for blocks and the learner for updates so that their ratio stays the set one: a slow learner
pauses the workers, and slow workers the learner. Ray schedules, transports and restarts; this package is the wiring.
"""
