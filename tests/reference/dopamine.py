"""Dopamine's replay buffer as DQN Replay was logged with it: a ring of slots, written out when only one is old."""

import gzip

import numpy as np

STACK = 4


class Ring:
    """Rows go round; `log` writes all slots as they are. Rows are numbered over the whole run."""

    def __init__(self, logs, capacity, frame, counts=True):
        self.logs, self.capacity, self.counts = logs, capacity, counts
        logs.mkdir(parents=True, exist_ok=True)
        self.store = {
            "observation": np.full((capacity, *frame), 77, np.uint8),  # memory that nobody has written to
            "action": np.full(capacity, 7777, np.int32),
            "reward": np.full(capacity, 0.5, np.float32),
            "terminal": np.ones(capacity, np.uint8),
        }
        self.add_count, self.files = 0, 0
        self.logged = []  # of each file, the run's rows when it was written and how many of its slots were new

    def add(self, observation, action, reward, terminal):
        if self.add_count == 0 or self.store["terminal"][(self.add_count - 1) % self.capacity]:
            for _ in range(STACK - 1):
                self.put(0, 0, 0, 0)
        self.put(observation, action, reward, terminal)
        if self.add_count % self.capacity == self.capacity - 1:
            self.log(self.add_count)

    def put(self, *row):
        for column, value in zip(self.store.values(), row, strict=True):
            column[self.add_count % self.capacity] = value
        self.add_count += 1

    def log(self, count):
        for name, column in self.store.items():
            save(self.logs / f"$store$_{name}_ckpt.{self.files}.gz", column)
        if self.counts:
            save(self.logs / f"add_count_ckpt.{self.files}.gz", np.array(count))
        self.files += 1
        self.logged.append((self.add_count, count % self.capacity))

    def log_final(self):
        self.log(self.add_count % self.capacity)


def save(file, array):
    with gzip.open(file, "wb", compresslevel=1) as out:
        np.save(out, array, allow_pickle=False)
