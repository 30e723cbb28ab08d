"""For engineers: train a policy in a simulator, evaluate, save and load it."""

import rbi

run = rbi.train("CartPole-v1", updates=1000)  # out="runs/cart" writes a run folder
print(rbi.evaluate(run.policy, "CartPole-v1", episodes=20))
run.policy.save("cart_policy")

policy = rbi.load_policy("cart_policy")
obs = [[0.0, 0.1, 0.02, -0.1]]
print(policy.predict_proba(obs), policy.predict_value(obs), policy.act(obs, 0))
