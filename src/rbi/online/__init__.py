"""Iterative RL: the actor and the learner of RBI and of Ape-X. They know no engine."""

from rbi.online.actor import Actor, ActorConfig
from rbi.online.learner import Learner, LearnerConfig

__all__ = ["Actor", "ActorConfig", "Learner", "LearnerConfig"]
