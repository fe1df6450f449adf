"""The contract as data: it is read from the source, and its changes can be read by people."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvconform.conformance.rules import RULES
from kvconform.engine.compat import contract, vllm_version
from kvconform.scenario.releases import RELEASES

SOURCE = '''
class KVConnectorBase_V1:
    """A base."""

    def get_finished(self, finished_req_ids: set[str], *, more: int = 0):
        """Who has ended."""
        assert finished_req_ids
'''


def package(tmp_path: Path, source: str) -> Path:
    path = tmp_path / "distributed/kv_transfer/kv_connector/v1/base.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return tmp_path


def test_it_is_read_from_the_source(tmp_path: Path) -> None:
    read = contract.read(package(tmp_path, SOURCE))
    hook = read["KVConnectorBase_V1.get_finished"]
    assert hook["takes"] == ["self", "finished_req_ids", "*", "more=0"]
    assert hook["asserts"] == ["finished_req_ids"]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (", *, more: int = 0", "", "takes no more *; more=0"),
        ("        assert finished_req_ids\n", "", "asserts no more finished_req_ids"),
        ("assert finished", "assert not finished", "asserts also not finished_req_ids"),
        ("Who has ended", "Who has not", "says something else in its docstring"),
        ("get_finished", "ended", "is gone"),
        ("set[str]", "frozenset[str]", None),
        ("Who has", "Who\n        has", None),
    ],
)
def test_a_change_is_named(tmp_path: Path, old: str, new: str, line: str | None) -> None:
    before = contract.read(package(tmp_path, SOURCE))
    after = contract.read(package(tmp_path, SOURCE.replace(old, new)))
    lines = [text for text in contract.changes(before, after) if "get_finished" in text]
    if line is None:
        assert lines == []
    else:
        assert f"KVConnectorBase_V1.get_finished {line}" in lines
    assert (contract.digest(before) == contract.digest(after)) is (line is None)


def test_the_argument_that_common_blocks_lost() -> None:
    lines = contract.changes(contract.of_release("0.11.0"), contract.of_release("0.11.2"))
    about = [x for x in lines if x.startswith("KVCacheManager.get_num_common_prefix_blocks takes")]
    assert any("takes no more" in x and "num_running_requests" in x for x in about)


def test_every_release_measured_has_another_contract() -> None:
    digests = {contract.digest(contract.of_release(v)) for v in RELEASES}
    assert len(digests) == len(RELEASES) == 10


def test_the_installed_one_is_known() -> None:
    # When this fails for a new release: look at the changes, then run the module.
    version = vllm_version().partition("+")[0]
    assert contract.summary()["resembles"] == version
    assert contract.changes(contract.of_release(version), contract.installed()) == []


def test_an_unknown_one_resembles_the_newest_before_it(tmp_path: Path) -> None:
    unknown = contract.read(package(tmp_path, SOURCE))
    assert contract.resembles(unknown, "0.29.0") == "0.27.1"
    assert contract.resembles(unknown, "9.0.0") == RELEASES[-1]
    assert contract.resembles(unknown, "0.10.0") == RELEASES[0]
    assert contract.resembles(contract.of_release("0.18.0"), "0.18.3") == "0.18.0"


def test_what_rules_cite_of_the_scheduler_is_in_it() -> None:
    text = "; ".join(f"{rule.source}; {rule.text}" for rule in RULES)
    lists = re.findall(r"v1/core/sched/scheduler\.py (\w+(?:, \w+)*)", text)
    cited = {name for names in lists for name in names.split(", ") if "_" in name}
    assert "_update_from_kv_xfer_finished" in cited
    newest = contract.of_release(RELEASES[-1])
    names = {name.rpartition(".")[2] for name in newest}
    assert cited - names == set()
