import pytest

from gpu_worker.exits import EXIT_CONFIGURATION, EXIT_ENGINE, EXIT_FENCED, describe_exit


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exit code 0"), (70, "exit code 70"), (-9, "SIGKILL"), (-15, "SIGTERM"), (-250, "signal 250")],
)
def test_an_exit_in_words(code, words):
    assert describe_exit(code) == words


def test_the_codes_are_those_of_sysexits():
    assert (EXIT_ENGINE, EXIT_FENCED, EXIT_CONFIGURATION) == (70, 75, 78)
