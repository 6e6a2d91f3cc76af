"""Every plot of docs/scheduling.md is drawn from a simulation; what is drawn, checked on small ones."""

from xml.etree import ElementTree

import pytest

from tests.simulate.plots import Sizes, draw
from tests.simulate.scenarios import Scenario, world
from tests.simulate.timeline import Timeline
from tests.simulate.workload import SimulatedJob
from tests.unit.test_docs import ROOT

SMALL = Sizes(gpus=2, requests=300, heterogeneous=300, mixed=200, small_jobs=6, shares=600)


def test_each_plot_that_the_page_shows_is_drawn_by_one_command(tmp_path):
    written = draw(tmp_path, SMALL)
    page = (ROOT / "docs/scheduling.md").read_text("utf-8")
    assert [path.name for path in written if f"]({path.name})" not in page] == []
    for path in written:
        assert ElementTree.fromstring(path.read_text("utf-8")).tag.endswith("svg")


@pytest.fixture(scope="module")
def timeline():
    """A job, and one of three times its weight that comes later; four GPUs."""
    jobs = (SimulatedJob(count=2000), SimulatedJob(count=1500, at_s=10.0, weight=3.0))
    return world(Scenario(speeds=(1.0,) * 4, jobs=jobs), "stoker", measures=Timeline).run()


def test_gpus_are_busy_until_the_end_and_never_more_than_that(timeline):
    used = [part for _, part in timeline.utilisation()]
    assert 0.9 < max(used) <= 1.0001
    assert sum(used[5:30]) / 25 > 0.9
    assert used[-1] < 0.5


def test_a_share_is_known_while_a_job_waits(timeline):
    first, second = ([part for _, part in timeline.shares(job, 5.0)] for job in (0, 1))
    assert (first[5], second[5]) == (1.0, None)
    assert first[-1] is None or second[-1] is None
    assert all(abs(one + other - 1) < 1e-6 for one, other in zip(first, second, strict=True) if one and other)
    late = [part for part in second[30:50] if part is not None]
    assert sum(late) / len(late) == pytest.approx(0.75, abs=0.08)


def test_fairness_is_told_while_all_wait(timeline):
    found = timeline.fairness()
    assert all(0.5 <= index <= 1.0 for _, index in found)
    assert found[-1][0] < timeline.results().makespan_s
