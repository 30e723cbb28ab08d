"""PyTorch's allocator is told to keep memory, and before PyTorch is there to be told."""

import os
import subprocess
import sys

import pytest

from rbi.memory import TOLD

AT_FIRST_SIGHT = """
import os, sys

class Watch:
    def find_spec(self, name, *_):
        if name == "torch":
            print(os.environ.get("MIMALLOC_PURGE_DELAY"))

sys.meta_path.insert(0, Watch())
import rbi
"""


@pytest.mark.parametrize(("given", "kept"), [({}, "1000"), ({TOLD: "5"}, "5")])
def test_when_pytorch_comes_the_allocator_keeps_memory_for_a_second_unless_the_user_says_otherwise(given, kept):
    others = {name: value for name, value in os.environ.items() if name != TOLD}
    ran = subprocess.run(
        [sys.executable, "-c", AT_FIRST_SIGHT], env=others | given, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == [kept]
