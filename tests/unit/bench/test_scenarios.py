"""What the page says of the scenarios, with known figures; what is published, and what is told of failures."""

import pytest

from tests.bench import everything, overhead, page, scenario
from tests.bench.comparison import Comparison, Result, Round
from tests.bench.everything import run_all
from tests.bench.latency import Plan, percentiles_ms
from tests.bench.latency import body as latency_body
from tests.bench.peer import PEERS, PYTHON, Peer, peer_versions
from tests.bench.peers import workload
from tests.bench.scenario import Report, Scenario, chosen, publish


def comparison(metric, **figures):
    """One round; names with underscores for spaces."""
    results = [Result(name=name, rounds=(Round(figures={metric: value}),)) for name, value in figures.items()]
    return Comparison(results=tuple(results))


def told(stoker, celery, lists):
    found = comparison(
        "requests_per_s", **{overhead.STOKER: stoker, overhead.CELERY: celery, overhead.CELERY_LISTS: lists}
    )
    return overhead.body(found, {result.name: 7 for result in found.results})


def test_goals_are_met_or_missed_by_the_ratio():
    text = told(10_000, 500, 20_000)
    assert "a task a request: at least 20. 20.0: met." in text
    assert "a task a list of 64: at least 0.5. 0.50: met." in text
    text = told(9_900, 500, 20_000)
    assert "at least 20. 19.8: missed." in text
    assert "at least 0.5. 0.49: missed." in text


def test_a_goal_whose_peer_was_not_measured_is_neither():
    text = overhead.body(comparison("requests_per_s", Stoker=1_000), {"Stoker": 7})
    assert text.count("Not measured in this run.") == 2
    assert "met" not in text.replace("Not measured", "")


def test_every_entry_says_what_it_keeps():
    assert all(entry.keeps for entry in overhead.ENTRIES.values())
    assert set(overhead.GOALS) <= set(overhead.ENTRIES)


@pytest.mark.parametrize(("p50", "p99", "said"), [(5, 20, "5.00, met; p99 at most 20 ms: 20.0, met")])
def test_latency_goals(p50, p99, said):
    idle = Comparison(results=(Result(name="Stoker", rounds=(Round(figures={"p50_ms": p50, "p99_ms": p99}),)),))
    assert f"Goals: p50 at most 5 ms: {said}." in latency_body(Plan(), idle, idle)
    late = Comparison(results=(Result(name="Stoker", rounds=(Round(figures={"p50_ms": p50 + 1}),)),))
    assert "p50 at most 5 ms: 6.00, missed; p99 at most 20 ms: not measured" in latency_body(Plan(), late, late)


def test_both_sides_count_percentiles_alike():
    seconds = [0.001 * number for number in range(1, 202)]
    assert percentiles_ms(seconds) == workload.percentiles_ms(seconds)
    assert percentiles_ms(seconds) == pytest.approx({"p50_ms": 101, "p99_ms": 199})


def test_a_peer_checks_what_came_back():
    workload.check(["a", "b"], ["a", "b"])
    with pytest.raises(SystemExit, match="are wrong"):
        workload.check(["b", "a"], ["a", "b"])
    with pytest.raises(SystemExit, match="1 results for 2"):
        workload.check(["a"], ["a", "b"])


def test_prompts_differ_and_are_as_long_as_said():
    prompts = workload.make_prompts(200)
    assert len(set(prompts)) == 200
    assert {len(prompt) for prompt in prompts} == {500}
    assert [len(part) for part in workload.in_lists(prompts)] == [64, 64, 64, 8]


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A page with one section, in the place of the real one."""
    copy = tmp_path / "benchmarks.md"
    copy.write_text("# B\n\n<!-- bench: x -->\nold\n<!-- bench: end x -->\n")
    monkeypatch.setattr(scenario, "PAGE", copy)
    monkeypatch.setattr(scenario, "write_section", lambda name, body: page.write_section(name, body, copy))
    return copy


def report(**fields):
    return Report(body="table", rounds=1, load_before=0.0, **fields)


def test_a_report_is_written_with_its_stamp_and_plots(written):
    assert publish("x", "scripts/bench x", report(plots={"x.svg": "<svg/>"}), write=True)
    text = written.read_text()
    assert "`scripts/bench x`, once, on " in text
    assert "table\n<!-- bench: end x -->" in text
    assert (written.parent / "x.svg").read_text() == "<svg/>"


def test_a_report_that_is_only_shown_writes_nothing(written, capsys):
    assert publish("x", "scripts/bench x", report(plots={"x.svg": "<svg/>"}), write=False)
    assert "table" in capsys.readouterr().out
    assert "old" in written.read_text()
    assert not (written.parent / "x.svg").exists()


def test_a_failure_is_published_and_told(written, capsys):
    assert not publish("x", "scripts/bench x", report(failures=("other: too slow",)), write=True)
    assert "x: FAILED: other: too slow" in capsys.readouterr().err


def test_a_scenario_that_breaks_does_not_stop_the_others(written, monkeypatch, capsys):
    def breaks(quick):
        raise RuntimeError("no")

    good = Scenario(name="x", command="scripts/bench x", run=lambda quick: report())
    bad = Scenario(name="y", command="scripts/bench y", run=breaks)
    monkeypatch.setattr(everything, "SCENARIOS", (bad, good))
    assert not run_all(quick=True, write=True)
    assert "y: FAILED: RuntimeError: no" in capsys.readouterr().err
    assert "`scripts/bench x --quick`" in written.read_text()


def test_every_scenario_has_its_place_in_the_page():
    text = page.PAGE.read_text("utf-8")
    for item in everything.SCENARIOS:
        assert f"<!-- bench: {item.name} -->\nnew\n" in page.replace_section(text, item.name, "new")


def test_every_peer_has_its_script():
    for entry in overhead.ENTRIES.values():
        assert entry.peer is None or (PEERS / entry.peer.script).is_file()


def test_without_an_environment_no_peer_takes_part_in_a_quick_run(monkeypatch, tmp_path):
    monkeypatch.setenv(PYTHON, str(tmp_path / "python"))
    peers = {"p": Peer(script="p.py", modules=("never_installed",))}
    assert chosen(peers, quick=True) == {}
    assert chosen(peers, quick=False) == peers
    assert peer_versions(("never_installed",)) == {}
