"""A fixture for test suites of implementations: `pytest` finds it where the package is installed, else -p kvreplay.pytest_fixture.

    def test_my_press(kvreplay_conform):
        kvreplay_conform("DUMP", "snapkv", kept, keep=0.2)       # fails with the verdict, the first token and the likely reading
"""
import pytest

from ._conform import Conformance, conform


@pytest.fixture
def kvreplay_conform():
    def judge(*args, **kwargs) -> Conformance:
        __tracebackhide__ = True
        found = conform(*args, **kwargs)
        if not found:
            pytest.fail(str(found), pytrace=False)
        return found

    return judge
