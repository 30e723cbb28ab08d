"""Settings of the Ray clusters in these tests, before any of them imports Ray, which reads them then."""

import os
import uuid

# a cluster that binds to loopback, requires a token and notices dead nodes soon
os.environ |= {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": uuid.uuid4().hex,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_agent_register_timeout_ms": "120000",  # on a busy machine, agents start slowly
    "RAY_worker_niceness": "0",
    "RAY_actor_scheduling_queue_max_reorder_wait_seconds": "5",  # a restarted process waits for calls that were lost
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}
