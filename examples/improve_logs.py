"""From logs to a better policy: a shop logged which of three offers it made and who bought."""

import numpy as np

import rbi

rng = np.random.default_rng(0)
customers = rng.normal(size=(4000, 5)).astype(np.float32)  # five features of each customer
offers = rng.choice(3, size=4000, p=[0.6, 0.3, 0.1])  # the old system's choices
bought = rng.random(4000) < 0.2 + 0.15 * np.tanh(customers[np.arange(4000), offers])

data = rbi.Dataset.from_arrays(customers, offers, bought, np.ones(4000))  # every episode ends after one step
result = rbi.improve(data, rule=rbi.Reroute(0.5, 1.5))
print(result.summary())
print(result.policy.predict_proba(customers[:3]))
