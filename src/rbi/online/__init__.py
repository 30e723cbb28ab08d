"""Iterative RL: the actor and the learner of RBI and of Ape-X. They know no engine."""

from rbi.online.rbi import Actor, ActorConfig, Learner, LearnerConfig

__all__ = ["Actor", "ActorConfig", "Learner", "LearnerConfig"]
