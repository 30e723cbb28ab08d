"""Off-policy estimates, lower bounds on the gain of a policy, the deploy decision and live monitoring."""
