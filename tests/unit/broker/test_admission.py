import pytest

from broker.admission import Refusal


def refusal(**fields):
    values = {
        "fits": 2,
        "limit": "max_pending_tokens",
        "most": 100,
        "fill": 90,
        "wanted": 30,
        "scope_requests": 9,
        "scope_tokens": 90,
        "all_tokens": 90,
        "tokens_per_s": 4.0,
    }
    return Refusal(**{**values, **fields})


def test_the_wait_is_the_excess_at_the_present_speed():
    assert refusal().retry_after_s == 20 / 4


def test_requests_count_as_many_tokens_as_they_have_on_average():
    assert refusal(limit="max_pending_requests", most=10, fill=9, wanted=3).retry_after_s == 2 * 10 / 4


def test_a_user_has_a_share_of_the_speed():
    assert refusal(limit="max_user_pending_tokens", all_tokens=900).retry_after_s == 20 / 0.4


@pytest.mark.parametrize("fields", [{"tokens_per_s": 0.0}, {"wanted": 101}, {"scope_requests": 0}])
def test_who_would_wait_in_vain_is_not_told_a_time(fields):
    assert refusal(**fields).retry_after_s is None


@pytest.mark.parametrize("all_tokens", [0, 90])
def test_requests_that_take_no_tokens_do_not_divide_by_zero(all_tokens):
    found = refusal(limit="max_user_pending_requests", most=10, fill=9, wanted=3, scope_tokens=0, all_tokens=all_tokens)
    assert found.retry_after_s == 0


def test_the_error_says_what_and_for_how_long():
    error = refusal(limit="max_user_pending_tokens").error("ann")
    assert str(error) == (
        "90 tokens of user 'ann' wait and at most 100 may (max_user_pending_tokens): no room for 30 more; "
        "try again in 5.0 s"
    )
    assert (error.limit, error.most, error.fill, error.wanted, error.fits) == (
        "max_user_pending_tokens",
        100,
        90,
        30,
        2,
    )


def test_the_error_says_when_nobody_knows_for_how_long():
    assert str(refusal(tokens_per_s=0.0).error("")).endswith(
        "; nothing was settled lately, so nobody knows for how long"
    )
